"""A timeline as an SVG figure: for papers, slides and pull requests, in light and dark, readable without colour.

Up to 2,000 ops are boxes with the number of their micro-batch. More are drawn as shares: for each column of four
pixels the exact share of each kind, stacked from below, so that idle time stays free on top.

    rank 0  |F0|F1|F2|  .  .  . |  B0  |F3|  B1  |    73 %
    rank 1  .  |F0|F1|  .  . |  B0  |F2|  B1  |  .    73 %
            0        5        10        15     ms
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from ..op import Kind
from ..timeline import Timeline
from .scene import Scene, chunk_of_stage, scene, shares
from .tables import duration

MOST_BOXES = 2000
WIDTH = 960
BIN = 4  # pixels of a column of shares

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
@media(prefers-color-scheme:dark){svg{background:#181818}text{fill:#ddd}.m{fill:#aaa}.n{fill:#111}
.idle{fill:#2b2b2b}.tick{stroke:#555}.box{stroke:#181818}}
"""
_HATCH = {
    Kind.B: '<path class="hatch" d="M-1 5L5 -1M3 9L9 3"/>',
    Kind.I: '<path class="hatch" d="M-1 3L5 9M3 -1L9 5"/>',
    Kind.W: '<path class="hatch" stroke-linecap="round" d="M2 2h.1M6 6h.1"/>',
}


def svg(timeline: Timeline, title: str = "") -> str:
    """The figure as text.

    Args:
        timeline: what to draw.
        title: above the figure, and read out for those who cannot see it; the schedule's name where empty.
    """
    laid = scene(timeline)
    title = "".join(c if c.isprintable() else "?" for c in title or f"{laid.schedule.name}, {laid.evidence}")
    height = _row_height(laid.schedule.ranks)
    bottom = _TOP + laid.schedule.ranks * height
    body = _boxes(laid, height) if len(laid.schedule) <= MOST_BOXES else _stacks(laid, height)
    size = f'width="{WIDTH}" height="{bottom + _BELOW}" viewBox="0 0 {WIDTH} {bottom + _BELOW}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            f"<title>{escape(title)}</title><desc>{escape(_sentence(laid))}</desc>",
            f"<style>{_STYLE}</style><defs>{''.join(_patterns())}</defs>",
            f'<text class="t" x="{_LEFT}" y="20">{escape(title)}</text>',
            *_rows(laid, height),
            *body,
            *_axis(laid.window, bottom),
            *_legend(laid, bottom),
            "</svg>\n",
        ]
    )


def _row_height(ranks: int) -> int:
    return max(3, min(24, 1440 // ranks))


def _sentence(laid: Scene) -> str:
    busy = laid.busy()
    least = int(busy.argmin())
    return (
        f"{laid.schedule.ranks} ranks, {laid.schedule.microbatches} micro-batches, {duration(laid.window)}; "
        f"ranks are busy for {busy.mean():.1%} of it on average, rank {least} for the least, {busy[least]:.1%}."
    )


def _patterns() -> Iterator[str]:
    for kind, lines in _HATCH.items():
        yield f'<pattern id="h{kind.name}" width="8" height="8" patternUnits="userSpaceOnUse">{lines}</pattern>'


def _rows(laid: Scene, height: int) -> Iterator[str]:
    """Idle ground, label and busy share of each rank; where rows are thin, of every so many ranks."""
    every = -(-14 // height)
    bar = _bar(height)
    for rank, share in enumerate(laid.busy().tolist()):
        y = _TOP + rank * height
        yield f'<rect class="idle" x="{_LEFT}" y="{y}" width="{_PLOT}" height="{bar}"/>'
        if rank % every == 0:
            base = y + bar / 2 + 4
            yield f'<text class="e" x="{_LEFT - 8}" y="{_n(base)}">rank {rank}</text>'
            yield f'<text class="m" x="{WIDTH - _RIGHT + 8}" y="{_n(base)}">{100 * share:.0f} %</text>'


def _bar(height: int) -> int:
    return height - (4 if height > 12 else 1)


def _boxes(laid: Scene, height: int) -> Iterator[str]:
    schedule = laid.schedule
    bar = _bar(height)
    scale = _PLOT / max(laid.window, 1)
    later = chunk_of_stage(schedule)[schedule.copy_of(schedule.unit), schedule.stage] > 0
    columns = (schedule.rank_of(), schedule.kind, laid.start, laid.end, later)
    for row, (rank, number, start, end, shade) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        kind = Kind(number)
        x, y, wide = _LEFT + start * scale, _TOP + rank * height, (end - start) * scale
        place = f'x="{_n(x)}" y="{y}" width="{_n(wide)}" height="{bar}"'
        op = schedule.op(row)
        about = f"<title>{op.text(schedule.slices)}: {duration(start)} to {duration(end)}</title>"
        yield f'<rect class="box {kind.name}{" later" if shade else ""}" {place}>{about}</rect>'
        if kind in _HATCH:
            yield f'<rect fill="url(#h{kind.name})" pointer-events="none" {place}/>'
        label = str(op.microbatch)
        if wide > 7 * len(label) + 2 and height > 12:
            yield f'<text class="n" x="{_n(x + wide / 2)}" y="{_n(y + bar / 2 + 3.5)}">{label}</text>'


def _stacks(laid: Scene, height: int) -> Iterator[str]:
    """One outline for each kind of each rank: its shares upon those of the kinds below it."""
    filled = shares(laid, _PLOT // BIN)
    bar = _bar(height)
    for rank, by_kind in enumerate(filled):
        floor = np.zeros(len(by_kind))
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            top = floor + by_kind[:, kind]
            if by_kind[:, kind].any():
                outline = _outline(floor, top, _TOP + rank * height + bar, bar)
                yield f'<path class="{kind.name}" d="{outline}"/>'
                if kind in _HATCH:
                    yield f'<path fill="url(#h{kind.name})" d="{outline}"/>'
            floor = top


def _outline(floor: NDArray[np.float64], top: NDArray[np.float64], ground: int, bar: int) -> str:
    """There along the tops of the columns, back along their floors; columns of one height are one step."""
    there = "".join(f"V{height}h{BIN * count}" for height, count in _steps(ground - bar * top))
    back = "".join(f"V{height}h-{BIN * count}" for height, count in _steps(ground - bar * floor[::-1]))
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
    rough = max(window, 1) / 8
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
    return f"{number:.2f}".rstrip("0").rstrip(".")
