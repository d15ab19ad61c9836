"""Both ways at once: DualPipe, whose forwards overlap backwards; waves (Chimera, Hanayo), down the stages and up again.

Source of DualPipe and DualPipeV, in which two pipelines cross every rank: DeepSeek-AI, DeepSeek-V3 technical report,
https://arxiv.org/abs/2412.19437, section 3.2.1, and https://github.com/deepseek-ai/DualPipe. In waves each micro-batch
runs down the stages and at once up again, two slots apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault
from ..core.schedule import Kind, Schedule, Shape, two_way_placement
from .entry import TWO_COPIES, Entry, check, multiple
from .rows import B1, F1, I1, W1, B, Clocked, F, I, by_slot, joined, numbered, v_shaped, weights_of


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


def waves(placement: NDArray[np.int32], units: NDArray[np.int32], block: int) -> Clocked:
    """The clock of both, for F and B of one slot each.

    Micro-batches go in blocks. In a block that begins at slot t, the i-th one runs F of stage s in slot t + s + 2i and
    B in slot t + 2S-1-s + 2i; the next block begins 2S slots later, when the first has just filled them:

        stage 0   F . F . . . . B . B        S = 4, two in a block
        stage 1   . F . F . . B . B
        stage 2   . . F . F B . B
        stage 3   . . . F B F B

    Args:
        placement: rank of each stage, int32[stages].
        units: micro-batches that pass it, in order, int32[n].
        block: how many of them are in a block.
    """
    last = 2 * len(placement) - 1
    turn = np.arange(len(units))
    begins = turn // block * (last + 1) + 2 * (turn % block)
    stage = np.arange(len(placement), dtype=np.int32)
    slot = np.stack([begins + stage[:, None], begins + last - stage[:, None]])  # [F or B, stages, n]
    kind = np.array([Kind.F, Kind.B], np.uint8)[:, None, None]
    columns = np.broadcast_arrays(placement[:, None], kind, stage[:, None], units, slot)[:4]
    rank, kinds, stages, unit = (column.ravel() for column in columns)
    return Clocked(slot.ravel(), rank, kinds, stages, unit)


def merged(*clocks: Clocked) -> Clocked:
    """The ops of several clocks that run at the same time."""
    names = ("slot", "rank", "kind", "stage", "unit")
    return Clocked(*(np.concatenate([getattr(clock, name) for clock in clocks]) for name in names))


# Chimera: two pipelines run against each other over two copies of the weights; the bubble of 1F1B halves.
#
# Source: Li and Hoefler, Chimera, https://arxiv.org/abs/2107.06925; blocks by its direct concatenation.
#
# Copy 0 has stage s on rank s, copy 1 on rank p-1-s. Of each block of p micro-batches the first half passes copy 0, the
# second copy 1; a last, shorter block is halved the same way. Steps: the clock of ``waves`` for each copy, in
# blocks of p/2. As p is even, one copy uses the even slots of a rank where the other uses the odd ones. The gradients
# of the two copies of a stage are summed after the step.
#
# p = 4, m = 4, B = F; copy 1 takes 2 and 3:
#
#     rank 0  F0 F1  . F2 B2 F3 B3 B0  . B1
#     rank 1   . F0 F2 F1 F3 B2 B0 B3 B1  .
#     rank 2   . F2 F0 F3 F1 B0 B2 B1 B3  .
#     rank 3  F2 F3  . F0 B0 F1 B1 B2  . B3
def chimera(shape: Shape) -> Schedule:
    """Chimera for any even p and any m (its full effect for multiples of p); it was made for F = B.

    Raises:
        InputError: p is odd.
    """
    p, m = shape.ranks, shape.microbatches
    check("chimera", shape, multiple("ranks", p, 2, "chimera joins ranks in pairs, one for each direction", least=2))
    unit = np.arange(m, dtype=np.int32)
    size = np.minimum(p, m - unit // p * p)  # of the block
    route = (unit % p >= (size + 1) // 2).astype(np.uint8)
    placement = two_way_placement(p)
    clocks = [waves(placement[copy], unit[route == copy], p // 2) for copy in (0, 1)]
    return by_slot("chimera", shape, merged(*clocks), placement, route)


CHIMERA = Entry(
    name="chimera",
    build=chimera,
    not_on_torch=TWO_COPIES,
    paper="arXiv:2107.06925",
    placement="two-way, 2 copies",
    needs="p % 2 = 0",
    bubble="(p/2-1)(F+B)",
    bubble_holds="F = B, m % p = 0",
    activations="min(p, m)",
)


# Hanayo: the wave of Chimera in one copy of the weights; chunks lie as a snake that passes all ranks up and down.
#
# Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, https://arxiv.org/abs/2308.15762.
# w waves are v = 2w chunks; w = 1 is a V.
#
# Chunk c of rank r is stage c p + r where c is even, c p + p-1-r where it is odd. Steps: the clock of
# ``waves`` in blocks of p micro-batches. On every rank the two parities of slots are then full from its first
# op to its last of the block, so that only 2(p-1) slots stay idle: (p-1)(F+B)/(2w) where F = B.
#
# p = 3, m = 3, B = F; small letters are chunk 1:
#
#     rank 0  F0 F1 F2  .  . f0 b0 f1 b1 f2 b2 B0  . B1  . B2
#     rank 1   . F0 F1  . f0 F2 f1 b0 f2 b1 B0 b2 B1  . B2  .
#     rank 2   .  . F0 f0 F1 f1 F2 f2 b0 B0 b1 B1 b2 B2  .  .
def hanayo(shape: Shape) -> Schedule:
    """Hanayo for any p and m, with v/2 waves.

    Raises:
        InputError: the number of chunks is odd.
    """
    p = shape.ranks
    odd = multiple("chunks", shape.chunks, 2, "hanayo has two on each rank for each wave", least=2)
    check("hanayo", shape, odd, chunks=None)
    up = np.arange(p, dtype=np.int32)
    snake = np.tile(np.concatenate([up, up[::-1]]), shape.chunks // 2)
    clock = waves(snake, np.arange(shape.microbatches, dtype=np.int32), p)
    return by_slot("hanayo", shape, clock, snake[None, :])


HANAYO = Entry(
    name="hanayo",
    build=hanayo,
    paper="arXiv:2308.15762",
    placement="snake",
    chunks=2,
    any_chunks=True,
    needs="v % 2 = 0",
    bubble="(p-1)(F+B)/v",
    bubble_holds="F = B, m % p = 0",
    activations="min(p, m)",
)
