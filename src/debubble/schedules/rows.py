"""Rows written as bytes, one byte an op, so that "n × (..)" of a construction is Python's own repetition.

A byte says kind, lane and whether the op runs together with the one before it. A lane is one of several pipelines
that cross a rank: a chunk of it, or a direction. Which micro-batch an op works on is not written: it is the next one
of its lane and kind.

    2 * F + 3 * (F1 + B1) + joined(F, B1)      0F 0F  1F 1B 1F 1B 1F 1B  [0F & 1B]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Kind, Schedule, Shape, loop_placement, v_placement

LANE = 4
_JOINED = 128
F, I, W, B = (bytes([kind]) for kind in Kind)  # noqa: E741 - PyTorch's letter
F1, I1, W1, B1 = (bytes([LANE + kind]) for kind in Kind)

_KIND = np.arange(256, dtype=np.uint8) % LANE
_GRADIENT = np.array([Kind.F, Kind.I, Kind.W, Kind.I], np.uint8)  # B counts as I: both yield the gradient


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Rows of all ranks behind each other, as columns.

    Args:
        offsets: first op of each rank, int64[ranks + 1].
        rank: int32[ops].
        kind: uint8[ops].
        lane: uint8[ops].
        turn: which op of its lane and kind on its rank, from 0, int32[ops]; the k-th W is that of the k-th I.
        joined: bool[ops], or None where no op is joined to another.
    """

    offsets: NDArray[np.int64]
    rank: NDArray[np.int32]
    kind: NDArray[np.uint8]
    lane: NDArray[np.uint8]
    turn: NDArray[np.int32]
    joined: NDArray[np.bool_] | None


def joined(first: bytes, second: bytes) -> bytes:
    """Two ops that run together, as an overlapped pair."""
    return first + bytes([second[0] | _JOINED])


def weights_of(row: bytes) -> bytes:
    """The W of each I of a row, in the same order."""
    return bytes(code + Kind.W - Kind.I for code in row if code % LANE == Kind.I)


def alternate(warm_up: int, n: int, lag: int | None = None, *, pairs: bool = False) -> bytes:
    """The row of a rank with n forwards and n backwards: some forwards, then one of each in turn, then the rest.

        warm-up 3, n = 5             F F F  F B F B  B B B
        the same, split, lag 1       F F F  F I F I W  I W I W I W  W

    Args:
        warm_up: forwards before forwards and backwards alternate; all of them where that is more than n.
        n: forwards, and backwards.
        lag: split the backward, and let the j-th W follow the (j + lag)-th I, so that at most lag of them are
            waiting; None for full backwards.
        pairs: whether each forward and the full backward after it run as one slot.
    """
    w = min(warm_up, n)
    if lag is None:
        turn = joined(F, B) if pairs else F + B
        return w * F + (n - w) * turn + w * B
    waiting = min(lag, n)
    early = min(waiting, n - w)  # the first I, which no W follows, may end among the forwards or behind them
    steady = early * (F + I) + (n - w - early) * (F + I + W)
    cool_down = (waiting - early) * I + (w - waiting + early) * (I + W)
    return w * F + steady + cool_down + waiting * W


def numbered(rows: Sequence[bytes]) -> Numbered:
    """Read rows, one a rank, and count the ops of each lane and kind."""
    code = np.frombuffer(b"".join(rows), np.uint8)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    together = code >= _JOINED
    turn = np.empty(len(code), np.int32)
    for first, last in pairwise(offsets):
        turn[first:last] = _turns(code[first:last] % _JOINED)
    return Numbered(
        offsets=offsets,
        rank=np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(offsets)),
        kind=_KIND[code],
        lane=code % _JOINED // LANE,
        turn=turn,
        joined=together if together.any() else None,
    )


def _turns(code: NDArray[np.uint8]) -> NDArray[np.int32]:
    turn = np.empty(len(code), np.int32)
    group = code - _KIND[code] + _GRADIENT[_KIND[code]]
    for key in np.flatnonzero(np.bincount(group)):
        here = np.flatnonzero(group == key)
        turn[here] = np.arange(len(here))
        if key % LANE == Kind.W:
            turn[here] = turn[code == key - Kind.W + Kind.I]
    return turn


def linear(name: str, shape: Shape, rows: Sequence[bytes]) -> Schedule:
    """The schedule of rows with one stage a rank."""
    ops = numbered(rows)
    return Schedule(
        name=name,
        source="generated",
        microbatches=shape.microbatches,
        placement=loop_placement(shape.ranks, 1),
        offsets=ops.offsets,
        kind=ops.kind,
        stage=ops.rank,
        unit=ops.turn,
    )


def looped(name: str, shape: Shape, rows: Sequence[bytes], group: int) -> Schedule:
    """The schedule of rows of one lane whose ops go round a loop of chunks in groups of micro-batches.

    Stage = chunk x p + rank. A rank passes a group of N micro-batches through its chunks upward, one chunk after the
    other, and its gradients downward; a last, shorter group of n micro-batches has n in the place of N:

        k-th forward: group g = k div (N v), chunk (k mod N v) div N, micro-batch g N + (k mod N)
        k-th backward (and W): the same with the chunk mirrored, v-1-chunk
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    k = np.arange(m * v, dtype=np.int32)
    g, inside = np.divmod(k, group * v)
    size = np.where(g < m // group, group, m % group or group)
    chunk, microbatch = inside // size, g * group + inside % size
    ops = numbered(rows)
    upward = chunk[ops.turn]
    from_first = np.where(ops.kind == Kind.F, upward, v - 1 - upward)
    return Schedule(
        name=name,
        source="generated",
        microbatches=m,
        placement=loop_placement(p, v),
        offsets=ops.offsets,
        kind=ops.kind,
        stage=(from_first * p + ops.rank).astype(np.int32),
        unit=microbatch[ops.turn].astype(np.int32),
        joined=ops.joined,
    )


def v_shaped(name: str, shape: Shape, rows: Sequence[bytes], *, last: int | None = None) -> Schedule:
    """The schedule of rows whose lanes are the two chunks of a rank: stages r and 2p-1-r.

    Args:
        name: of the schedule.
        shape: of the pipeline.
        rows: one a rank; lane 0 is chunk 0.
        last: drop the micro-batches from this one on; None drops none.
    """
    ops = numbered(rows)
    keep = slice(None) if last is None else ops.turn < last
    rank = ops.rank[keep]
    return Schedule(
        name=name,
        source="generated",
        microbatches=shape.microbatches,
        placement=v_placement(shape.ranks),
        offsets=np.searchsorted(rank, np.arange(shape.ranks + 1)).astype(np.int64),
        kind=ops.kind[keep],
        stage=np.where(ops.lane[keep] == 0, rank, 2 * shape.ranks - 1 - rank).astype(np.int32),
        unit=ops.turn[keep],
        joined=None if ops.joined is None else ops.joined[keep],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Clocked:
    """Ops in any order, each with its slot, as columns.

    Args:
        slot: int64[ops].
        rank: int32[ops].
        kind: uint8[ops].
        stage: int32[ops].
        unit: int32[ops].
    """

    slot: NDArray[np.int64]
    rank: NDArray[np.int32]
    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]


def by_slot(
    name: str, shape: Shape, ops: Clocked, placement: NDArray[np.int32], route: NDArray[np.uint8] | None = None
) -> Schedule:
    """The schedule of ops with slots; no two ops of a rank share one."""
    order = np.lexsort((ops.slot, ops.rank))
    return Schedule(
        name=name,
        source="generated",
        microbatches=shape.microbatches,
        placement=placement,
        offsets=np.searchsorted(ops.rank[order], np.arange(shape.ranks + 1)).astype(np.int64),
        kind=ops.kind[order],
        stage=ops.stage[order],
        unit=ops.unit[order],
        route=route,
    )
