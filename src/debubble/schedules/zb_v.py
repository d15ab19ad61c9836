"""ZB-V: two chunks a rank, laid out as a V, and a split backward: no bubble without a barrier, in 1F1B's memory.

Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241 (ZB-V); the order made
by hand for F = I = W, as PyTorch's ``ScheduleZBVZeroBubble`` also runs it.

Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1); in front of the letter stands the chunk. The order is built for
N = max(m, 2p-1) micro-batches, and those from m on are dropped. Steps, on rank r of p:
    (1) 2(p-r)-1 × 0F
    (2) r × (1F 0F)
    (3) p-r × (1F 1I 1W)
    (4) until 0F and 1F have reached N: (0F if any is left) 0I 0W 1F 1I 1W
    (5) r × (0I 1I)
    (6) p-r × (0I 0W)
    (7) the r × 1W that are left, then the r × 0W

p = 3, m = 5, F = I = W; small letters are chunk 1:

    rank 0  F0 F1 F2 F3 F4 f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1 f4 i4 w4 I2 W2 I3 W3 I4 W4  .  .
    rank 1   . F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 F4 I0 W0 f3 i2 w2 I1 W1 f4 i3 w3 I2 i4 I3 W2 I4 W3 w4 W4  .
    rank 2   .  . F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 F4 I1 W1 f4 i2 w2 I2 i3 I3 i4 I4 W2 w3 w4 W3 W4
"""

from __future__ import annotations

from ..core.errors import Fault
from ..core.schedule import Schedule, Shape
from .entry import Entry, check
from .rows import F1, I1, W1, F, I, W, v_shaped

_MOST_BUILT = 300_000_000  # bytes of rows, one an op: above 5,000 ranks, whatever micro-batches are kept of them


def zb_v(shape: Shape) -> Schedule:
    """ZB-V for any p and m (its full effect from m = 2p-1); every rank holds at most p micro-batches.

    Raises:
        InputError: more than the order of all 2p-1 micro-batches may take.
    """
    p, m = shape.ranks, shape.microbatches
    n = max(m, 2 * p - 1)
    rule = (
        f"zb-v is cut from the order of 2p-1 micro-batches or more, here {6 * p * n:,} ops of at most {_MOST_BUILT:,}"
    )
    many = Fault(f"ranks = {p:,}", rule, "give fewer ranks")
    check("zb-v", shape, many if 6 * p * n > _MOST_BUILT else None, chunks=2)
    return v_shaped("zb-v", shape, [_row(p, r, n) for r in range(p)], last=m)


ENTRY = Entry(
    name="zb-v",
    build=zb_v,
    other_names=("V-ZB",),
    torch="ZBVZeroBubble",
    paper="arXiv:2401.10241",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(p-1)F/2",
    bubble_holds="F = I = W, m >= 2p-1",
    activations="min(p, m)",
)


def _row(p: int, r: int, n: int) -> bytes:
    return (
        (2 * (p - r) - 1) * F  # (1)
        + r * (F1 + F)  # (2)
        + (p - r) * (F1 + I1 + W1)  # (3)
        + (n - 2 * p + 1 + r) * (F + I + W + F1 + I1 + W1)  # (4)
        + (p - 1 - r) * (I + W + F1 + I1 + W1)  # (4), no 0F left
        + r * (I + I1)  # (5)
        + (p - r) * (I + W)  # (6)
        + r * W1  # (7)
        + r * W
    )
