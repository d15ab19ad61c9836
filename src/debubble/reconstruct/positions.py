"""Where each device stands: its rank in the pipeline and its replica, by what the user or labels say, else by messages.

The first micro-batch of a step passes every rank first. So the first activation that a rank receives comes from the
rank before it, and the rank that begins by sending is the first one, whatever the clocks, chunks and directions:

    rank 4   s . s r ..                begins by sending: position 0
    rank 6   r(4) s .. r ..            first receives from 4: position 1
    rank 2   r(6) s(0) ..              first receives from 6: position 2
    rank 0   is not here: 2 sends to it, so there is a position 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.op import Kind
from .device_ops import UNKNOWN, UNTOLD, RankOps, Transfers

NOWHERE = -1  # place of a device that is left out
HALF = 0.75  # of a rank's messages: a middle rank that lacks one neighbour shares half of them with the other
MOST_NAMED = 8  # ranks that are spelled out


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says if a file does not tell.

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
        position: rank in the pipeline; -1 for a device that is left out.
        replica: data-parallel replica; -1 likewise.
        ranks: positions of a whole pipeline, those of ranks that are not here among them.
        missing: global ranks that messages name and whose traces are not here.
        remarks: how they were found, if that is a guess, and who was left out.
    """

    position: tuple[int, ...]
    replica: tuple[int, ...]
    ranks: int
    missing: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def members(self) -> dict[tuple[int, int], list[int]]:
        """Indices of the devices that hold each replica and position."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, pair in enumerate(zip(self.replica, self.position, strict=True)):
            if NOWHERE not in pair:
                found.setdefault(pair, []).append(i)
        return found


def named(ranks: Iterable[int]) -> str:
    """Some ranks in words, the lowest first."""
    some = sorted(ranks)
    return ", ".join(map(str, some[:MOST_NAMED])) + (f" and {len(some) - MOST_NAMED} more" * (len(some) > MOST_NAMED))


# What the user or labels say.


def labelled_positions(devices: Sequence[RankOps], said: Said) -> tuple[int, ...] | None:
    """Positions that the user or files say, or that follow from the stages a device holds; None if nothing does."""
    if said.ranks is not None:
        return by_rank_number(len(devices), said.ranks, said.data).position
    if all(device.position is not None for device in devices):
        return tuple(int(device.position or 0) for device in devices)
    if all(device.stage is not None for device in devices):
        held = [tuple(np.unique(device.stage).tolist()) for device in devices if device.stage is not None]
        order = sorted(set(held))
        return tuple(order.index(stages) for stages in held)
    return None


def by_rank_number(devices: int, ranks: int, data: int | None) -> Places:
    """Megatron-LM's order of groups: tensor fastest, then data, then pipeline.

    Raises:
        InputError: the numbers do not fit the number of devices.
    """
    a_stage, rest = divmod(devices, ranks)
    if rest or a_stage % (data or 1):
        given = f"--ranks {ranks}" + (f" --data {data}" if data else "")
        rule = f"{devices} devices cannot be split so"
        raise InputError(Fault(given, rule, "give numbers whose product divides the number of devices"))
    tensor = a_stage // (data or a_stage)
    index = range(devices)
    return Places(tuple(i // a_stage for i in index), tuple(i % a_stage // tensor for i in index), ranks)


def followers(devices: Sequence[RankOps], position: Sequence[int]) -> dict[int, list[int]]:
    """For each device those that may come right after it: at the next position, or at the first after the last."""
    ranks = max(position) + 1
    held: dict[tuple[int, int | None], list[int]] = {}
    for i, device in enumerate(devices):
        held.setdefault((position[i], device.replica), []).append(i)
    after = [held.get(((position[i] + 1) % ranks, device.replica), []) for i, device in enumerate(devices)]
    return {i: [j for j in some if j != i] for i, some in enumerate(after)}


# What messages say.


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """Ranks in the order of the pipeline; those that are not here among them."""

    ranks: tuple[int, ...]
    here: tuple[bool, ...]

    @property
    def whole(self) -> bool:
        return all(self.here)


def places_of(devices: Sequence[RankOps], said: Said) -> Places:
    """Find out where each device stands: what is said first, then labels, then messages, then the warm-up.

    Args:
        devices: in the order of their ranks, on one clock as far as messages tell it, with peers as far as known.
        said: what the user gave.

    Raises:
        InputError: the overrides do not fit the number of devices, or no pipeline is whole and nothing says how many
            ranks one has.
    """
    if said.ranks is not None:
        return by_rank_number(len(devices), said.ranks, said.data)
    position = labelled_positions(devices, said)
    if position is not None:
        return _with_replicas(devices, position, said)
    if len(devices) == 1 and not _absent(devices):
        return Places((0,), (0,), 1)
    pipelines = _pipelines(devices)
    if pipelines:
        return _of_pipelines(devices, pipelines)
    if any((device.kind == UNTOLD).any() for device in devices):
        return _nowhere(devices)
    position = _by_warm_up(devices)
    if not any(position) or len({position.count(at) for at in position}) > 1:
        # GPipe runs every forward first on all ranks; 1F1B with m < p does on its first p - m + 1.
        position = _by_first_forward(devices, said.data or 1)
    places = _with_replicas(devices, position, said)
    guess = "no label and no transfer tells ranks apart; they stand in the order of their warm-up (--ranks overrides)"
    return Places(places.position, places.replica, places.ranks, (), (guess, *places.remarks))


def _absent(devices: Sequence[RankOps]) -> tuple[int, ...]:
    """Ranks that messages name and whose traces are not here."""
    here = {device.rank for device in devices}
    peers = {peer for device in devices if device.transfers is not None for peer in _peers(device.transfers)}
    return tuple(sorted(peers - here))


def _peers(moves: Transfers) -> list[int]:
    found: list[int] = np.unique(moves.peer[moves.peer >= 0]).tolist()
    return found


def _pipelines(devices: Sequence[RankOps]) -> list[_Pipeline]:
    """Chains of ranks by the first message that each receives; none if no message names a peer."""
    here = {device.rank for device in devices}
    after: dict[int, int] = {}
    before: dict[int, int] = {}

    def link(one: int, other: int) -> None:
        if one not in after and other not in before and _last(after, other) != one:
            after[one], before[other] = other, one

    ahead: dict[int, int] = {}
    for device in devices:
        first, previous, following = _first_messages(device.transfers)
        if previous is not None and not first:
            link(previous, device.rank)
        if following is not None:
            ahead[device.rank] = following
    for rank, peer in sorted(ahead.items()):
        if peer not in here and before.get(rank) != peer:
            link(rank, peer)
    heads = sorted((after.keys() | before.keys()) - before.keys())
    chains = [_walk(after, head) for head in heads]
    chains = _joined_at_tails(devices, chains)
    lone = [[rank] for rank in sorted(here) if rank not in after and rank not in before]
    found = [*chains, *lone] if chains else []
    return [_Pipeline(tuple(chain), tuple(rank in here for rank in chain)) for chain in found]


def _first_messages(moves: Transfers | None) -> tuple[bool, int | None, int | None]:
    """Whether steps begin by sending, and the peers of the first receive and of the first send, by most steps."""
    if moves is None or not len(moves):
        return False, None, None
    rows = np.flatnonzero(moves.forward == 1) if (moves.forward >= 0).all() else np.arange(len(moves))
    if (moves.step[rows] >= 0).any():
        rows = rows[moves.step[rows] >= 0]  # others lie outside of every whole step
    rows = rows[np.lexsort((moves.end[rows], moves.step[rows]))]
    begins = _first_of_steps(moves, rows)
    sends = bool(len(begins)) and float(moves.send[begins].mean()) > 0.5
    return sends, _usual_peer(moves, rows[~moves.send[rows]]), _usual_peer(moves, rows[moves.send[rows]])


def _first_of_steps(moves: Transfers, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of rows in the order of steps and time the first of each step."""
    _, first = np.unique(moves.step[rows], return_index=True)
    return rows[first]


def _usual_peer(moves: Transfers, rows: NDArray[np.int64]) -> int | None:
    """The peer of the first of these in most steps; None if it is not known."""
    counts = Counter(moves.peer[_first_of_steps(moves, rows)].tolist())
    peer = counts.most_common(1)[0][0] if counts else UNKNOWN
    return None if peer < 0 else peer


def _last(after: dict[int, int], rank: int) -> int:
    """The last rank of the chain from one on."""
    while rank in after:
        rank = after[rank]
    return rank


def _walk(after: dict[int, int], rank: int) -> list[int]:
    chain = [rank]
    while chain[-1] in after:
        chain.append(after[chain[-1]])
    return chain


def _joined_at_tails(devices: Sequence[RankOps], chains: list[list[int]]) -> list[list[int]]:
    """Two chains whose last ranks talk to each other are one pipeline that is fed from both ends (DualPipe)."""
    talks = {device.rank: set(_peers(device.transfers)) for device in devices if device.transfers is not None}
    joined: list[list[int]] = []
    left = list(chains)
    while left:
        chain = left.pop(0)
        other = next((one for one in left if one[-1] in talks.get(chain[-1], ())), None)
        if other is not None:
            left.remove(other)
            chain = [*chain, *other[::-1]]
        joined.append(chain)
    return joined


def _of_pipelines(devices: Sequence[RankOps], found: list[_Pipeline]) -> Places:
    """Places by the pipelines that messages show: the whole ones, else those with ranks that are named but not here."""
    index = {device.rank: i for i, device in enumerate(devices)}
    ranks = max(len(each.ranks) for each in found)
    whole = [each for each in found if each.whole and len(each.ranks) == ranks and _closed(devices, each, index)]
    used = whole or [each for each in _pieces_joined(found) if len(each.ranks) > 1]
    ranks = max(len(each.ranks) for each in used)
    missing = _absent(devices)
    if not whole and not missing and any((device.kind == UNTOLD).any() for device in devices):
        return _nowhere(devices)  # of a piece nobody can say which way its messages go
    if not whole and not missing and len(found) > 1:
        alone = [each.ranks[0] for each in found if len(each.ranks) == 1]
        lonely = named(alone or (each.ranks[-1] for each in found))
        rule = f"rank {lonely} sends to or receives from ranks whose traces are not here; no pipeline is whole"
        remedy = "add the traces of the other ranks, or say with --ranks how many of one pipeline are here"
        raise InputError(Fault(devices[0].source, rule, remedy))
    position, replica = [NOWHERE] * len(devices), [NOWHERE] * len(devices)
    for number, pipeline in enumerate(sorted(used, key=lambda each: min(each.ranks))):
        for at, rank in enumerate(pipeline.ranks):
            if rank in index:
                position[index[rank]], replica[index[rank]] = at, number
    lost = [device.rank for device, at in zip(devices, position, strict=True) if at == NOWHERE]
    remarks = [f"rank {named(missing)}: messages name it, but its trace is not here"] if missing else []
    if lost:
        remarks.append(f"rank {named(lost)}: their pipeline lacks a rank (the others have {ranks}); they were left out")
    return Places(tuple(position), tuple(replica), ranks, missing, tuple(remarks))


def _nowhere(devices: Sequence[RankOps]) -> Places:
    return Places((NOWHERE,) * len(devices), (NOWHERE,) * len(devices), 0)


def _closed(devices: Sequence[RankOps], pipeline: _Pipeline, index: dict[int, int]) -> bool:
    """Whether the other sides of each rank's messages are in its pipeline; a piece of a longer one sends out of it."""
    for rank in pipeline.ranks:
        moves = devices[index[rank]].transfers
        if moves is not None and len(moves) and float(np.isin(moves.peer, pipeline.ranks).mean()) < HALF:
            return False
    return True


def _pieces_joined(found: list[_Pipeline]) -> list[_Pipeline]:
    """Pieces between which several ranks are missing, put together by the regular distance of their ranks.

    Neighbours in a pipeline lie as many ranks apart as there are devices of one stage.
    """
    steps = Counter(b - a for each in found for a, b in zip(each.ranks, each.ranks[1:], strict=False))
    stride = steps.most_common(1)[0][0] if steps else 0
    if stride <= 0:
        return found
    pieces = sorted(found, key=lambda each: each.ranks[0])
    joined: list[_Pipeline] = []
    for piece in pieces:
        fits = next((i for i, one in enumerate(joined) if (piece.ranks[0] - one.ranks[-1]) % stride == 0), None)
        if fits is None:
            joined.append(piece)
            continue
        one = joined[fits]
        between = tuple(range(one.ranks[-1] + stride, piece.ranks[0], stride))
        again = 1 if piece.ranks[0] == one.ranks[-1] else 0
        ranks = (*one.ranks, *between, *piece.ranks[again:])
        joined[fits] = _Pipeline(ranks, (*one.here, *(False for _ in between), *piece.here[again:]))
    return joined


# Replicas, and what is left if nothing tells.


def _with_replicas(devices: Sequence[RankOps], position: tuple[int, ...], said: Said) -> Places:
    """Tell apart the devices of one position: by what is told, by who talks to whom, or else in order."""
    ranks = max(position) + 1
    if all(device.replica is not None for device in devices):
        return Places(position, tuple(int(device.replica or 0) for device in devices), ranks, _absent(devices))
    nth = [position[:i].count(at) for i, at in enumerate(position)]  # among the devices of its position
    most = max(nth) + 1
    if said.data is not None:
        tensor = max(1, most // said.data)
        return Places(position, tuple(n // tensor for n in nth), ranks, _absent(devices))
    if most == 1:
        return Places(position, tuple(nth), ranks, _absent(devices))
    parts = _parts(devices)
    if max(parts) + 1 == most and max(Counter(zip(parts, position, strict=True)).values()) == 1:
        return Places(position, tuple(parts), ranks, _absent(devices))
    guess = f"{most} devices hold the same stage; they were taken for replicas (--data says how many there are)"
    return Places(position, tuple(nth), ranks, _absent(devices), (guess,))


def _parts(devices: Sequence[RankOps]) -> list[int]:
    """A number for each device, the same for those that messages join, also by a rank that is not here, from 0."""
    index = {device.rank: i for i, device in enumerate(devices)}
    part = list(range(len(devices)))
    for i, device in enumerate(devices):
        for peer in _peers(device.transfers) if device.transfers is not None else ():
            one, other = sorted((part[i], part[index.setdefault(peer, i)]))
            part = [one if each == other else each for each in part]
    order = sorted(set(part))
    return [order.index(each) for each in part]


def _by_warm_up(devices: Sequence[RankOps]) -> tuple[int, ...]:
    """The more forwards stand before a device's first backward, the earlier it is in a pipeline."""
    counts = []
    for device in devices:
        last = device.step == device.step.max(initial=0)
        back = device.start[last & (device.kind != Kind.F)].min(initial=np.iinfo(np.int64).max)
        counts.append(int((last & (device.kind == Kind.F) & (device.start < back)).sum()))
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
