"""The catalog: every schedule by the name that the command line knows it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.errors import nearest
from ..core.schedule import Schedule, Shape
from .chimera import chimera
from .dualpipe import dualpipe
from .dualpipe_v import dualpipe_v
from .eager_1f1b import eager_1f1b
from .forward_only import inference
from .gpipe import gpipe
from .hanayo import hanayo
from .interleaved import interleaved
from .interleaved_zb import interleaved_zb
from .looped_bfs import looped_bfs
from .one_f_one_b import one_f_one_b
from .one_f_one_b_v import one_f_one_b_v
from .seq1f1b import seq1f1b
from .v_half import v_half
from .v_min import v_min
from .zb_h1 import zb_h1
from .zb_h2 import zb_h2
from .zb_v import zb_v


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalog.

    Formulas use p ranks, m micro-batches, v chunks, s slices, N micro-batches in a group (p where none is given, and
    m / max(1, m div p) in interleaved-zb); F, I, W, B are times of a micro-batch on a rank, F&B that of an overlapped
    pair. They hold for even stages and free transfers.

    Args:
        name: as typed.
        build: makes the schedule for a shape.
        placement: where stages live, in a word or two.
        needs: what a shape must satisfy, or an empty string.
        bubble: idle time beyond the work of a rank, with the barrier that ends a step.
        bubble_holds: the condition under which ``bubble`` is exact, or an empty string.
        activations: peak on the worst rank, in micro-batches of a rank.
        paper: where it was published.
        chunks: chunks a rank where none are asked for.
        not_on_torch: why ``torch.distributed.pipelining`` cannot run it, or an empty string.
    """

    name: str
    build: Callable[[Shape], Schedule]
    placement: str
    needs: str
    bubble: str
    activations: str
    paper: str
    bubble_holds: str = ""
    chunks: int = 1
    not_on_torch: str = ""


_TWO_COPIES = "it has no place for two copies of a stage"
_SLICES = "it has no slices: a stage takes each micro-batch once"

CATALOG = {
    entry.name: entry
    for entry in (
        Entry("gpipe", gpipe, "linear", "", "(p-1)(F+B)", "m", "arXiv:1811.06965"),
        Entry("1f1b", one_f_one_b, "linear", "", "(p-1)(F+B)", "min(p, m)", "arXiv:2006.09503"),
        Entry("eager-1f1b", eager_1f1b, "linear", "", "(p-1)(F+B)", "min(2p-1, m)", "arXiv:2211.05322"),
        Entry(
            "interleaved",
            interleaved,
            "loop",
            "p <= N <= m; m % N = 0 or m % N >= p",
            "(p-1)(F+B)/v",
            "min(2(p-1)+(v-1)N+1, m v)/v",
            "arXiv:2104.04473",
        ),
        Entry("looped-bfs", looped_bfs, "loop", "", "(p-1)(F+B)/v", "m", "arXiv:2211.05953", "m >= p"),
        Entry("zb-h1", zb_h1, "linear", "", "(p-1)(F+I-W)", "min(p, m)", "arXiv:2401.10241", "W <= F <= I, m >= p"),
        Entry(
            "zb-h2",
            zb_h2,
            "linear",
            "",
            "(p-1)max(F, F+I-2W)",
            "min(2p-1, m)",
            "arXiv:2401.10241",
            "W <= F <= I, m >= 2p-1",
        ),
        Entry(
            "interleaved-zb",
            interleaved_zb,
            "loop",
            "m % max(1, m div p) = 0",
            "(p-1)F/v",
            "min(p-1+(v-1)N+1, m v)/v",
            "arXiv:2401.10241",
            "F = I = W, m >= p",
        ),
        Entry("zb-v", zb_v, "V", "v = 2", "(p-1)F/2", "min(p, m)", "arXiv:2401.10241", "F = I = W, m >= 2p-1", 2),
        Entry(
            "1f1b-v",
            one_f_one_b_v,
            "V",
            "v = 2",
            "<= (p-1)(F+B)",
            "min(2p div 3 + 1, m)",
            "arXiv:2405.15362",
            "B = 2F",
            2,
        ),
        Entry(
            "v-half",
            v_half,
            "V",
            "v = 2",
            "(3p-7)F/2",
            "min(p div 2 + 1, m)",
            "arXiv:2405.15362",
            "F = I = W, p % 2 = 0, p >= 4, m >= p+2",
            2,
        ),
        Entry(
            "v-min",
            v_min,
            "V",
            "v = 2",
            "(4p-5)F/2",
            "min((p+4) div 3, m)",
            "arXiv:2405.15362",
            "F = I = W, p % 3 > 0, p >= 4, m >= p",
            2,
        ),
        Entry(
            "dualpipe",
            dualpipe,
            "two-way, 2 copies",
            "p % 2 = 0; m % 2 = 0; m >= 2p",
            "(p/2-1)(F&B+F-2W)",
            "p+1",
            "arXiv:2412.19437",
            "W <= I <= F, F&B >= F, F&B >= B",
            not_on_torch=_TWO_COPIES,
        ),
        Entry(
            "dualpipe-v",
            dualpipe_v,
            "V",
            "v = 2; m >= 2p",
            "(p-1)(F&B+F-2W)/2",
            "p+1/2",
            "arXiv:2412.19437",
            "W <= I <= F, F&B >= F, F&B >= B",
            2,
        ),
        Entry(
            "chimera",
            chimera,
            "two-way, 2 copies",
            "p % 2 = 0",
            "(p/2-1)(F+B)",
            "min(p, m)",
            "arXiv:2107.06925",
            "F = B, m % p = 0",
            not_on_torch=_TWO_COPIES,
        ),
        Entry(
            "hanayo",
            hanayo,
            "snake",
            "v % 2 = 0",
            "(p-1)(F+B)/v",
            "min(p, m)",
            "arXiv:2308.15762",
            "F = B, m % p = 0",
            2,
        ),
        Entry(
            "seq1f1b",
            seq1f1b,
            "linear",
            "",
            "(p-1)(F+B)/s",
            "min(p-1+s, m s)/s",
            "arXiv:2406.03488",
            not_on_torch=_SLICES,
        ),
        Entry("forward-only", inference, "loop", "", "(p-1)F/v", "0", "", "m >= p"),
    )
}


def build(name: str, shape: Shape) -> Schedule:
    """The schedule of this name for this shape; one chunk a rank counts as not asked for where it has more.

    Raises:
        InputError: no schedule has this name, or the shape does not suit it.
    """
    if name not in CATALOG:
        raise nearest(name, CATALOG, "schedule")
    entry = CATALOG[name]
    return entry.build(replace(shape, chunks=entry.chunks) if shape.chunks == 1 else shape)
