"""A schedule: for each rank the order of its ops, and where each stage lives. It has no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import Fault, InputError
from .op import Kind, Op
from .results import Pictured

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
