"""V-Half and V-Min: a V with a split backward, in half and in a third of the memory of 1F1B.

A micro-batch holds its place on a rank from F to W: the closer its way down the V and back up, the fewer are in flight.
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .building_block import packed, too_large
from .entry import Entry, check
from .rows import v_shaped


# V-Half: a V whose steps up and down are spaced so that ranks hold half of 1F1B's activations.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3
# ("V-Half").
#
# Steps:
#     (1) building block: first slots on rank r, with d = 3 if p is even, else 0
#             0F  2r        1F  3p-2-r        1I  3p-1+d+2r        0I  6p-2+d-r
#     (2) repeat and pack it, as in ``building_block``
#
# p = 4, m = 4, F = I = W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 F3  .  .  . f0 i0 w0 f1 i1 w1 f2  .  . I0 i2 w2 f3 W0  . I1 i3 w3 W1  . I2 W2  .  .  . I3 W3
#     rank 1   . F0 F1 F2 F3  . f0  . f1 i0 w0 f2 i1 w1  . I0 W0  . f3 i2 w2 I1 W1  . i3 w3 I2 W2  .  .  . I3 W3  .
#     rank 2   .  . F0 F1 F2 f0  . f1  . f2 i0 w0 F3 i1 I0 w1 W0 f3  .  . I1 i2 w2 W1  . I2 i3 w3 W2  . I3 W3  .  .
#     rank 3   .  .  . F0 f0 F1 f1 F2 f2  .  . i0 w0 I0 W0 F3 f3 i1 w1 I1 W1  . i2 w2 I2 W2  . i3 w3 I3 W3  .  .  .
def v_half(shape: Shape) -> Schedule:
    """V-Half for any p and m; every rank holds at most min(p div 2 + 1, m) micro-batches from F to W.

    Raises:
        InputError: chunks other than 2, or more ops than can be packed in a minute.
    """
    check("v-half", shape, *too_large("v-half", shape), chunks=2)
    p = shape.ranks
    d = 0 if p % 2 else 3

    def block(r: int) -> tuple[int, int, int, int]:  # (1)
        return 2 * r, 3 * p - 2 - r, 3 * p - 1 + d + 2 * r, 6 * p - 2 + d - r

    return v_shaped("v-half", shape, packed(p, shape.microbatches, block))  # (2)


V_HALF = Entry(
    name="v-half",
    build=v_half,
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(3p-7)F/2",
    bubble_holds="F = I = W, p % 2 = 0, p >= 4, m >= p+2",
    activations="min(p div 2 + 1, m)",
)


# V-Min: a V with no space between its steps: ranks hold a third of 1F1B's activations, and idle more.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3
# ("V-Min").
#
# Steps:
#     (1) building block: first slots on rank r, with d = 2 if p is a multiple of 3, else 0
#             0F  r        1F  2p-1-r        1I  2p+d+r        0I  4p-1+d-r
#     (2) repeat and pack it, as in ``building_block``
#
# Every micro-batch idles anew as soon as F, I and W differ or a transfer takes time.
#
# p = 4, m = 4, F = I = W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2  .  .  .  . f0 i0 w0 f1 i1 w1  .  . I0 W0 F3  . f2 i2 I1 w2 W1  . f3 i3 I2 w3 W2  .  .  . I3 W3
#     rank 1   . F0 F1  .  .  . f0  . f1 i0 w0 F2  .  . I0 i1 w1 W0 f2 F3 I1 i2 w2 W1 f3  . I2 i3 w3 W2  .  . I3 W3  .
#     rank 2   .  . F0 F1  . f0  . f1  .  . i0 w0 F2 I0 W0  . i1 f2 w1 I1 F3 W1 i2 f3 w2 I2 W2  . i3 w3  . I3 W3  .  .
#     rank 3   .  .  . F0 f0 F1 f1  .  .  .  . i0 I0 w0 W0 F2 f2 i1 I1 w1 W1 F3 f3 i2 I2 w2 W2  .  . i3 I3 w3 W3  .  .
def v_min(shape: Shape) -> Schedule:
    """V-Min for any p and m; every rank holds at most min((p+4) div 3, m) micro-batches from F to W.

    Raises:
        InputError: chunks other than 2, or more ops than can be packed in a minute.
    """
    check("v-min", shape, *too_large("v-min", shape), chunks=2)
    p = shape.ranks
    d = 0 if p % 3 else 2

    def block(r: int) -> tuple[int, int, int, int]:  # (1)
        return r, 2 * p - 1 - r, 2 * p + d + r, 4 * p - 1 + d - r

    return v_shaped("v-min", shape, packed(p, shape.microbatches, block))  # (2)


V_MIN = Entry(
    name="v-min",
    build=v_min,
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(4p-5)F/2",
    bubble_holds="F = I = W, p % 3 > 0, p >= 4, m >= p",
    activations="min((p+4) div 3, m)",
)
