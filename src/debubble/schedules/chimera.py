"""Chimera: two pipelines run against each other over two copies of the weights; the bubble of 1F1B halves.

Source: Li and Hoefler, Chimera, https://arxiv.org/abs/2107.06925; blocks by its direct concatenation.

Copy 0 has stage s on rank s, copy 1 on rank p-1-s. Of each block of p micro-batches the first half passes copy 0, the
second copy 1; a last, shorter block is halved the same way. Steps: the clock of ``slots.py::waves`` for each copy, in
blocks of p/2. As p is even, one copy uses the even slots of a rank where the other uses the odd ones. The gradients
of the two copies of a stage are summed after the step.

p = 4, m = 4, B = F; copy 1 takes 2 and 3:

    rank 0  F0 F1  . F2 B2 F3 B3 B0  . B1
    rank 1   . F0 F2 F1 F3 B2 B0 B3 B1  .
    rank 2   . F2 F0 F3 F1 B0 B2 B1 B3  .
    rank 3  F2 F3  . F0 B0 F1 B1 B2  . B3
"""

from __future__ import annotations

import numpy as np

from ..core.schedule import Schedule, Shape, two_way_placement
from .entry import Entry
from .rules import TWO_COPIES, check, multiple
from .slots import by_slot, merged, waves


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


ENTRY = Entry(
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
