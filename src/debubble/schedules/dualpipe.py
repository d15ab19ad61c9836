"""DualPipe: two pipelines run against each other over two copies of the weights, forwards overlapping backwards.

Source: DeepSeek-AI, DeepSeek-V3 technical report, https://arxiv.org/abs/2412.19437, section 3.2.1;
https://github.com/deepseek-ai/DualPipe.

Copy 0 has stage s on rank s, copy 1 on rank p-1-s. Micro-batches 0 to m/2-1 pass copy 0, the others copy 1. On rank r
lane 0 is the copy that enters from the nearer end (its stage h = min(r, p-1-r)), lane 1 the other (its stage p-1-h).
Steps: ``eight_steps.py`` with n = p/2, distance h and k = m/2. The gradients of the two copies of a stage, on ranks r
and p-1-r, are summed after the step.

p = 4, m = 8, F = I = W, B = I + W; copy 1 takes 4 to 7:

    rank 0  F0 F1 F2 F4 I4 W4 F5 F3&B5---  . F6&B0--- B6---  . F7&B1--- B7--- I2 W2 I3 W3
    rank 1   . F0 F4 F1 F5 F2 B4--- F6&B0--- F3&B5--- F7&B1--- B6--- B2---  . I7 I3 W7 W3
    rank 2   . F4 F0 F5 F1 F6 B0--- F2&B4--- F7&B1--- F3&B5--- B2--- B6---  . I3 I7 W3 W7
    rank 3  F4 F5 F6 F0 I0 W0 F1 F7&B1---  . F2&B4--- B2---  . F3&B5--- B3--- I6 W6 I7 W7
"""

from __future__ import annotations

import numpy as np

from ..core.schedule import Schedule, Shape, two_way_placement
from .eight_steps import eight_steps
from .entry import Entry
from .rows import numbered
from .rules import TWO_COPIES, check, multiple


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


ENTRY = Entry(
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
