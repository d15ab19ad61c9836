"""Figures of timelines: SVG for papers, slides and pull requests, readable without colour; PNG and PDF by matplotlib.

Up to 2,000 ops are boxes with the number of their micro-batch. More are drawn as shares: for each column of four
pixels the exact share of each kind, stacked from below, so that idle time stays free on top.

    rank 0  |F0|F1|F2|  .  .  . |  B0  |F3|  B1  |    73 %
    rank 1  .  |F0|F1|  .  . |  B0  |F2|  B1  |  .    73 %
            0        5        10        15     ms

matplotlib draws the same boxes, shares and hatches. It is the extra ``plot``; it is imported when a figure is drawn,
and without its state of windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from io import BytesIO
from itertools import accumulate, chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.program import Timeline
from ..core.safe_output import inert
from ..core.schedule import Kind
from ..core.units import duration, percent
from .scene import Scene, chunk_of_stage, scene, shares

MOST_BOXES = 2000  # more would be narrower than their edges, and the file would be megabytes
WIDTH = 960  # pixels: a column of a web page; as SVG it is scaled to anything
BIN = 4  # pixels of a column of shares: below, columns are finer than the eye tells apart

_LEFT, _RIGHT, _TOP, _BELOW = 64, 48, 34, 52  # margins: rank labels, busy shares, title, axis with legend
_PLOT = WIDTH - _LEFT - _RIGHT
_WORDS = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input gradient", Kind.W: "weight gradient"}

# Colours that differ for every kind of colour blindness; dark text stands out on all of them. Hatching tells the
# kinds apart where there is no colour at all.
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:13px}.m{fill:#666}
.n{font-size:10px;fill:#111;text-anchor:middle}.e{text-anchor:end}.idle{fill:#f1f1f1}.tick{stroke:#bbb}
.F{fill:#56b4e9}.B{fill:#e69f00}.I{fill:#f0e442}.W{fill:#29b38b}.later{opacity:.72}
.box{stroke:#fff;stroke-width:.6}.hatch{stroke:#0006;stroke-width:1}
.dots{stroke-width:2;stroke-linecap:round}
@media(prefers-color-scheme:dark){svg{background:#181818}text{fill:#ddd}.m{fill:#aaa}.n{fill:#111}
.idle{fill:#2b2b2b}.tick{stroke:#555}.box{stroke:#181818}}
"""
_HATCH = {
    Kind.B: '<path class="hatch" d="M-1 5L5 -1M3 9L9 3"/>',
    Kind.I: '<path class="hatch" d="M-1 3L5 9M3 -1L9 5"/>',
    Kind.W: '<path class="hatch dots" d="M2 2h.1M6 6h.1"/>',
}


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    """One timeline of a figure.

    Args:
        title: above it.
        laid: what it shows.
        axis: time that the whole width stands for, nanoseconds.
    """

    title: str
    laid: Scene
    axis: int

    @property
    def row(self) -> int:
        """Height of a rank's row, pixels."""
        return max(3, min(24, 1440 // self.laid.schedule.ranks))

    @property
    def bar(self) -> int:
        """Height of what is drawn in a row, pixels."""
        return self.row - (4 if self.row > 12 else 1)

    @property
    def bottom(self) -> int:
        """Where the rows end and the axis begins, pixels from the top of the panel."""
        return _TOP + self.laid.schedule.ranks * self.row

    @property
    def height(self) -> int:
        """Of all of it, pixels."""
        return self.bottom + _BELOW

    @property
    def scale(self) -> float:
        """Pixels for a nanosecond."""
        return _PLOT / max(self.axis, 1)


def svg(timeline: Timeline, title: str = "") -> str:
    """The figure of one timeline as text.

    Args:
        timeline: what to draw.
        title: above the figure, and read out for those who cannot see it; the schedule's name where empty.
    """
    return figure([(title, timeline)])


def figure(timelines: Sequence[tuple[str, Timeline]]) -> str:
    """Timelines one below the other on one time axis, as text.

    Args:
        timelines: the title of each, or an empty string for the schedule's name, and what to draw.
    """
    scenes = [scene(timeline) for _, timeline in timelines]
    axis = max(laid.window for laid in scenes)
    panels = [_Panel(_title(title, laid), laid, axis) for (title, _), laid in zip(timelines, scenes, strict=True)]
    below = list(accumulate((panel.height for panel in panels), initial=0))
    size = f'width="{WIDTH}" height="{below[-1]}" viewBox="0 0 {WIDTH} {below[-1]}"'
    about = " ".join(f"{panel.title}: {_sentence(panel.laid)}" for panel in panels)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            f"<title>{_text(', '.join(panel.title for panel in panels))}</title><desc>{_text(about)}</desc>",
            f"<style>{_STYLE}</style><defs>{''.join(_patterns())}</defs>",
            *chain.from_iterable(_panel(panel, top) for panel, top in zip(panels, below, strict=False)),
            "</svg>\n",
        ]
    )


def _title(title: str, laid: Scene) -> str:
    return " ".join(inert(title or f"{laid.schedule.name}, {laid.evidence}").split())


def _panel(panel: _Panel, top: int) -> Iterator[str]:
    if top:
        yield f'<g transform="translate(0 {top})">'
    yield f'<text class="t" x="{_LEFT}" y="20">{_text(panel.title)}</text>'
    yield from _rows(panel)
    yield from _boxes(panel) if len(panel.laid.schedule) <= MOST_BOXES else _stacks(panel)
    yield from _axis(panel.axis, panel.bottom)
    yield from _legend(panel.laid, panel.bottom)
    if top:
        yield "</g>"


def _text(words: str) -> str:
    """Words as text of an element; ``html`` and not ``xml.sax``, which imports a client of HTTP."""
    return escape(words, quote=False)


def _sentence(laid: Scene) -> str:
    busy = laid.busy()
    least = int(busy.argmin())
    return (
        f"{laid.schedule.ranks} ranks, {laid.schedule.microbatches} micro-batches, {duration(laid.window)}; "
        f"ranks are busy for {percent(float(busy.mean()))} of it on average, rank {least} for the least, "
        f"{percent(float(busy[least]))}."
    )


def _patterns() -> Iterator[str]:
    for kind, lines in _HATCH.items():
        yield f'<pattern id="h{kind.name}" width="8" height="8" patternUnits="userSpaceOnUse">{lines}</pattern>'


def _rows(panel: _Panel) -> Iterator[str]:
    """Idle ground, label and busy share of each rank; where rows are thin, of every so many ranks."""
    every = -(-14 // panel.row)
    wide = _n(panel.laid.window * panel.scale)
    for rank, share in enumerate(panel.laid.busy().tolist()):
        y = _TOP + rank * panel.row
        yield f'<rect class="idle" x="{_LEFT}" y="{y}" width="{wide}" height="{panel.bar}"/>'
        if rank % every == 0:
            base = y + panel.bar / 2 + 4
            yield f'<text class="e" x="{_LEFT - 8}" y="{_n(base)}">rank {rank}</text>'
            yield f'<text class="m" x="{WIDTH - _RIGHT + 8}" y="{_n(base)}">{100 * share:.0f} %</text>'


def _boxes(panel: _Panel) -> Iterator[str]:
    laid, schedule, scale, bar = panel.laid, panel.laid.schedule, panel.scale, panel.bar
    later = chunk_of_stage(schedule)[schedule.copy_of(schedule.unit), schedule.stage] > 0
    columns = (schedule.rank_of(), schedule.kind, laid.start, laid.end, later)
    for row, (rank, number, start, end, shade) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        kind = Kind(number)
        x, y, wide = _LEFT + start * scale, _TOP + rank * panel.row, (end - start) * scale
        place = f'x="{_n(x)}" y="{y}" width="{_n(wide)}" height="{bar}"'
        op = schedule.op(row)
        about = f"<title>{op.text(schedule.slices)}: {duration(start)} to {duration(end)}</title>"
        yield f'<rect class="box {kind.name}{" later" if shade else ""}" {place}>{about}</rect>'
        # A second box with the hatching: a pattern with a ground would be needed once for every colour and theme.
        if kind in _HATCH:
            yield f'<rect fill="url(#h{kind.name})" pointer-events="none" {place}/>'
        label = str(op.microbatch)
        if wide > 7 * len(label) + 2 and panel.row > 12:
            yield f'<text class="n" x="{_n(x + wide / 2)}" y="{_n(y + bar / 2 + 3.5)}">{label}</text>'


def _stacks(panel: _Panel) -> Iterator[str]:
    """One outline for each kind of each rank: its shares upon those of the kinds below it."""
    wide = panel.laid.window * panel.scale
    columns = max(1, round(wide / BIN))
    filled, bar, step = shares(panel.laid, columns), panel.bar, wide / columns
    for rank, by_kind in enumerate(filled):
        for kind, floor, top in _piled(by_kind):
            outline = _outline(floor, top, (_TOP + rank * panel.row + bar, bar, step))
            yield f'<path class="{kind.name}" d="{outline}"/>'
            if kind in _HATCH:
                yield f'<path fill="url(#h{kind.name})" opacity=".4" d="{outline}"/>'


def _piled(by_kind: NDArray[np.float64]) -> Iterator[tuple[Kind, NDArray[np.float64], NDArray[np.float64]]]:
    """Each kind that a rank has, and where its shares begin and end in each column."""
    floor = np.zeros(len(by_kind))
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        top = floor + by_kind[:, kind]
        if by_kind[:, kind].any():
            yield kind, floor, top
        floor = top


def _outline(floor: NDArray[np.float64], top: NDArray[np.float64], place: tuple[int, int, float]) -> str:
    """There along the tops of the columns, back along their floors; columns of one height are one step.

    Args:
        floor: where each column begins, as a share of the bar.
        top: where it ends.
        place: the lower edge of the bar, its height, and how wide a column is, pixels.
    """
    ground, bar, step = place
    there, back = "", ""
    for height, count in _steps(ground - bar * top):
        there += f"V{height}h{_n(step * count)}"
    for height, count in _steps(ground - bar * floor[::-1]):
        back += f"V{height}h-{_n(step * count)}"
    return f"M{_LEFT} {_n(ground - bar * floor[0])}{there}{back}z"


def _steps(heights: NDArray[np.float64]) -> Iterator[tuple[str, int]]:
    for height, run in groupby(map(_n, heights.tolist())):
        yield height, len(list(run))


def _axis(window: int, bottom: int) -> Iterator[str]:
    """Ticks at round times, five to ten of them."""
    step = _round_step(window)
    for time in range(0, window + 1, step):
        x = _LEFT + _PLOT * time / max(window, 1)
        yield f'<path class="tick" d="M{_n(x)} {bottom}v5"/>'
        yield f'<text class="m" text-anchor="middle" x="{_n(x)}" y="{bottom + 18}">{duration(time)}</text>'


def _round_step(window: int) -> int:
    rough = max(window, 1) / 8  # between the five and the ten ticks that are wanted
    power = 10 ** int(np.floor(np.log10(max(rough, 1))))
    return max(1, next(int(power * step) for step in (1, 2, 5, 10) if power * step >= rough))


def _legend(laid: Scene, bottom: int) -> Iterator[str]:
    x, y = _LEFT, bottom + 32
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        if not (laid.schedule.kind == kind).any():
            continue
        place = f'x="{x}" y="{y}" width="14" height="12"'
        yield f'<rect class="{kind.name}" {place}/>'
        if kind in _HATCH:
            yield f'<rect fill="url(#h{kind.name})" {place}/>'
        yield f'<text x="{x + 20}" y="{y + 10}">{_WORDS[kind]}</text>'
        x += 36 + 7 * len(_WORDS[kind])
    if len(laid.schedule) <= MOST_BOXES and chunk_of_stage(laid.schedule).any():
        yield f'<text class="m" x="{x}" y="{y + 10}">paler: later chunks</text>'
    yield f'<text class="e m" x="{WIDTH - _RIGHT}" y="{y + 10}">makespan {duration(laid.window)}</text>'


def _n(number: float) -> str:
    """A coordinate to a hundredth of a pixel, as short as it can be: it is most of the file."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


Axes = Any  # matplotlib's; the types of an extra are not asked of everyone
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
        _plotted(panel, laid, _plain(title or f"{laid.schedule.name}, {laid.evidence}"), axis)
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


def _plotted(panel: Axes, laid: Scene, title: str, axis: int) -> None:
    ranks = laid.schedule.ranks
    panel.set_title(title, fontsize=9, fontweight="bold", loc="left", wrap=True)
    panel.broken_barh([(0, max(laid.window, 1))], (-0.5, ranks), facecolor="#f1f1f1")
    if len(laid.schedule) <= MOST_BOXES:
        _plotted_boxes(panel, laid)
    else:
        _plotted_stacks(panel, laid)
    every = -(-ranks // 64)
    panel.set_yticks(range(0, ranks, every), [f"rank {rank}" for rank in range(0, ranks, every)], fontsize=8)
    panel.set_ylim(ranks - 0.5, -0.5)
    panel.set_xlim(0, max(axis, 1))
    panel.xaxis.set_major_formatter(lambda time, _: duration(time))
    panel.tick_params(axis="both", labelsize=8, length=3)
    panel.spines[["top", "right", "left"]].set_visible(False)
    below = 0.25 / min(_ROW * ranks, _MOST_INCHES)  # room for the numbers of the axis, as a share of its height
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -below), ncols=4, fontsize=8, frameon=False)


def _plotted_boxes(panel: Axes, laid: Scene) -> None:
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


def _plotted_stacks(panel: Axes, laid: Scene) -> None:
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
