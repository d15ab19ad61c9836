"""The figure through matplotlib, for PNG and PDF: the same boxes, shares and hatches as the SVG.

matplotlib is the extra ``plot``; it is imported when a figure is drawn, and without its state of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np

from ..core.errors import Fault, InputError
from ..core.program import Timeline
from ..core.safe_output import inert
from ..core.schedule import Kind
from ..core.units import duration
from .scene import Scene, scene, shares

Axes = Any  # matplotlib's; the types of an extra are not asked of everyone
MOST_BOXES = 2000  # of a timeline; more are drawn as shares, as in the SVG
COLUMNS = 400  # of shares: some five dots each at 200 dpi

_WIDTH, _ROW, _AROUND = 9.6, 0.22, 0.95  # inches: the figure, a rank's row, title and axis of one timeline
_MOST_INCHES = 40.0  # of height: rows of more ranks are thinner
_LOOK = {  # colour, hatch and word of each kind, in the order in which shares are stacked
    Kind.F: ("#56b4e9", "", "forward"),
    Kind.B: ("#e69f00", "//", "backward"),
    Kind.I: ("#f0e442", "\\\\", "input gradient"),
    Kind.W: ("#29b38b", "..", "weight gradient"),
}


def plot(timelines: Sequence[tuple[str, Timeline]], form: str, *, dpi: int = 200) -> bytes:
    """Timelines one below the other on one time axis, as a file of matplotlib.

    Args:
        timelines: the title of each, or an empty string for the schedule's name, and what to draw.
        form: ``png`` or ``pdf``.
        dpi: dots per inch of a PNG.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        rule = "PNG and PDF are drawn by matplotlib, which is not installed"
        raise InputError(Fault(f"--{form}", rule, "pip install 'debubble[plot]', or write --svg")) from error
    scenes = [scene(timeline) for _, timeline in timelines]
    heights = [_AROUND + min(_ROW * laid.schedule.ranks, _MOST_INCHES) for laid in scenes]
    drawn = figures.Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    panels = drawn.subplots(len(scenes), 1, squeeze=False, height_ratios=heights)[:, 0]
    axis = max(laid.window for laid in scenes)
    for panel, (title, _), laid in zip(panels, timelines, scenes, strict=True):
        _draw(panel, laid, _plain(title or f"{laid.schedule.name}, {laid.evidence}"), axis)
    stream = BytesIO()
    drawn.savefig(stream, format=form, dpi=dpi, metadata=_METADATA[form])
    return stream.getvalue()


_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": "debubble"},
    "pdf": {"Creator": "debubble", "CreationDate": None},  # the same figure gives the same file
}


def _plain(title: str) -> str:
    """A title is text: nothing in it is mathematics, and nothing commands a terminal."""
    return " ".join(inert(title).split()).replace("$", "\\$")


def _draw(panel: Axes, laid: Scene, title: str, axis: int) -> None:
    ranks = laid.schedule.ranks
    panel.set_title(title, fontsize=9, fontweight="bold", loc="left", wrap=True)
    panel.broken_barh([(0, max(laid.window, 1))], (-0.5, ranks), facecolor="#f1f1f1")
    if len(laid.schedule) <= MOST_BOXES:
        _boxes(panel, laid)
    else:
        _stacks(panel, laid)
    every = -(-ranks // 64)
    panel.set_yticks(range(0, ranks, every), [f"rank {rank}" for rank in range(0, ranks, every)], fontsize=8)
    panel.set_ylim(ranks - 0.5, -0.5)
    panel.set_xlim(0, max(axis, 1))
    panel.xaxis.set_major_formatter(lambda time, _: duration(time))
    panel.tick_params(axis="both", labelsize=8, length=3)
    panel.spines[["top", "right", "left"]].set_visible(False)
    below = 0.25 / min(_ROW * ranks, _MOST_INCHES)  # room for the numbers of the axis, as a share of its height
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -below), ncols=4, fontsize=8, frameon=False)


def _boxes(panel: Axes, laid: Scene) -> None:
    schedule = laid.schedule
    rank = schedule.rank_of()
    for kind, (colour, hatch, word) in _LOOK.items():
        rows = np.flatnonzero(schedule.kind == kind)
        if not rows.size:
            continue
        wide = (laid.end - laid.start)[rows]
        place = {"left": laid.start[rows], "height": 0.82, "label": word}
        panel.barh(rank[rows], wide, **place, color=colour, hatch=hatch, edgecolor="#00000066", linewidth=0.6)
        for row, length in zip(rows.tolist(), wide.tolist(), strict=True):
            label = str(schedule.op(row).microbatch)
            if length > 0.011 * len(label) * laid.window:
                middle = (laid.start[row] + laid.end[row]) / 2
                panel.text(middle, rank[row], label, fontsize=7, ha="center", va="center_baseline")


def _stacks(panel: Axes, laid: Scene) -> None:
    """For each rank the exact shares of each column, stacked from below; idle time stays free on top."""
    filled = shares(laid, COLUMNS) * 0.82
    times = np.linspace(0, laid.window, COLUMNS + 1)
    floor = np.zeros(filled.shape[:2])
    for kind, (colour, _, word) in _LOOK.items():
        top = floor + filled[:, :, kind]
        if not filled[:, :, kind].any():
            continue
        for rank in range(len(filled)):
            ground = rank + 0.41
            edges = (np.append(line, line[-1]) for line in (ground - floor[rank], ground - top[rank]))
            panel.fill_between(times, *edges, step="post", color=colour, linewidth=0, label=word if rank == 0 else None)
        floor = top
