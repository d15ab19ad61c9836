"""Where each device stands: its rank in the pipeline and its data-parallel replica, from whatever tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import Fault, InputError
from ..core.op import Kind
from .device_ops import RankOps
from .partners import chains

_NOWHERE = -1  # place of a device that is left out


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says where a file does not tell.

    Args:
        ranks: positions in the pipeline.
        data: data-parallel replicas.
        chunks: stages a rank.
        steps: first and last step to use.
    """

    ranks: int | None = None
    data: int | None = None
    chunks: int | None = None
    steps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Position and replica of each device, in their order.

    Args:
        position: rank in the pipeline; -1 where a device is left out.
        replica: data-parallel replica; -1 likewise.
        remarks: how they were found, where that is a guess.
    """

    position: tuple[int, ...]
    replica: tuple[int, ...]
    remarks: tuple[str, ...] = ()

    def members(self) -> dict[tuple[int, int], list[int]]:
        """Indices of the devices that hold each replica and position."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, pair in enumerate(zip(self.replica, self.position, strict=True)):
            found.setdefault(pair, []).append(i)
        return found


def places(devices: Sequence[RankOps], said: Said) -> Places:
    """Find out where each device stands: overrides first, then labels, then transfers, then the warm-up.

    Args:
        devices: in the order of their ranks.
        said: what the user gave.

    Raises:
        InputError: the overrides do not fit the number of devices.
    """
    if said.ranks is not None:
        return _by_rank_number(len(devices), said.ranks, said.data)
    position = _labelled(devices)
    if position is not None:
        return _with_replicas(devices, position, said)
    if len(devices) == 1:
        return Places((0,), (0,))
    if found := chains(devices):
        return _from_chains(found, devices)
    position = _by_warm_up(devices)
    if not any(position) or len({position.count(at) for at in position}) > 1:
        # GPipe runs every forward first on all ranks; 1F1B with m < p does on its first p - m + 1.
        position = _by_first_forward(devices, said.data or 1)
    places = _with_replicas(devices, position, said)
    guess = "no label and no transfer tells ranks apart; they stand in the order of their warm-up (--ranks overrides)"
    return Places(places.position, places.replica, (guess, *places.remarks))


def _by_rank_number(devices: int, ranks: int, data: int | None) -> Places:
    """Megatron's order of groups: tensor fastest, then data, then pipeline."""
    a_stage, rest = divmod(devices, ranks)
    if rest or a_stage % (data or 1):
        given = f"--ranks {ranks}" + (f" --data {data}" if data else "")
        rule = f"{devices} devices cannot be split so"
        raise InputError(Fault(given, rule, "give numbers whose product divides the number of devices"))
    tensor = a_stage // (data or a_stage)
    index = range(devices)
    return Places(tuple(i // a_stage for i in index), tuple(i % a_stage // tensor for i in index))


def _labelled(devices: Sequence[RankOps]) -> tuple[int, ...] | None:
    """Positions that files name, or that follow from the stages a device holds."""
    if all(device.position is not None for device in devices):
        return tuple(int(device.position or 0) for device in devices)
    if all(device.stage is not None for device in devices):
        held = [tuple(np.unique(device.stage).tolist()) for device in devices if device.stage is not None]
        order = sorted(set(held))
        return tuple(order.index(stages) for stages in held)
    return None


def _with_replicas(devices: Sequence[RankOps], position: tuple[int, ...], said: Said) -> Places:
    """Tell apart the devices of one position."""
    if all(device.replica is not None for device in devices):
        return Places(position, tuple(int(device.replica or 0) for device in devices))
    nth = [position[:i].count(at) for i, at in enumerate(position)]  # among the devices of its position
    most = max(nth) + 1
    if said.data is not None:
        tensor = max(1, most // said.data)
        return Places(position, tuple(n // tensor for n in nth))
    if most == 1:
        return Places(position, tuple(nth))
    found = chains(devices)
    if found and all([position[i] for i in chain] == list(range(len(chain))) for chain in found):
        return _from_chains(found, devices)
    guess = f"{most} devices hold the same stage; they were taken for replicas (--data says how many there are)"
    return Places(position, tuple(nth), (guess,))


def _from_chains(found: list[list[int]], devices: Sequence[RankOps]) -> Places:
    position, replica = [_NOWHERE] * len(devices), [_NOWHERE] * len(devices)
    for number, chain in enumerate(found):
        for at, device in enumerate(chain):
            position[device], replica[device] = at, number
    lost = [device for device, at in zip(devices, position, strict=True) if at == _NOWHERE]
    ranks = ", ".join(str(device.rank) for device in lost)
    remark = f"rank {ranks}: their pipeline lacks a rank (the others have {len(found[0])}); they were left out"
    return Places(tuple(position), tuple(replica), (remark,) if lost else ())


def _by_warm_up(devices: Sequence[RankOps]) -> tuple[int, ...]:
    """The more forwards stand before a device's first backward, the earlier it is in a pipeline."""
    counts = []
    for device in devices:
        first = device.step == device.step.max(initial=0)
        back = device.start[first & (device.kind != Kind.F)].min(initial=np.iinfo(np.int64).max)
        counts.append(int((first & (device.kind == Kind.F) & (device.start < back)).sum()))
    order = sorted(set(counts), reverse=True)
    return tuple(order.index(count) for count in counts)


def _by_first_forward(devices: Sequence[RankOps], data: int) -> tuple[int, ...]:
    """The earlier a device begins its first forward, the earlier it is in a pipeline; their clocks must agree."""
    begun = []
    for device in devices:
        forward = device.kind == Kind.F
        steps, first = np.unique(device.step[forward], return_inverse=True)
        earliest = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(earliest, first, device.start[forward])
        begun.append(float(np.median(earliest)) if len(steps) else float("inf"))
    order = sorted(range(len(devices)), key=begun.__getitem__)
    return tuple(order.index(i) // data for i in range(len(devices)))
