"""The HTML report, one offline file that opens from disk, and what nouns look like in a notebook.

Order on the page: verdict and next command, tiles, contents, timelines with memory below, ranks at work, causes, ranks,
further tables, what-if, things to take.
Whatever is text in the data stays text: the script sets text content only, the data cannot end its element, characters
that command or turn text are written out, and absolute paths are cut to their last part, since pages are sent around.
The scripts stand in ``page/``; what they compute (orders, longest path, traces) is tested against the Python.

In a notebook a noun is text, SVG, and the page in a frame of its own, from which scripts cannot reach out: it has
scripts, but neither the notebook's origin nor the network. It draws when it gets a size, so an output that is folded or
scrolled away costs nothing.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, account
from ..core.observation import Observation, Window
from ..core.program import Program, Timeline
from ..core.results import __version__
from ..core.safe_output import inert, without_folders
from ..core.schedule import Kind, Release, Schedule
from ..core.units import duration, percent
from .figure import svg
from .scene import Scene, chunk_of_stage, scene, shares
from .terminal import table, timeline_text

MOST_OPS = 1 << 21  # that a page holds one by one: some megabytes of a measured run; above, exact shares of equal bins
MOST_MADE = 200_000  # ops of a run whose files a page can make
BINS = 4096
MOST_SHARES = 500_000  # rank and bin pairs of such a picture: four kinds of each are 8 MB before they are packed
# In the order in which they are read: each uses what those before it define.
SCRIPTS = (
    "simulate.js",
    "run.js",
    "export.js",
    "pen.js",
    "timeline.js",
    "hands.js",
    "memory.js",
    "working.js",
    "slide.js",
    "whatif.js",
    "page.js",
)
# Schedules that the page builds itself, for any sizes; the order of every other one comes with it, for its own sizes.
BUILT_BY_PAGE = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved",
    "looped-bfs",
    "interleaved-zb",
    "zb-h1",
    "zb-h2",
)
_COUNTS = 2**32 - 1  # what one column of the page counts up to

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One timeline of the page.

    Args:
        name: shown above it.
        timeline: what to draw.
        account: of that timeline.
        per_rank: rows of the table, with the keys of ``per_rank`` in the JSON output.
        table: the same as text, ``{head, lines, note}``, rounded as in the terminal; None for the page to write it.
        release: when a split backward frees its activations, for the curve of memory.
    """

    name: str
    timeline: Timeline
    account: Account
    per_rank: Sequence[Row]
    table: Row | None = None
    release: Release = Release.W


@dataclass(frozen=True, slots=True, eq=False)
class Sliders:
    """Where the sliders of a page start: the costs of a run's ops, and what other orders there are.

    Args:
        run: its number on the page.
        name: of its order in the catalog; None if it has none.
        durations: of each op of its schedule, int64[ops], nanoseconds.
        hops: delay of the input of each op from another rank, int64[ops], nanoseconds.
        outside: what a step holds beside the window, nanoseconds.
        pair_scale: duration of an overlapped pair over the sum of its two ops.
        input_share: share of a backward that is the gradient of the input.
        orders: of the catalog, for the same ranks and micro-batches.
        note: on where the durations come from.
    """

    run: int
    name: str | None
    durations: NDArray[np.int64]
    hops: NDArray[np.int64]
    outside: int
    pair_scale: float
    input_share: float
    orders: Sequence[Schedule]
    note: str


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """All that a report says.

    Args:
        title: of the page.
        verdict: sentences, the most important first.
        next: a command to run next, or an empty string.
        tiles: ``{name, value, note}`` each.
        runs: one timeline, or two on one axis.
        causes: ``{name, rows}`` of each run that has them, a row ``{cause, cost_ms, cost_share, evidence, remedy}``
            and, as text, ``cells`` (ms, share); the rows of a run sum to its window, or to ``whole``, with the cells
            ``total`` and a ``note``; a ``hint`` says where the figures come from.
        sections: further tables and sentences, ``{title, hint, tables, sentences}`` each; a table is ``{name, head,
            lines, notes}`` and, if that helps, ``wordy`` (columns of words), ``bar`` (a share of 1 beside each line),
            ``shade`` (0 to 1 a cell).
        sliders: where they start; None for no sliders.
        take: ``{name, file, text}`` each, to copy or save; or ``{name, file, maker, run}`` for what the page makes from
            the ops of a run: ``perfetto``, ``torch-csv`` or ``ops-csv``.
    """

    title: str
    verdict: Sequence[str]
    next: str
    tiles: Sequence[Row]
    runs: Sequence[Run]
    causes: Sequence[Row] = ()
    sections: Sequence[Row] = field(default=(), kw_only=True)
    sliders: Sliders | None = None
    take: Sequence[Row] = ()


def html(page: Page) -> str:
    """The whole file as text."""
    words = _shown(
        {
            "title": page.title,
            "made": f"debubble {__version__}, {_made():%Y-%m-%d %H:%M} UTC",
            "verdict": page.verdict,
            "next": page.next,
            "tiles": page.tiles,
            "causes": page.causes,
            "sections": page.sections,
            "take": page.take,
        }
    )
    data = words | {"what_if": _sliders(page), "runs": [_shown(_head(run)) | _picture(run) for run in page.runs]}
    return _fill(
        _part("page.html"),
        title=_escape(words["title"]),
        css=_part("page.css"),
        data=_no_tags(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        script="\n".join(_part(name) for name in SCRIPTS),
    )


def _part(name: str) -> str:
    # From the package and not from a path: it may be a zip file.
    return (files("debubble.drawing") / "page" / name).read_text(encoding="utf-8")


def _fill(template: str, **parts: str) -> str:
    """Put each part in its place; pieces of the template are joined once, so no part is searched for places."""
    out, rest = [], template
    for name, text in parts.items():
        before, rest = rest.split("{{" + name + "}}", 1)
        out += [before, text]
    return "".join([*out, rest])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _no_tags(document: str) -> str:
    """JSON that cannot end its script element or open a comment in it."""
    # JSON reads the escapes as the characters, so the data is the same; HTML never sees an end of the element.
    return document.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _made() -> datetime:
    """Now, or the moment that reproducible builds ask for (https://reproducible-builds.org/specs/source-date-epoch)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdigit():
        return datetime.fromtimestamp(int(epoch), UTC)
    return datetime.now(UTC)


def _shown(value: Any) -> Any:
    """The same data with every text in it as it may be shown and sent."""
    if isinstance(value, str):
        return without_folders(inert(value))
    if isinstance(value, Mapping):
        return {name: _shown(part) for name, part in value.items()}
    if isinstance(value, Sequence):
        return [_shown(part) for part in value]
    return value


def _head(run: Run) -> dict[str, Any]:
    """What is said of a run beside its ops."""
    schedule = run.timeline.program.schedule
    return {
        "name": run.name,
        "evidence": run.timeline.evidence,
        "ranks": schedule.ranks,
        "stages": schedule.stages,
        "slices": schedule.slices,
        "chunks": schedule.chunks_of().max(axis=0).tolist(),
        "release": run.release.value,
        "ops": len(schedule),
        "window": run.timeline.makespan,
        "sentence": f"idle share {percent(run.account.idle_share)}, bubble ratio {percent(run.account.bubble_ratio)}",
        "per_rank": run.per_rank,
        "table": run.table,
    }


def _picture(run: Run) -> dict[str, Any]:
    drawn = scene(run.timeline)
    if len(drawn.schedule) > MOST_OPS:
        return _shares(drawn)
    return _boxes(drawn)


def _sliders(page: Page) -> dict[str, Any] | None:
    """None where there are none, or the ops that they start from are not in the page."""
    start = page.sliders
    if start is None or len(page.runs[start.run].timeline.program.schedule) > MOST_OPS:
        return None
    schedule = page.runs[start.run].timeline.program.schedule
    # Whole numbers below 2**53 are exact as JavaScript has them.
    costs = np.concatenate([start.durations, start.hops]).astype("<f8")
    by_page = set(BUILT_BY_PAGE)
    if schedule.slices > 1 or schedule.forward_only:
        by_page = set()  # what the page builds has neither slices nor forwards alone
    return {
        "run": start.run,
        "schedule": start.name,
        "title": _shown(schedule.name),
        "ranks": schedule.ranks,
        "microbatches": schedule.microbatches,
        "chunks": schedule.stages // schedule.ranks,
        "parts": int(schedule.chunks_of().max()),
        "slices": schedule.slices,
        "stages": schedule.stages,
        "placement": schedule.placement.tolist(),
        "outside": start.outside,
        "pairScale": start.pair_scale,
        "inputShare": start.input_share,
        "note": start.note,
        "built": [name for name in BUILT_BY_PAGE if name in by_page],
        "orders": [_order(each, start.orders) for each in start.orders if each.name not in by_page],
        "columns": _pack(costs.tobytes()),
    }


def _order(schedule: Schedule, others: Sequence[Schedule]) -> dict[str, Any]:
    """An order that the page cannot build itself; chunks are in its name where the catalog has it with several."""
    chunks = schedule.stages // schedule.ranks
    same = [other for other in others if other.name == schedule.name]
    name = schedule.name
    if len(same) > 1 and chunks > 1:
        name = f"{name} with {chunks} chunks"
    return {
        "name": name,
        "catalog": schedule.name,
        "chunks": chunks,
        "parts": int(schedule.chunks_of().max()),
        "stages": schedule.stages,
        "placement": schedule.placement.tolist(),
        "offsets": schedule.offsets.tolist(),
        "columns": _counts(_what(schedule), schedule.stage, _steps(schedule.unit)),
    }


def _steps(unit: NDArray[np.int32]) -> NDArray[np.uint32]:
    """From one micro-batch to the next: that repeats if their numbers do not. A step back wraps, and adds up again."""
    return np.diff(unit, prepend=0).astype(np.int32).view(np.uint32)


def _boxes(drawn: Scene) -> dict[str, Any]:
    """Every op, as columns of unsigned integers: what it is, and how long the rank was idle before it and worked on it.

    Times are in the finest quantum whose counts still fit. Idle times and durations repeat where starts and ends do
    not, and differences of micro-batches where their numbers do not, and so pack better.
    """
    schedule = drawn.schedule
    longest = int(np.concatenate([[0], *_lengths(drawn, 1)]).max())
    quantum = max(1, -(-longest // _COUNTS))
    columns = _counts(_what(schedule), schedule.stage, _steps(schedule.unit), *_lengths(drawn, quantum))
    return {"offsets": schedule.offsets.tolist(), "quantum": quantum, "columns": columns}


def _lengths(drawn: Scene, quantum: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each op how long its rank was idle before it, and how long it took; both add up without drift."""
    start, end = drawn.start // quantum, drawn.end // quantum
    free = np.concatenate([[0], end[:-1]])
    opens = drawn.schedule.offsets[:-1]
    free[opens[np.diff(drawn.schedule.offsets) > 0]] = 0  # the first op of a rank follows none of the rank before it
    return start - free, end - start


def _what(schedule: Schedule) -> NDArray[np.uint32]:
    """The kind of each op, and beside it whether it is joined to the op before, and whether of a later chunk."""
    later = chunk_of_stage(schedule)[schedule.copy_of(schedule.unit), schedule.stage] > 0
    joined = np.zeros(len(schedule), np.bool_) if schedule.joined is None else schedule.joined
    # Bits, so that three facts of an op are one column: the kind needs two, then JOINED and LATER of run.js.
    what: NDArray[np.uint32] = schedule.kind + np.uint32(4) * joined + np.uint32(8) * later
    return what


def _shares(drawn: Scene) -> dict[str, Any]:
    """Busy share of each kind, rank and bin: what is left of an op list too long to draw."""
    bins = max(1, min(BINS, MOST_SHARES // drawn.schedule.ranks))
    by_kind = np.moveaxis(shares(drawn, bins), 2, 0)
    return {"bins": bins, "offsets": [], "columns": _pack(np.ascontiguousarray(by_kind, "<f4").tobytes())}


def _counts(*columns: NDArray[Any]) -> str:
    """Columns of whole numbers, one after the other, as the page unpacks them."""
    packed = b""
    for column in columns:
        packed += np.ascontiguousarray(column, "<u4").tobytes()  # little-endian, as every browser's arrays are
    return _pack(packed)


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


WIDTH = 100  # columns of text
MOST_FRAMED_OPS = 60  # of a rank's row in a table of ops: what is scrolled through by hand
MOST_RANKS = 64  # rows of such a table

_PARTS = ("compute", "warm_up", "waiting", "transfer", "cool_down")
_TINTS = {Kind.F: "#56b4e9", Kind.B: "#e69f00", Kind.I: "#f0e442", Kind.W: "#29b38b"}

Bundle = dict[str, str]


def of_timeline(timeline: Timeline) -> Bundle:
    """A timeline: text, figure, and the page to explore; the notebook shows the richest that it can."""
    spent = account(timeline)
    title = f"{timeline.program.schedule.name}, {_shares_of_ranks(spent)} ({timeline.evidence})"
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
    for row in range(first, min(last, first + MOST_FRAMED_OPS)):
        op = schedule.op(row)
        yield op.text(schedule.slices), op.kind
    if last > first + MOST_FRAMED_OPS:
        yield f".. {last - first - MOST_FRAMED_OPS} more", None


def _cell(text: str, kind: Kind | None) -> str:
    tint = f"background:{_TINTS[kind]};color:#111;" if kind is not None else ""
    return f'<td style="{tint}padding:1px 4px">{text}</td>'


def of_account(spent: Account) -> Bundle:
    """An account: both numbers called bubble, and the parts of each rank."""
    head = f"{_shares_of_ranks(spent)} of {duration(spent.window)} ({spent.evidence})"
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


def _shares_of_ranks(spent: Account) -> str:
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
