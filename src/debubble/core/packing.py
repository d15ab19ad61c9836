"""Packing: samples of unequal length are drawn and packed into micro-batches, and each step is simulated with them.

A step waits for the slowest of its replicas, and each pipeline for its longest micro-batches. How much of that packing
alone could spare is what the same samples take if they are dealt out longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .program import Program
from .schedule import KINDS
from .simulate import durations, simulate_many
from .units import MILLISECOND

Column = NDArray[np.float64]

PACKINGS = ("whole", "cut", "none")
SEED = 0
MOST_DRAWS, FEWEST_DRAWS = 200, 20  # steps; of fewer than 20 none is the 95th percentile
MOST_SAMPLES = 400_000  # that are drawn in all: a second of dealing out
MOST_OPS = 20_000_000  # that are simulated in all, likewise
MOST_CELLS = 20_000_000  # durations and hops that are held at once: 160 MB
COPIES = 4  # of them that a simulation takes: durations, and three parts of a hop
LATE = 95  # percentile


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """How long samples are.

    Args:
        said: by the user.
        tokens: of samples that stand for all, float64[n].
    """

    said: str
    tokens: Column


@dataclass(frozen=True, slots=True, eq=False)
class TimeByLength:
    """What a full micro-batch takes if all samples in it are of one length: attention is shorter the shorter they are.

    Between two lengths it is a straight line, as attention grows with the square of a length and its share of the
    tokens with the length.

    Args:
        tokens: of a sample, ascending; the last is the whole sequence, float64[n].
        durations: nanoseconds of each unit, float64[n, kinds, stages, 1 or units].
    """

    tokens: Column
    durations: Column

    @property
    def sequence(self) -> float:
        """Tokens of a full row."""
        return float(self.tokens[-1])

    def shares(self, tokens: Column) -> Column:
        """How much of a micro-batch at each of these lengths a sample is worth, float64[samples, n]."""
        grid = self.tokens
        below = np.clip(np.searchsorted(grid, tokens, side="right") - 1, 0, len(grid) - 2)
        along = np.clip((tokens - grid[below]) / (grid[below + 1] - grid[below]), 0, 1)
        found = np.zeros((len(tokens), len(grid)))
        sample = np.arange(len(tokens))
        found[sample, below] = 1 - along
        found[sample, below + 1] = along
        return found * (tokens / self.sequence)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples of unequal length, as they are packed.

    Args:
        lengths: from which they are drawn; one that is longer than a row is cut.
        sequence: tokens that a row has room for.
        packing: ``whole``: a sample that does not fit into what is left of a row begins the next; ``cut``: rows are cut
            from a stream of samples; ``none``: a row is one sample.
        attention_share: of the time of a row that is one sample, how much grows with the square of its length.
    """

    lengths: Lengths
    sequence: int
    packing: str = PACKINGS[0]
    attention_share: float = 0.0

    def times(self, full: NDArray[np.int64]) -> TimeByLength:
        """By durations of a full row: between attention of no length and of one sample, int64[kinds, stages, ..]."""
        shortest = (1 - self.attention_share) * full
        return TimeByLength(np.array([0.0, self.sequence]), np.stack([shortest, full.astype(np.float64)]))


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows of tokens a step has: ``micro_batch`` of them in each micro-batch of each replica."""

    microbatches: int
    micro_batch: int = 1
    replicas: int = 1

    @property
    def many(self) -> int:
        """All of a step."""
        return self.microbatches * self.micro_batch * self.replicas


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """Steps of unequal micro-batches.

    Args:
        expected_makespan_ms: mean over the steps that were drawn, each that of its slowest replica.
        p95_makespan_ms: 95th percentile.
        expected_idle_share: mean; idle over the ranks of all replicas.
        p95_idle_share: 95th percentile.
        most_tokens: of any one row: what memory must hold.
    """

    expected_makespan_ms: float
    p95_makespan_ms: float
    expected_idle_share: float
    p95_idle_share: float
    most_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalSamples:
    """What a distribution of lengths costs a schedule.

    Args:
        lengths: as they were given.
        packing: ``whole``, ``cut`` or ``none``.
        sequence: tokens that a row has room for.
        samples: in a step, mean.
        fill_share: of the room of all rows, how much holds tokens.
        draws: steps that were drawn.
        seed: of the draws.
        even_idle_share: with every micro-batch alike.
        as_they_come: rows are filled in the order in which samples are drawn.
        balanced: the same samples, longest first, each into the row that has least work.
        evidence: ``simulated``, or ``estimated`` if the durations are.
    """

    lengths: str
    packing: str
    sequence: int
    samples: float
    fill_share: float
    draws: int
    seed: int
    even_idle_share: float
    as_they_come: PackedSteps
    balanced: PackedSteps
    evidence: str


def unequal_samples(
    program: Program, costs: Costs, times: TimeByLength, rows: Rows, samples: Samples
) -> UnequalSamples:
    """Draw steps, pack their samples in both ways, and simulate every replica of each.

    Padding is not computed; hops take what they take of a full micro-batch.

    Args:
        program: the schedule, lowered.
        costs: of full micro-batches.
        times: what a full micro-batch takes by the length of its samples.
        rows: of a step.
        samples: of a step, and how they are packed.
    """
    lengths, packing = samples.lengths, samples.packing
    draws = _draws(program, rows, lengths, times.sequence)
    random = np.random.default_rng(SEED)
    usual, even, many = [], [], 0
    for _ in range(draws):
        packed = _PACKERS[packing](lengths, rows.many, times.sequence, random)
        usual.append(packed)
        even.append(balanced(packed, times, rows.replicas))
        many += len(packed.tokens)
    filled = sum(float(packed.tokens.sum()) for packed in usual) / (draws * rows.many * times.sequence)
    return UnequalSamples(
        lengths=lengths.said,
        packing=packing,
        sequence=samples.sequence,
        samples=many / draws,
        fill_share=filled,
        draws=draws,
        seed=SEED,
        even_idle_share=float(_idle(program, [costs], simulate_many(program, [costs])[:, None])[0]),
        as_they_come=_simulated(program, costs, times, rows, usual),
        balanced=_simulated(program, costs, times, rows, even),
        evidence="estimated" if costs.evidence == "estimated" else "simulated",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Samples of a step, and the row that each lies in, float64[samples] and int64[samples]."""

    tokens: Column
    row: NDArray[np.int64]
    rows: int

    def total(self, values: Column) -> Column:
        """The sum over the samples of each row, float64[rows]."""
        return np.bincount(self.row, values, self.rows).astype(np.float64)


def whole(lengths: Lengths, rows: int, room: float, random: np.random.Generator) -> Packed:
    """Rows are filled in turn; a sample that does not fit begins the next row."""
    drawn, ends = np.empty(0), np.empty(0)
    first, edges = 0, [0]
    while len(edges) <= rows:
        if first >= len(drawn) or ends[-1] - ends[first] < 2 * room:  # the next row must not run out of samples
            drawn = np.concatenate([drawn, np.minimum(random.choice(lengths.tokens, 64 + rows), room)])
            ends = np.cumsum(drawn)
        start = ends[first] - drawn[first]
        first = int(np.searchsorted(ends, start + room, side="right"))
        edges.append(first)
    return Packed(drawn[: edges[-1]], np.repeat(np.arange(rows), np.diff(edges)), rows)


def cut(lengths: Lengths, rows: int, room: float, random: np.random.Generator) -> Packed:
    """A stream of samples is cut into full rows, wherever that falls; it begins anywhere in a sample."""
    mean = float(lengths.tokens.mean())
    need = rows * room
    drawn = random.choice(lengths.tokens, int(need / mean) + 64)
    while drawn.sum() < need + drawn[0]:
        drawn = np.concatenate([drawn, random.choice(lengths.tokens, len(drawn))])
    ends = np.cumsum(drawn) - np.floor(random.uniform(0, drawn[0]))
    edges = np.unique(np.concatenate([[0.0], ends[(ends > 0) & (ends < need)], room * np.arange(1, rows + 1)]))
    row = np.minimum(edges[:-1] // room, rows - 1).astype(np.int64)
    return Packed(np.diff(edges), row, rows)


def alone(lengths: Lengths, rows: int, room: float, random: np.random.Generator) -> Packed:
    """Each row is one sample."""
    return Packed(np.minimum(random.choice(lengths.tokens, rows), room), np.arange(rows), rows)


_PACKERS = dict(zip(PACKINGS, (whole, cut, alone), strict=True))


def balanced(packed: Packed, times: TimeByLength, replicas: int = 1) -> Packed:
    """The same samples, longest first, each into the row that has least work so far (Graham's LPT rule).

    Rows are dealt to replicas like cards, heaviest first and every other round backwards, so that none gets all the
    long samples.
    """
    work = times.shares(packed.tokens) @ times.durations.mean(axis=3).sum(axis=(1, 2))
    rows = [(0.0, row) for row in range(packed.rows)]
    heapify(rows)
    dealt = np.empty(len(work), np.int64)
    for sample in np.argsort(-work, kind="stable").tolist():
        busy, row = rows[0]
        dealt[sample] = row
        heapreplace(rows, (busy + float(work[sample]), row))
    rounds = np.arange(packed.rows).reshape(-1, replicas)
    rounds[1::2] = rounds[1::2, ::-1]
    place = np.empty(packed.rows, np.int64)
    heaviest_first = np.argsort(-np.bincount(dealt, work, packed.rows), kind="stable")
    place[heaviest_first] = rounds.ravel()
    return Packed(packed.tokens, place[dealt], packed.rows)


def _draws(program: Program, rows: Rows, lengths: Lengths, sequence: float) -> int:
    """As many steps as can be simulated in seconds."""
    samples = rows.many * max(1.0, sequence / float(np.minimum(lengths.tokens, sequence).mean()))
    ops = len(program.schedule) * rows.replicas
    return int(np.clip(min(MOST_SAMPLES / samples, MOST_OPS / ops), FEWEST_DRAWS, MOST_DRAWS))


def _simulated(program: Program, costs: Costs, times: TimeByLength, rows: Rows, steps: Sequence[Packed]) -> PackedSteps:
    schedule = program.schedule
    cells = COPIES * KINDS * schedule.stages * schedule.units * rows.replicas
    at_once = max(1, MOST_CELLS // cells)
    found = []
    for first in range(0, len(steps), at_once):
        some = steps[first : first + at_once]
        replicas = [each for step in some for each in _of_replicas(program, costs, times, rows, step)]
        windows = simulate_many(program, replicas).reshape(len(some), rows.replicas)
        found.append((windows.max(axis=1), _idle(program, replicas, windows)))
    longest, idle = (np.concatenate(each) for each in zip(*found, strict=True))
    return PackedSteps(
        expected_makespan_ms=float(longest.mean()) / MILLISECOND,
        p95_makespan_ms=float(np.percentile(longest, LATE)) / MILLISECOND,
        expected_idle_share=float(idle.mean()),
        p95_idle_share=float(np.percentile(idle, LATE)),
        most_tokens=int(max(step.total(step.tokens).max() for step in steps)),
    )


def _of_replicas(program: Program, costs: Costs, times: TimeByLength, rows: Rows, step: Packed) -> list[Costs]:
    """What each replica's micro-batches take in a step."""
    shares = np.stack([step.total(each) for each in times.shares(step.tokens).T])
    # Row after row goes to the next replica. Those of a micro-batch run together: it takes their share of as many full
    # ones.
    shares = shares.reshape(len(shares), rows.microbatches, rows.micro_batch, rows.replicas).mean(axis=2)
    units = np.repeat(shares, program.schedule.slices, axis=1)
    found = []
    for replica in range(rows.replicas):
        spent = (times.durations * units[:, None, None, :, replica]).sum(axis=0)
        found.append(replace(costs, durations=np.rint(spent).astype(np.int64)))
    return found


def _idle(program: Program, replicas: Sequence[Costs], windows: NDArray[np.int64]) -> Column:
    """Idle share of each step over all its replicas, each of which waits for the slowest; float64[steps]."""
    joined = program.schedule.joined
    once = slice(None) if joined is None else ~joined  # a pair is work once
    work = np.reshape([int(durations(program, each)[once].sum()) for each in replicas], windows.shape)
    whole = program.schedule.ranks * windows.shape[1] * windows.max(axis=1)
    found: Column = 1 - work.sum(axis=1) / np.maximum(whole, 1)
    return found
