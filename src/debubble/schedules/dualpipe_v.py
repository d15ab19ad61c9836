"""DualPipeV: DualPipe cut in half; the two directions become the arms of a V, and one copy of the weights will do.

Source: https://github.com/deepseek-ai/DualPipe (DualPipeV), after Sea AI Lab's "cut-in-half" of DualPipe,
https://hackmd.io/@ufotalent/r1lVXsa9Jg; PyTorch's ``ScheduleDualPipeV``.

Rank r holds stages r (lane 0) and 2p-1-r (lane 1). Steps: ``eight_steps.py`` with n = p, distance r and k = m.
Only pairs that really overlap pay: pairs that save nothing cost what the schedule saves.

p = 2, m = 4, F = I = W, B = I + W; small letters are chunk 1:

    rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1---  . f2&B0--- b2---  . f3&B1--- b3--- I2 W2 I3 W3
    rank 1   . F0 f0 F1 f1 F2 b0--- f2&B0--- F3&b1--- f3&B1--- b2--- B2---  . i3 I3 w3 W3
"""

from __future__ import annotations

from ..core.errors import Fault
from ..core.schedule import Schedule, Shape
from .eight_steps import eight_steps
from .entry import Entry
from .rows import v_shaped
from .rules import check


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


ENTRY = Entry(
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
