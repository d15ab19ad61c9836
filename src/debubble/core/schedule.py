"""A schedule: for each rank the order of its ops, where each stage lives, what ranks hold. It has no clock.

An op is one kind of work on one stage for one micro-batch, written ``2F0``. Letters are PyTorch's. Papers and
frameworks use others for the same things:

    here                           zero bubble, V    DualPipe README   Megatron, GPipe, DeepSpeed, Chimera
    F  forward                     F                 F                 F
    I  gradient of the input       B                 -                 -
    W  gradient of the weights     W                 W                 -
    B  both at once                BW                B                 B
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from .errors import Fault, InputError
from .results import Pictured


class Kind(IntEnum):
    """What an op computes; the number is its row in every table of durations."""

    F = 0
    I = 1  # noqa: E741 - PyTorch's letter
    W = 2
    B = 3


KINDS = len(Kind)
NOTHING = -1  # no op, in any column that numbers ops or what is made of them

_TEXT = re.compile(r"(\d+)([FIWB])(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Op:
    """One op, as people and error messages see it; arrays hold the same three numbers as columns.

    ``microbatch`` is a *unit*: with sliced sequences unit ``u`` is slice ``u % slices`` of micro-batch
    ``u // slices``, written ``2F0.1``; without slices a unit is a micro-batch.
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    def text(self, slices: int = 1) -> str:
        """The text form, with the slice behind a point where sequences are sliced."""
        if slices == 1:
            return str(self)
        return f"{self.stage}{self.kind.name}{self.microbatch // slices}.{self.microbatch % slices}"

    @classmethod
    def parse(cls, text: str, slices: int = 1) -> Op:
        """Read ``2F0`` or, with slices, ``2F0.1``; the whole text must match.

        Raises:
            InputError: the text is not an op.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (match[4] is not None) != (slices > 1) or (slices > 1 and int(match[4]) >= slices):
            form = "2F0: stage, one of F I W B, micro-batch"
            if slices > 1:
                form = f"2F0.1 with a slice below {slices}"
            raise InputError(Fault(f"op = {text!r}", "this is not an op", f"write it as {form}"))
        unit = int(match[3]) * slices + int(match[4] or 0)  # no slice is written where a sequence is whole
        return cls(Kind[match[2]], int(match[1]), unit)


MOST_OPS = 400_000_000  # about 20 GB with program and timeline: refuse before allocating
BYTES_AN_OP = 52  # schedule 9, program 20, timeline 16, and the working copies of one pass
MOST_RANKS = 16_384  # all ranks step together, in twice as many rounds as there are ranks: about 10 s of work


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a pipeline: what every generator takes.

    Args:
        ranks: positions in the pipeline, p.
        microbatches: micro-batches per pipeline and step, m.
        chunks: stages per rank, v.
        slices: parts into which the sequence of a micro-batch is cut (1: not cut).
        group: micro-batches that a rank passes through one chunk before it turns to the next, for the schedules that
            let it be chosen; None for their own choice.
        pairs: whether a forward and the backward after it run as one slot, for the schedules that let it be chosen.

    Raises:
        InputError: a size below 1, more ops than memory holds, or more ranks than can be simulated in seconds; all such
            faults at once.
    """

    ranks: int
    microbatches: int
    chunks: int = 1
    slices: int = 1
    group: int | None = None
    pairs: bool = False

    def __post_init__(self) -> None:
        faults = []
        for name in ("ranks", "microbatches", "chunks", "slices"):
            if (value := getattr(self, name)) < 1:
                rule = f"a pipeline needs at least one of its {name}"
                faults.append(Fault(f"{name} = {value}", rule, f"give {name} 1 or more"))
        # Sizes that are no sizes have no product: the next two are asked only where those above are right.
        if not faults and (ops := 2 * self.stages * self.units) > MOST_OPS:
            size = f"ranks x chunks x microbatches = {self.stages} x {self.units}"
            rule = f"{ops:,} ops would need {ops * BYTES_AN_OP / 1e9:,.0f} GB of memory"
            enough = 100 * self.ranks  # the bubble is (p-1)/m: one percent
            remedy = f"stay under {MOST_OPS:,} ops; the bubble hardly changes beyond {enough} micro-batches"
            faults.append(Fault(size, rule, remedy))
        if not faults and self.ranks > MOST_RANKS:
            turns = 2 * self.ranks**2
            rule = f"as many ranks step together in twice as many rounds: {turns:,} turns, a minute or more"
            faults.append(Fault(f"ranks = {self.ranks}", rule, f"stay at {MOST_RANKS:,} ranks or fewer"))
        if faults:
            raise InputError(*faults)

    @property
    def stages(self) -> int:
        """Stages of the model: ranks x chunks."""
        return self.ranks * self.chunks

    @property
    def units(self) -> int:
        """What travels alone through the pipeline: micro-batches x slices."""
        return self.microbatches * self.slices


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Pictured):
    """The order of ops on each rank, as columns; rank ``r`` owns rows ``offsets[r]`` to ``offsets[r + 1]``.

    Args:
        name: what people call it, as in the catalog.
        source: where it came from: ``generated``, a file, a class.
        microbatches: micro-batches per step, m.
        placement: rank of each stage, int32[copies, stages]; two copies where two pipelines run against each other.
        offsets: first row of each rank, int64[ranks + 1].
        kind: uint8[ops], a ``Kind``.
        stage: int32[ops].
        unit: int32[ops], the micro-batch, or its slice where ``slices`` > 1.
        slices: parts of a micro-batch's sequence.
        route: which copy of the weights a unit passes, uint8[units]; None where there is one copy.
        joined: bool[ops], True where an op runs together with the op before it (an overlapped pair);
            None where no slot holds two ops.
    """

    name: str
    source: str
    microbatches: int
    placement: NDArray[np.int32]
    offsets: NDArray[np.int64]
    kind: NDArray[np.uint8]  # 9 bytes an op: at 400 million ops a wider column is what runs out of memory
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]
    slices: int = 1
    route: NDArray[np.uint8] | None = None
    joined: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for column in (self.placement, self.offsets, self.kind, self.stage, self.unit, self.route, self.joined):
            if column is not None:
                column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def ranks(self) -> int:
        """Positions in the pipeline."""
        return len(self.offsets) - 1

    @property
    def stages(self) -> int:
        """Stages of the model, over all ranks (of one copy of the weights)."""
        return int(self.placement.shape[1])

    @property
    def units(self) -> int:
        """What travels alone: micro-batches x slices."""
        return self.microbatches * self.slices

    @property
    def splits(self) -> bool:
        """Whether any backward is split into I and W."""
        return bool((self.kind == Kind.W).any())

    @property
    def forward_only(self) -> bool:
        """Whether there is no backward at all (inference)."""
        return not bool((self.kind != Kind.F).any())

    def chunks_of(self) -> NDArray[np.int64]:
        """Stages that each rank holds, for one copy of the weights, int64[copies, ranks]."""
        return np.stack([np.bincount(row, minlength=self.ranks) for row in self.placement])

    def rank_of(self) -> NDArray[np.int32]:
        """The rank of each row, int32[ops]."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    def copy_of(self, unit: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The copy of the weights that each unit passes, uint8, of the shape of ``unit``."""
        if self.route is None:
            return np.zeros(unit.shape, np.uint8)
        return self.route[unit]

    def op(self, row: int) -> Op:
        """The op of one row, for people."""
        return Op(Kind(self.kind[row]), int(self.stage[row]), int(self.unit[row]))

    def row(self, rank: int) -> Iterator[Op]:
        """The ops of one rank in order, for people."""
        return (self.op(i) for i in range(self.offsets[rank], self.offsets[rank + 1]))

    def same_order(self, other: Schedule) -> bool:
        """Whether both put the same ops in the same order on the same ranks."""
        for column in ("offsets", "kind", "stage", "unit"):
            if not np.array_equal(getattr(self, column), getattr(other, column)):
                return False
        return np.array_equal(self._pairs(), other._pairs())

    def _pairs(self) -> NDArray[np.int64]:
        """The second op of each overlapped pair."""
        if self.joined is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.joined)


def from_rows(
    name: str,
    rows: Sequence[Sequence[Op]],
    placement: Sequence[int] | NDArray[np.int32],
    microbatches: int,
    *,
    source: str = "generated",
    slices: int = 1,
    joined: Sequence[Sequence[bool]] | None = None,
    route: Sequence[int] | None = None,
) -> Schedule:
    """A schedule from a list of ops per rank: for small and hand-written orders."""
    flat = [op for row in rows for op in row]
    flags = copies = None
    if joined is not None:
        flags = np.array([flag for row in joined for flag in row], np.bool_)
    if route is not None:
        copies = np.asarray(route, np.uint8)
    return Schedule(
        name=name,
        source=source,
        microbatches=microbatches,
        placement=np.atleast_2d(np.asarray(placement, np.int32)),
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        kind=np.array([op.kind for op in flat], np.uint8),
        stage=np.array([op.stage for op in flat], np.int32),
        unit=np.array([op.microbatch for op in flat], np.int32),
        slices=slices,
        route=copies,
        joined=flags,
    )


def loop_placement(ranks: int, chunks: int) -> NDArray[np.int32]:
    """Stage ``s`` on rank ``s mod ranks``, int32[1, stages]."""
    return np.tile(np.arange(ranks, dtype=np.int32), chunks)[None, :]


def v_placement(ranks: int) -> NDArray[np.int32]:
    """Two chunks a rank: stages go up the ranks and come back down, int32[1, 2 x ranks]."""
    # rank     0   1   2   3
    # stages   0   1   2   3
    #          7   6   5   4
    up = np.arange(ranks, dtype=np.int32)
    return np.concatenate([up, up[::-1]])[None, :]


def two_way_placement(ranks: int) -> NDArray[np.int32]:
    """Two copies of the weights, run against each other: stage ``s`` on ``s`` and ``ranks-1-s``, int32[2, ranks]."""
    # rank     0   1   2   3
    # copy 0   0   1   2   3      micro-batches go up
    # copy 1   3   2   1   0      and down
    up = np.arange(ranks, dtype=np.int32)
    return np.stack([up, up[::-1]])


class Release(Enum):
    """When the activations of a split backward are freed; a full backward always frees them at its end.

    The V papers free them at W; the zero-bubble scheduler frees half at I and half at W; I alone is the optimist.
    """

    W = "w"
    HALF = "half"
    I = "i"  # noqa: E741 - PyTorch's letter


# Change in half activations at the end of I and of W.
FREED = {Release.W: (0, -2), Release.HALF: (-1, -1), Release.I: (-2, 0)}


def peak_activations(schedule: Schedule, release: Release = Release.W) -> NDArray[np.float64]:
    """The most activations that each rank holds at once, in micro-batches of that rank, float64[ranks].

    A chunk counts as 1/chunks of a micro-batch, a slice of a sequence as 1/slices.
    """
    # Over all ranks: only differences are of one rank.
    held = np.concatenate([[0], np.cumsum(changes_of_activations(schedule, release))])
    first = schedule.offsets[:-1]
    top = np.zeros(schedule.ranks, np.int64)
    full = np.diff(schedule.offsets) > 0
    if full.any():
        top[full] = np.maximum.reduceat(held[1:], first[full]) - held[first[full]]
    share = 2 * schedule.slices * schedule.chunks_of().max(axis=0)
    peak: NDArray[np.float64] = top / np.maximum(share, 1)
    return peak


def changes_of_activations(schedule: Schedule, release: Release) -> NDArray[np.int64]:
    """Change in half activations of a chunk (or slice of one) at each op, int64[ops]."""
    if schedule.forward_only:  # inference keeps nothing for a backward
        return np.zeros(len(schedule), np.int64)
    at_i, at_w = FREED[release]
    by_kind = {Kind.F: 2, Kind.I: at_i, Kind.W: at_w, Kind.B: -2}
    return np.array([by_kind[kind] for kind in Kind], np.int64)[schedule.kind]
