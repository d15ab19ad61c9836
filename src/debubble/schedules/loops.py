"""Chunks in a loop: breadth first, where all micro-batches pass a chunk before the next one, and interleaved, a group.

Breadth first are GPipe (one chunk), looped breadth-first (several), and inference, forwards alone; interleaved
schedules have full backwards or split ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import Fault
from ..core.schedule import Kind, Schedule, Shape
from .entry import Entry, check, multiple
from .rows import F, alternate, linear, looped


# GPipe (fill and drain): every forward, then every backward; all micro-batches are in flight at once.
#
# Source: Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3 and figure 2(c); backwards here in
# the order of the forwards.
#
# Steps, on every rank:
#     (1) m forwards
#     (2) m backwards
#
# p = 4, m = 4, B = 2F:
#
#     rank 0  F0 F1 F2 F3  .  .  .  .  .  .  .  .  . B0--- B1--- B2--- B3---
#     rank 1   . F0 F1 F2 F3  .  .  .  .  .  . B0--- B1--- B2--- B3---  .  .
#     rank 2   .  . F0 F1 F2 F3  .  .  . B0--- B1--- B2--- B3---  .  .  .  .
#     rank 3   .  .  . F0 F1 F2 F3 B0--- B1--- B2--- B3---  .  .  .  .  .  .
def gpipe(shape: Shape) -> Schedule:
    """GPipe for any p and m; every rank holds m micro-batches at its peak."""
    check("gpipe", shape)
    m = shape.microbatches
    return linear("gpipe", shape, [alternate(m, m)] * shape.ranks)


GPIPE = Entry(
    name="gpipe",
    build=gpipe,
    other_names=("AFAB", "F-then-B", "fill-drain"),
    torch="GPipe",
    paper="arXiv:1811.06965",
    placement="linear",
    hides_hops=True,
    bubble="(p-1)(F+B)",
    activations="m",
)


# Looped breadth-first: all micro-batches pass a chunk before the rank turns to the next one.
#
# Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, https://arxiv.org/abs/2211.05953; meant for few
# micro-batches beside sharded data parallelism, because a chunk's weights are gathered once.
#
# Steps, on every rank of p with v chunks:
#     (1) for each chunk upward: m forwards
#     (2) for each chunk downward: m backwards, in the order of the forwards
#
# p = 3, m = 3, B = 2F, v = 2; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 f0 f1 f2  .  .  .  .  .  . b0--- b1--- b2--- B0--- B1--- B2---
#     rank 1   . F0 F1 F2 f0 f1 f2  .  .  . b0--- b1--- b2--- B0--- B1--- B2---  .  .
#     rank 2   .  . F0 F1 F2 f0 f1 f2 b0--- b1--- b2--- B0--- B1--- B2---  .  .  .  .
def looped_bfs(shape: Shape) -> Schedule:
    """Looped breadth-first for any p, m and v; every rank holds m micro-batches at its peak."""
    check("looped-bfs", shape, chunks=None)
    ops = shape.microbatches * shape.chunks
    return looped("looped-bfs", shape, [alternate(ops, ops)] * shape.ranks, shape.microbatches)


LOOPED_BFS = Entry(
    name="looped-bfs",
    build=looped_bfs,
    other_names=("breadth-first", "BFS"),
    torch="LoopedBFS",
    paper="arXiv:2211.05953",
    placement="loop",
    chunks=2,
    any_chunks=True,
    hides_hops=True,
    bubble="(p-1)(F+B)/v",
    bubble_holds="m >= p",
    activations="m",
)


def forward_only(schedule: Schedule) -> Schedule:
    """The forwards of a schedule in their order; idle share (p-1)/(m+p-1) where the stages are even."""
    keep = schedule.kind == Kind.F
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    joined = schedule.joined
    if joined is not None:
        pairs = joined & keep & np.concatenate([[False], keep[:-1]])
        joined = pairs[keep] if pairs.any() else None
    return replace(
        schedule,
        name=f"{schedule.name} forward only",
        offsets=kept_before[schedule.offsets],
        kind=schedule.kind[keep],
        stage=schedule.stage[keep],
        unit=schedule.unit[keep],
        joined=joined,
    )


# Inference: forwards alone. Each rank passes all micro-batches through a chunk before it turns to the next one.
#
# p = 3, m = 4:
#
#     rank 0  F0 F1 F2 F3  .  .
#     rank 1   . F0 F1 F2 F3  .
#     rank 2   .  . F0 F1 F2 F3
def inference(shape: Shape) -> Schedule:
    """Forwards alone for any p, m and v."""
    check("forward-only", shape, chunks=None)
    m = shape.microbatches
    return looped("forward-only", shape, [m * shape.chunks * F] * shape.ranks, m)


FORWARD_ONLY = Entry(
    name="forward-only",
    build=inference,
    other_names=("inference",),
    placement="loop",
    any_chunks=True,
    trains=False,
    hides_hops=True,
    bubble="(p-1)F/v",
    bubble_holds="m >= p or v = 1",
    activations="0",
)


# Interleaved 1F1B: several chunks a rank shorten fill and drain by their number, for as many times the transfers.
#
# Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
# https://arxiv.org/abs/2104.04473, section 2.2 and figure 4; the group size N as in Megatron-LM's
# ``microbatch_group_size_per_vp_stage``: p runs depth first, m breadth first.
#
# Steps, on rank r of p with v chunks, m micro-batches in groups of N (which op is the k-th: see ``rows.py::looped``):
#     (1) warm-up: w = 2(p-1-r) + (v-1)N forwards, or all
#     (2) steady: one forward, one backward
#     (3) cool-down: the backwards that are left
#
# In pairs, as Megatron-Core's combined 1F1B runs them beside the all-to-alls of experts (``overlap_moe_expert_parallel_
# comm``; core/pipeline_parallel/combined_1f1b.py): one more forward in (1), or the last rank would have to run the
# forward and the backward of one micro-batch at once; in (2) a forward and the backward after it are one slot.
#
# p = 2, m = 4, B = 2F, v = 2; small letters are chunk 1:
#
#     rank 0  F0 F1 f0 f1 F2  . b0--- F3 b1--- f2 B0--- f3 B1---  . b2---  . b3--- B2--- B3---
#     rank 1   . F0 F1 f0 b0--- f1 b1--- F2 B0--- F3 B1--- f2 b2--- f3 b3--- B2--- B3---  .  .
def interleaved(shape: Shape) -> Schedule:
    """Interleaved 1F1B in Megatron's order, in groups of p unless the shape says otherwise.

    Raises:
        InputError: without a group, m is not a multiple of p; with a group of N, not p <= N <= m, or m leaves a
            last group of fewer than p.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    fault = _indivisible(p, m) if shape.group is None else _bad_group(p, m, shape.group)
    check("interleaved", shape, fault, chunks=None, takes=frozenset({"group", "pairs"}))
    group = shape.group or p
    more = (v - 1) * group + shape.pairs
    rows = [alternate(2 * (p - 1 - r) + more, m * v, pairs=shape.pairs) for r in range(p)]
    return looped("interleaved", shape, rows, group)


INTERLEAVED = Entry(
    name="interleaved",
    build=interleaved,
    other_names=("1F1B-I", "1F1B-interleaved", "VPP", "virtual pipeline"),
    torch="Interleaved1F1B",
    paper="arXiv:2104.04473",
    placement="loop",
    chunks=2,
    any_chunks=True,
    may_pair=True,
    needs="p <= N <= m; m % N = 0 or m % N >= p",
    bubble="(p-1)(F+B)/v",
    activations="min(2(p-1-r)+(v-1)N+1, m v)/v",
)


def smallest_group(ranks: int, microbatches: int) -> int | None:
    """The least group that so many micro-batches can go in; None where there is no one for each rank."""
    return next((n for n in range(ranks, microbatches + 1) if _suits(n, ranks, microbatches)), None)


def _indivisible(p: int, m: int) -> Fault | None:
    fault = multiple("microbatches", m, p, f"interleaved takes micro-batches in groups of {p}, one for each rank")
    if fault is None or m < p:
        return fault
    return Fault(fault.value, fault.rule, f"{fault.remedy}; or a group of {smallest_group(p, m)}")


def _bad_group(p: int, m: int, group: int) -> Fault | None:
    if m < p:
        rule = f"interleaved needs one micro-batch or more for each of its {p} ranks"
        return Fault(f"microbatches = {m}", rule, f"give {p} or more")
    if _suits(group, p, m):
        return None
    smaller = (n for n in range(min(group - 1, m), p - 1, -1) if _suits(n, p, m))
    larger = (n for n in range(max(group + 1, p), m + 1) if _suits(n, p, m))
    near = [n for n in (next(smaller, None), next(larger, None)) if n is not None]
    rule = f"a group, and the last one, holds from {p} (the ranks) to {m} (the micro-batches)"
    return Fault(f"group = {group}", rule, f"nearest: {' or '.join(map(str, near))}")


def _suits(group: int, p: int, m: int) -> bool:
    return p <= group <= m and (m % group == 0 or m % group >= p)


# Interleaved zero bubble: ZB-H1's rule for W on interleaved chunks.
#
# Sources: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 2.1 (ZB-H1), on the
# loop of https://arxiv.org/abs/2104.04473; the order of PyTorch's ``ScheduleInterleavedZeroBubble``.
#
# Micro-batches come in max(1, m div p) rounds of N each. Steps, on rank r of p with v chunks (which op is the k-th: see
# ``rows.py::looped``, with N for the group):
#     (1) warm-up: w = p-1-r + (v-1)N forwards, or all; half the slope of interleaved 1F1B, as I is half of B
#     (2) steady: one forward, one I; and one W as soon as more than r of them are waiting
#     (3) cool-down: the I that are left, with W by the same rule
#     (4) the W that are still waiting
#
# p = 2, m = 4, F = I = W, v = 2; small letters are chunk 1:
#
#     rank 0  F0 F1 f0 f1  . i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
#     rank 1   . F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3
def interleaved_zb(shape: Shape) -> Schedule:
    """Interleaved zero bubble for any p, v, and any m that its rounds divide.

    Raises:
        InputError: m is not a multiple of max(1, m div p).
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    rounds = _rounds(p, m)
    check("interleaved-zb", shape, None if m % rounds == 0 else _uneven(p, m), chunks=None)
    group = m // rounds
    rows = [alternate(p - 1 - r + (v - 1) * group, m * v, lag=r) for r in range(p)]
    return looped("interleaved-zb", shape, rows, group)


INTERLEAVED_ZB = Entry(
    name="interleaved-zb",
    build=interleaved_zb,
    other_names=("zb-interleaved",),
    torch="InterleavedZeroBubble",
    paper="arXiv:2401.10241",
    placement="loop",
    chunks=2,
    any_chunks=True,
    needs="m % max(1, m div p) = 0",
    splits=True,
    bubble="(p-1)F/v",
    bubble_holds="F = I = W, m >= p",
    activations="min(p-1+(v-1)(m/max(1, m div p))+1, m v)/v",
)


def _rounds(p: int, m: int) -> int:
    return max(1, m // p)


def _uneven(p: int, m: int) -> Fault:
    below = next(n for n in range(m - 1, 0, -1) if n % _rounds(p, n) == 0)
    above = next(n for n in range(m + 1, m + p + 1) if n % _rounds(p, n) == 0)  # a multiple of p at the latest
    rule = f"interleaved-zb takes them in {_rounds(p, m)} rounds of equal size"
    return Fault(f"microbatches = {m}", rule, f"nearest: {below} or {above}")
