"""Costs: how long each op and each transfer takes, in whole nanoseconds, from what was said of ranks and links."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import Fault, InputError
from .schedule import KINDS, Kind, Schedule
from .units import MILLISECOND, Hops, hops


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Durations by kind, stage and, where they differ, micro-batch.

    Args:
        durations: int64[kinds, stages, 1 or units], nanoseconds.
        transfers: delay until the input of an op of this kind and stage has come from another rank,
            int64[kinds, stages, 1 or units], nanoseconds.
        evidence: ``stated``, ``measured`` or ``estimated``.
        pair_scale: what an op adds to an overlapped pair over its own duration; one for all ops, or by kind and stage,
            float64[kinds, stages].
        occupancy: how long the bytes of that transfer take up the link, on top of the delay, int64 of the shape of
            ``transfers``, nanoseconds; None where links have no limit.
        sender: how long that transfer takes up its sender before it begins, likewise; None for nothing.
    """

    durations: NDArray[np.int64]
    transfers: NDArray[np.int64]
    evidence: str = "stated"
    pair_scale: float | NDArray[np.float64] = 1.0
    occupancy: NDArray[np.int64] | None = None
    sender: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for table in (self.durations, self.transfers, self.occupancy, self.sender):
            if table is not None:
                table.flags.writeable = False

    def hops(self) -> NDArray[np.int64]:
        """From the end of an op until its output is there, on a link that nothing else uses, as ``transfers``."""
        if self.occupancy is None:
            return self.transfers
        return self.transfers + self.occupancy

    def pair_scales(self) -> NDArray[np.float64]:
        """``pair_scale`` of each kind and stage, float64[kinds, stages]."""
        return np.broadcast_to(np.asarray(self.pair_scale, np.float64), self.durations.shape[:2])

    def sender_side(self) -> NDArray[np.int64]:
        """``sender``, and zeros of the shape of ``transfers`` where that is nothing."""
        if self.sender is None:
            return np.zeros_like(self.transfers)
        return self.sender


@dataclass(frozen=True, slots=True)
class Rates:
    """What a user says about speed: per micro-batch and **rank**, in nanoseconds; a chunk takes its share.

    Args:
        forward: F.
        backward: B; None where ``input`` and ``weight`` say it, else 2 ms.
        input: I; None for half of B, or for what ``weight`` leaves of it.
        weight: W; None for half of B, or for what ``input`` leaves of it.
        transfer: one hop between ranks, on all links or by link.
        stage_scale: factor per stage, or empty.
        microbatch_scale: factor per micro-batch, or empty.
        rank_scale: factor per rank, or empty.
        pair: an overlapped F and B together; None for their sum.
        pair_of_stage: the same of single stages whose layers are of another kind; two stages of a pair add half each.
        payload: bytes that one hop carries for a micro-batch.
        link: bytes that a link between two ranks carries in a nanosecond (the same as GB/s), in each direction.
        occupy: how long a hop takes up its sender before it begins, on all links or by link.
    """

    forward: float = 1 * MILLISECOND
    backward: float | None = None
    input: float | None = None
    weight: float | None = None
    transfer: float | Hops = 0
    stage_scale: tuple[float, ...] = ()
    microbatch_scale: tuple[float, ...] = ()
    rank_scale: tuple[float, ...] = ()
    pair: float | None = None
    pair_of_stage: tuple[tuple[int, float], ...] = ()
    payload: float = 0
    link: float = math.inf
    occupy: float | Hops = 0

    def __post_init__(self) -> None:
        rule = "a duration or factor is a finite number, not below 0"
        faults = []
        for name, value in self._numbers():
            if not 0 <= value < 1e18:  # nan is neither; 1e18 ns, 30 years, still fits into int64
                faults.append(Fault(f"{name} = {value}", rule, f"give {name} as in 20ms"))
        if not self.link > self.payload / 1e18:
            rule = "a link carries its bytes within 30 years"
            faults.append(Fault(f"link = {self.link} GB/s", rule, "give more than 0, as in 25"))
        if not faults:
            faults = self._split_faults()
        if faults:
            raise InputError(*faults)

    def _numbers(self) -> Iterator[tuple[str, float]]:
        """Every number that was given but the link, which may be infinite, with its name."""
        for name in ("forward", "backward", "input", "weight", "pair", "payload"):
            if (value := getattr(self, name)) is not None:
                yield name, value
        for stage, value in self.pair_of_stage:
            yield f"pair {stage}", value
        for name in ("transfer", "occupy"):
            for value in hops(getattr(self, name)).values():
                yield name, value
        for name in ("stage_scale", "microbatch_scale", "rank_scale"):
            for value in getattr(self, name):
                yield name, value

    @property
    def _whole(self) -> float:
        if self.backward is not None:
            return self.backward
        if self.input is not None and self.weight is not None:
            return self.input + self.weight
        return 2 * MILLISECOND

    def _split_faults(self) -> list[Fault]:
        parts = (self.input or 0) + (self.weight or 0)
        both = self.input is not None and self.weight is not None
        if parts < self._whole + 1 and not (both and abs(parts - self._whole) >= 1):  # to the nanosecond
            return []
        value = f"backward = {self._whole / MILLISECOND:g}ms, input + weight = {parts / MILLISECOND:g}ms"
        return [Fault(value, "the two halves of a backward add up to it", "give two of the three")]

    def by_kind(self) -> tuple[float, float, float, float]:
        """F, I, W, B in nanoseconds per micro-batch and rank, with B = I + W."""
        whole = first = self._whole
        if self.input is not None:
            first = self.input
        elif self.weight is not None:
            first = whole - self.weight
        else:  # two matrix products of the same size, one for each gradient
            first = whole / 2
        return self.forward, first, whole - first, whole


def costs_of(rates: Rates, schedule: Schedule) -> Costs:
    """The costs of each op of a schedule: scaled, shared out over chunks and slices, rounded half to even.

    Raises:
        InputError: a list of factors whose length is not the number of stages, micro-batches or ranks; a link that the
            schedule does not have.
    """
    _check_lengths(rates, schedule)
    by_kind = np.array(rates.by_kind())
    # Scales first, then the division by chunks, then one rounding: durations of chunks need not add up to the rank's.
    durations = np.rint(by_kind[:, None, None] * _factors(rates, schedule)).astype(np.int64)
    transfers = _nanoseconds(link_table(hops(rates.transfer), schedule))
    sender = occupancy = None
    if rates.occupy:
        sender = _nanoseconds(link_table(hops(rates.occupy), schedule, "occupy"))
        transfers, sender = (np.ascontiguousarray(each) for each in np.broadcast_arrays(transfers, sender))
    if not math.isinf(rates.link):
        occupancy = np.full_like(transfers, round(rates.payload / rates.link / schedule.slices))
    apart = by_kind[Kind.F] + by_kind[Kind.B]
    pair: float | NDArray[np.float64] = 1.0
    if rates.pair is not None and apart:
        pair = rates.pair / apart
    if rates.pair_of_stage and apart:
        pair = np.full((KINDS, schedule.stages), pair)
        for stage, together in rates.pair_of_stage:
            pair[:, stage] = together / apart
    return Costs(durations, transfers, pair_scale=pair, occupancy=occupancy, sender=sender)


def _factors(rates: Rates, schedule: Schedule) -> NDArray[np.float64]:
    """What each stage takes of a duration that is said of a rank and a micro-batch, float64[stages, 1 or units]."""
    units = 1
    if rates.microbatch_scale or schedule.placement.shape[0] > 1:  # a stage of two copies lives on two ranks
        units = schedule.units
    unit = np.arange(units, dtype=np.int32)
    copy = schedule.copy_of(unit)
    rank = schedule.placement[copy].T  # [stages, units]
    factor = 1.0 / (schedule.chunks_of()[copy[None, :], rank] * schedule.slices)
    if rates.stage_scale:
        factor = factor * np.array(rates.stage_scale)[:, None]
    if rates.rank_scale:
        factor = factor * np.array(rates.rank_scale)[rank]
    if rates.microbatch_scale:
        factor = factor * np.array(rates.microbatch_scale)[unit // schedule.slices][None, :]
    return factor


def _nanoseconds(table: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(table).astype(np.int64)


def _check_lengths(rates: Rates, schedule: Schedule) -> None:
    faults = []
    for option, scale, size, noun in (
        ("stage-scale", rates.stage_scale, schedule.stages, "stages"),
        ("microbatch-scale", rates.microbatch_scale, schedule.microbatches, "micro-batches"),
        ("rank-scale", rates.rank_scale, schedule.ranks, "ranks"),
    ):
        if scale and len(scale) != size:
            rule = f"it needs one for each of the {size} {noun}"
            faults.append(Fault(f"{option} has {len(scale)} factors", rule, f"give {size} of them"))
    for stage, _ in rates.pair_of_stage:
        if stage >= schedule.stages:
            rule = f"stages are 0 to {schedule.stages - 1}"
            faults.append(Fault(f"pair {stage}", rule, "name one of them"))
    if faults:
        raise InputError(*faults)


def link_table(given: Hops, schedule: Schedule, name: str = "transfer") -> NDArray[np.float64]:
    """The value of the link by which the input of each op comes, float64[kinds, stages, 1 or units].

    Raises:
        InputError: a list that is not one value for each boundary, or two ranks between which no output goes.
    """
    if not given.pairs and not given.boundaries:
        return np.full((KINDS, schedule.stages, 1), given.default)
    _check(given, schedule, name)
    copies = np.stack([_by_boundary(given, home) for home in schedule.placement])
    table = np.zeros((KINDS, schedule.stages, len(copies)))
    table[Kind.F, 1:] = copies.T  # a boundary carries activations up and gradients down; W takes in nothing
    table[[Kind.I, Kind.B], :-1] = copies.T
    if len(copies) > 1:
        table = table[:, :, schedule.copy_of(np.arange(schedule.units, dtype=np.int32))]
    return table


def _by_boundary(given: Hops, home: NDArray[np.int32]) -> NDArray[np.float64]:
    """The value between each stage and the next, where these live on the given ranks."""
    if given.boundaries:
        return np.array(given.boundaries)
    found = np.full(len(home) - 1, given.default)
    for one, other, value in given.pairs:
        here = (home[:-1] == one) & (home[1:] == other) | (home[:-1] == other) & (home[1:] == one)
        found[here] = value
    return found


def _check(given: Hops, schedule: Schedule, name: str) -> None:
    if given.boundaries:
        needed = schedule.stages - 1
        if len(given.boundaries) != needed:
            rule = f"{schedule.name} with {schedule.stages} stages has {needed} boundaries"
            raise InputError(
                Fault(f"{name} has {len(given.boundaries)} values", rule, "give one for each, or one for all")
            )
        return
    homes = schedule.placement
    ends = np.sort(np.stack([homes[:, :-1].ravel(), homes[:, 1:].ravel()]), axis=0)
    there = set(map(tuple, ends.T.tolist()))
    faults = []
    for one, other, _ in given.pairs:
        if (min(one, other), max(one, other)) not in there:
            near = sorted(pair for pair in there if pair[0] != pair[1] and {*pair} & {one, other})
            links = ", ".join(f"{a}-{b}" for a, b in (near or sorted(there))[:4])
            rule = f"{schedule.name} hands nothing from rank {one} to rank {other}"
            faults.append(Fault(f"{name} {one}-{other}", rule, f"links of it: {links}"))
    if faults:
        raise InputError(*faults)
