"""Interleaved zero bubble: ZB-H1's rule for W on interleaved chunks.

Sources: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 2.1 (ZB-H1), on the
loop of https://arxiv.org/abs/2104.04473; the order of PyTorch's ``ScheduleInterleavedZeroBubble``.

Micro-batches come in max(1, m div p) rounds of N each. Steps, on rank r of p with v chunks (which op is the k-th: see
``rows.py::looped``, with N for the group):
    (1) warm-up: w = p-1-r + (v-1)N forwards, or all; half the slope of interleaved 1F1B, as I is half of B
    (2) steady: one forward, one I; and one W as soon as more than r of them are waiting
    (3) cool-down: the I that are left, with W by the same rule
    (4) the W that are still waiting

p = 2, m = 4, F = I = W, v = 2; small letters are chunk 1:

    rank 0  F0 F1 f0 f1  . i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
    rank 1   . F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3
"""

from __future__ import annotations

from ..core.errors import Fault
from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, looped
from .rules import check


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


ENTRY = Entry(
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
