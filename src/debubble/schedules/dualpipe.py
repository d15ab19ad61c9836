"""DualPipe and DualPipeV: two pipelines cross every rank, and the forward of one overlaps the backward of the other.

Source: DeepSeek-AI, DeepSeek-V3 technical report, https://arxiv.org/abs/2412.19437, section 3.2.1, and
https://github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import Fault
from ..core.schedule import Schedule, Shape, two_way_placement
from .entry import TWO_COPIES, Entry, check, multiple
from .rows import B1, F1, I1, W1, B, F, I, joined, numbered, v_shaped, weights_of


# The eight steps that DualPipe and DualPipeV share: two pipelines cross a rank, and F of one overlaps B of the other.
#
# A rank at distance h from the side where lane 0 enters, n-1-h from the end, runs k ops of each kind in each lane. In
# front of the letter stands the lane; brackets hold an overlapped pair. Steps:
#     (1) 2(n-h-1) × 0F
#     (2) h+1 × (0F 1F)
#     (3) n-h-1 × (1I 1W 1F)
#     (4) k-2n+h+1 × ([0F & 1B] [1F & 0B]); where the lanes meet (h = n-1), the very first pair one after the other
#     (5) n-h-1 × (1B [1F & 0B])
#     (6) h+1 × (1B 0B), of which the second half are I instead of B
#     (7) n-h-1 × (oldest W, 0I)
#     (8) h+1 × oldest W
def eight_steps(n: int, h: int, k: int) -> bytes:
    """The row of a rank; k must be at least 2n."""
    end = n - 1 - h
    pair_0, pair_1 = joined(F, B1), joined(F1, B)
    first = F + B1 if end == 0 else pair_0
    ending = ((h + 1) * (B1 + B))[: h + 1] + ((h + 1) * (I1 + I))[h + 1 :]  # (6)
    weights = weights_of(ending + end * I)
    return (
        2 * end * F  # (1)
        + (h + 1) * (F + F1)  # (2)
        + end * (I1 + W1 + F1)  # (3)
        + first  # (4)
        + pair_1
        + (k - 2 * n + h) * (pair_0 + pair_1)
        + end * (B1 + pair_1)  # (5)
        + ending
        + b"".join(weights[i : i + 1] + I for i in range(end))  # (7)
        + weights[end:]  # (8)
    )


# DualPipe: two pipelines run against each other over two copies of the weights, forwards overlapping backwards.
#
# Copy 0 has stage s on rank s, copy 1 on rank p-1-s. Micro-batches 0 to m/2-1 pass copy 0, the others copy 1. On rank r
# lane 0 is the copy that enters from the nearer end (its stage h = min(r, p-1-r)), lane 1 the other (its stage p-1-h).
# Steps: ``eight_steps`` with n = p/2, distance h and k = m/2. The gradients of the two copies of a stage, on ranks r
# and p-1-r, are summed after the step.
#
# p = 4, m = 8, F = I = W, B = I + W; copy 1 takes 4 to 7:
#
#     rank 0  F0 F1 F2 F4 I4 W4 F5 F3&B5---  . F6&B0--- B6---  . F7&B1--- B7--- I2 W2 I3 W3
#     rank 1   . F0 F4 F1 F5 F2 B4--- F6&B0--- F3&B5--- F7&B1--- B6--- B2---  . I7 I3 W7 W3
#     rank 2   . F4 F0 F5 F1 F6 B0--- F2&B4--- F7&B1--- F3&B5--- B2--- B6---  . I3 I7 W3 W7
#     rank 3  F4 F5 F6 F0 I0 W0 F1 F7&B1---  . F2&B4--- B2---  . F3&B5--- B3--- I6 W6 I7 W7
def dualpipe(shape: Shape) -> Schedule:
    """DualPipe; the worst rank holds p + 1 micro-batches of one stage.

    Raises:
        InputError: p or m is odd, or m below 2p.
    """
    p, m = shape.ranks, shape.microbatches
    check(
        "dualpipe",
        shape,
        multiple("ranks", p, 2, "dualpipe joins ranks in pairs, one for each direction", least=2),
        multiple("microbatches", m, 2, f"dualpipe sends half of them each way, {p} or more", least=2 * p),
    )
    distance = [min(r, p - 1 - r) for r in range(p)]
    ops = numbered([eight_steps(p // 2, h, m // 2) for h in distance])
    copy = ops.lane ^ (ops.rank >= p // 2)
    return Schedule(
        name="dualpipe",
        source="generated",
        microbatches=m,
        placement=two_way_placement(p),
        offsets=ops.offsets,
        kind=ops.kind,
        stage=np.where(copy == 0, ops.rank, p - 1 - ops.rank).astype(np.int32),
        unit=ops.turn + copy * np.int32(m // 2),
        route=np.repeat(np.arange(2, dtype=np.uint8), m // 2),
        joined=ops.joined,
    )


DUALPIPE = Entry(
    name="dualpipe",
    build=dualpipe,
    not_on_torch=TWO_COPIES,
    paper="arXiv:2412.19437",
    placement="two-way, 2 copies",
    needs="p % 2 = 0; m % 2 = 0; m >= 2p",
    splits=True,
    bubble="(p/2-1)(F&B+F-2W)",
    bubble_holds="W <= I <= F, F&B >= F, F&B >= B",
    activations="p+1",
)


# DualPipeV: DualPipe cut in half; the two directions become the arms of a V, and one copy of the weights will do.
#
# Source: https://github.com/deepseek-ai/DualPipe (DualPipeV), after Sea AI Lab's "cut-in-half" of DualPipe,
# https://hackmd.io/@ufotalent/r1lVXsa9Jg; PyTorch's ``ScheduleDualPipeV``.
#
# Rank r holds stages r (lane 0) and 2p-1-r (lane 1). Steps: ``eight_steps`` with n = p, distance r and k = m.
# Only pairs that really overlap pay: pairs that save nothing cost what the schedule saves.
#
# p = 2, m = 4, F = I = W, B = I + W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1---  . f2&B0--- b2---  . f3&B1--- b3--- I2 W2 I3 W3
#     rank 1   . F0 f0 F1 f1 F2 b0--- f2&B0--- F3&b1--- f3&B1--- b2--- B2---  . i3 I3 w3 W3
def dualpipe_v(shape: Shape) -> Schedule:
    """DualPipeV; the worst rank holds 2p + 1 chunks of a micro-batch, p + 1/2 micro-batches.

    Raises:
        InputError: m below 2p.
    """
    p, m = shape.ranks, shape.microbatches
    rule = f"dualpipe-v needs two for each of its {p} ranks"
    few = Fault(f"microbatches = {m}", rule, f"nearest: {2 * p}") if m < 2 * p else None
    check("dualpipe-v", shape, few, chunks=2)
    return v_shaped("dualpipe-v", shape, [eight_steps(p, r, m) for r in range(p)])


DUALPIPE_V = Entry(
    name="dualpipe-v",
    build=dualpipe_v,
    other_names=("cut-in-half",),
    torch="DualPipeV",
    paper="arXiv:2412.19437",
    placement="V",
    chunks=2,
    needs="v = 2; m >= 2p",
    splits=True,
    bubble="(p-1)(F&B+F-2W)/2",
    bubble_holds="W <= I <= F, F&B >= F, F&B >= B",
    activations="p+1/2",
)
