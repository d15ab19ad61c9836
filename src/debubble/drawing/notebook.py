"""Pictures of nouns in a notebook: text, SVG, and the page in a frame of its own, from which scripts cannot reach out.

The frame is sandboxed: it has scripts, but neither the notebook's origin nor the network. It draws when it gets a size,
so an output that is folded or scrolled away costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..core.account import Account, account
from ..core.observation import Observation, Window
from ..core.program import Program, Timeline
from ..core.schedule import Kind, Schedule
from ..core.units import duration, percent
from .html import Page, Run, html
from .svg import svg
from .terminal import table, timeline_text

WIDTH = 100  # columns of text
MOST_OPS = 60  # of a rank's row in a table of ops: what is scrolled through by hand
MOST_RANKS = 64  # rows of such a table

_PARTS = ("compute", "warm_up", "waiting", "transfer", "cool_down")
_TINTS = {Kind.F: "#56b4e9", Kind.B: "#e69f00", Kind.I: "#f0e442", Kind.W: "#29b38b"}

Bundle = dict[str, str]


def of_timeline(timeline: Timeline) -> Bundle:
    """A timeline: text, figure, and the page to explore; the notebook shows the richest that it can."""
    spent = account(timeline)
    title = f"{timeline.program.schedule.name}, {_shares(spent)} ({timeline.evidence})"
    run = Run(timeline.program.schedule.name, timeline, spent, list(_rows(spent)))
    page = Page(title, [], "", [], [run])
    return {
        "text/plain": f"{title}\n{timeline_text(timeline, WIDTH)}",
        "image/svg+xml": svg(timeline, title),
        "text/html": frame(html(page), 560 + 30 * min(timeline.program.schedule.ranks, 16)),
    }


def of_window(window: Window) -> Bundle:
    """A measured window: its timeline."""
    return of_timeline(window.timeline)


def of_observation(observation: Observation) -> Bundle:
    """A run: what it holds, in a sentence; its windows are shown one by one."""
    steps = {window.step for window in observation.windows}
    replicas = {window.replica for window in observation.windows}
    windows = f"{len(observation.windows)} windows, {len(steps)} steps x {len(replicas)} replicas"
    text = f"{observation.source}: {windows}"
    return {"text/plain": text, "text/html": f"<p>{escape(text, quote=False)}; show one with .windows[0]</p>"}


def of_program(program: Program) -> Bundle:
    """A program: the order it was made from."""
    return of_schedule(program.schedule)


def of_schedule(schedule: Schedule) -> Bundle:
    """A schedule: the ops of each rank in order, without a clock."""
    head = f"{schedule.name}: {schedule.ranks} ranks, {schedule.stages} stages, {schedule.microbatches} micro-batches"
    lines, rows = [head], ""
    for rank in range(min(schedule.ranks, MOST_RANKS)):
        words, cells = [], ""
        for text, kind in _ops(schedule, rank):
            words.append(text)
            cells += _cell(text, kind)
        lines.append(f"{f'rank {rank}':8} {' '.join(words)}")
        rows += f"<tr><th>rank {rank}</th>{cells}</tr>"
    return {
        "text/plain": "\n".join(lines),
        "text/html": f'<p>{escape(head, quote=False)}</p><div style="overflow-x:auto"><table>{rows}</table></div>',
    }


def _ops(schedule: Schedule, rank: int) -> Iterator[tuple[str, Kind | None]]:
    first, last = schedule.offsets[rank : rank + 2].tolist()
    for row in range(first, min(last, first + MOST_OPS)):
        op = schedule.op(row)
        yield op.text(schedule.slices), op.kind
    if last > first + MOST_OPS:
        yield f".. {last - first - MOST_OPS} more", None


def _cell(text: str, kind: Kind | None) -> str:
    tint = f"background:{_TINTS[kind]};color:#111;" if kind is not None else ""
    return f'<td style="{tint}padding:1px 4px">{text}</td>'


def of_account(spent: Account) -> Bundle:
    """An account: both numbers called bubble, and the parts of each rank."""
    head = f"{_shares(spent)} of {duration(spent.window)} ({spent.evidence})"
    titles = ["rank", *(part.replace("_", "-") for part in _PARTS)]
    rows: list[list[str]] = []
    body = f"<tr><th>{'</th><th>'.join(titles)}</th></tr>"
    for rank in _rows(spent):
        cells = [str(rank["rank"]), *(duration(1e6 * rank[f"{part}_ms"]) for part in _PARTS)]
        rows.append(cells)
        body += f"<tr><td>{'</td><td>'.join(cells)}</td></tr>"
    return {
        "text/plain": f"{head}\n{table(titles, rows)}",
        "text/html": f"<p>{escape(head, quote=False)}</p><table>{body}</table>",
    }


def _shares(spent: Account) -> str:
    return f"idle share {percent(spent.idle_share)}, bubble ratio {percent(spent.bubble_ratio)}"


def _rows(spent: Account) -> Iterator[dict[str, float]]:
    for rank in range(len(spent.compute)):
        yield {"rank": rank} | {f"{part}_ms": int(getattr(spent, part)[rank]) / 1e6 for part in _PARTS}


def frame(page: str, height: int) -> str:
    """A page in a frame from which its scripts cannot reach out.

    Args:
        page: the whole file.
        height: of the frame, pixels.
    """
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{escape(page)}"></iframe>'
