"""GPipe (fill and drain): every forward, then every backward; all micro-batches are in flight at once.

Source: Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3 and figure 2(c); backwards here in
the order of the forwards.

Steps, on every rank:
    (1) m forwards
    (2) m backwards

p = 4, m = 4, B = 2F:

    rank 0  F0 F1 F2 F3  .  .  .  .  .  .  .  .  . B0--- B1--- B2--- B3---
    rank 1   . F0 F1 F2 F3  .  .  .  .  .  . B0--- B1--- B2--- B3---  .  .
    rank 2   .  . F0 F1 F2 F3  .  .  . B0--- B1--- B2--- B3---  .  .  .  .
    rank 3   .  .  . F0 F1 F2 F3 B0--- B1--- B2--- B3---  .  .  .  .  .  .
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, linear
from .rules import check


def gpipe(shape: Shape) -> Schedule:
    """GPipe for any p and m; every rank holds m micro-batches at its peak."""
    check("gpipe", shape)
    m = shape.microbatches
    return linear("gpipe", shape, [alternate(m, m)] * shape.ranks)


ENTRY = Entry(
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
