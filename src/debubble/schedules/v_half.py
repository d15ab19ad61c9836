"""V-Half: a V whose steps up and down are spaced so that ranks hold half of 1F1B's activations.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3 and its
building block "V-Half".

Steps:
    (1) building block: first slots on rank r, with d = 3 if p is even, else 0
            0F  2r        1F  3p-2-r        1I  3p-1+d+2r        0I  6p-2+d-r
    (2) repeat and pack it, as in ``building_block``

p = 4, m = 4, F = I = W; small letters are chunk 1:

    rank 0  F0 F1 F2 F3  .  .  . f0 i0 w0 f1 i1 w1 f2  .  . I0 i2 w2 f3 W0  . I1 i3 w3 W1  . I2 W2  .  .  . I3 W3
    rank 1   . F0 F1 F2 F3  . f0  . f1 i0 w0 f2 i1 w1  . I0 W0  . f3 i2 w2 I1 W1  . i3 w3 I2 W2  .  .  . I3 W3  .
    rank 2   .  . F0 F1 F2 f0  . f1  . f2 i0 w0 F3 i1 I0 w1 W0 f3  .  . I1 i2 w2 W1  . I2 i3 w3 W2  . I3 W3  .  .
    rank 3   .  .  . F0 f0 F1 f1 F2 f2  .  . i0 w0 I0 W0 F3 f3 i1 w1 I1 W1  . i2 w2 I2 W2  . i3 w3 I3 W3  .  .  .
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .building_block import packed, too_large
from .entry import Entry
from .rows import v_shaped
from .rules import check


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


ENTRY = Entry(
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
