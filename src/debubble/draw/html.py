"""The HTML report: one offline file that opens from disk, with its data, style and script inside.

Order on the page: verdict and next command, tiles, timelines, ranks at work, causes, ranks, what-if, things to take.
Whatever is text in the data stays text: the script sets text content only, and the data cannot end its element.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from ..account import Account
from ..timeline import Timeline
from .scene import Scene, scene, shares

MOST_BOXES = 200_000  # ops that a browser draws one by one; above, exact shares of equal bins
BINS = 4096
MOST_SHARES = 500_000  # rank and bin pairs of such a picture
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
    """

    name: str
    timeline: Timeline
    account: Account
    per_rank: Sequence[Row]


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """All that a report says.

    Args:
        title: of the page.
        verdict: sentences, the most important first.
        next: a command to run next, or an empty string.
        tiles: ``{name, value, note}`` each.
        runs: one timeline, or two on one axis.
        causes: ``{cause, cost_ms, cost_share, evidence, remedy}`` each; they sum to the window.
        what_if: where the sliders start: ``{schedule, ranks, microbatches, chunks, forward, backward, transfer, scale,
            note}``, in nanoseconds per micro-batch and rank; None for no sliders.
        take: ``{name, text, file}`` each, to copy or save.
    """

    title: str
    verdict: Sequence[str]
    next: str
    tiles: Sequence[Row]
    runs: Sequence[Run]
    causes: Sequence[Row] = ()
    what_if: Row | None = None
    take: Sequence[Row] = ()


def html(page: Page) -> str:
    """The whole file as text."""
    data = {
        "title": page.title,
        "verdict": list(page.verdict),
        "next": page.next,
        "tiles": list(page.tiles),
        "runs": [_run(run) for run in page.runs],
        "causes": list(page.causes),
        "what_if": page.what_if,
        "take": list(page.take),
    }
    return _fill(
        _part("page.html"),
        title=_escape(page.title),
        css=_part("page.css"),
        data=_inert(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        script="\n".join(_part(name) for name in ("simulate.js", "timeline.js", "page.js")),
    )


def _part(name: str) -> str:
    return (files("debubble.draw") / "page" / name).read_text(encoding="utf-8")


def _fill(template: str, **parts: str) -> str:
    """Put each part in its place; pieces of the template are joined once, so no part is searched for places."""
    out, rest = [], template
    for name, text in parts.items():
        before, rest = rest.split("{{" + name + "}}", 1)
        out += [before, text]
    return "".join([*out, rest])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _inert(document: str) -> str:
    """JSON that cannot end its script element or open a comment in it."""
    return document.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _run(run: Run) -> dict[str, Any]:
    drawn = scene(run.timeline)
    head = {
        "name": run.name,
        "evidence": drawn.evidence,
        "ranks": drawn.schedule.ranks,
        "stages": drawn.schedule.stages,
        "ops": len(drawn.schedule),
        "window": drawn.window,
        "sentence": f"idle share {run.account.idle_share:.1%}, bubble ratio {run.account.bubble_ratio:.1%}",
        "per_rank": list(run.per_rank),
    }
    return head | (_boxes(drawn) if len(drawn.schedule) <= MOST_BOXES else _shares(drawn))


def _boxes(drawn: Scene) -> dict[str, Any]:
    """Every op, as columns of unsigned integers; times in the finest quantum whose counts still fit."""
    schedule = drawn.schedule
    quantum = max(1, -(-drawn.window // _COUNTS))
    columns = [schedule.kind, schedule.stage, schedule.unit, drawn.start // quantum, drawn.end // quantum]
    packed = b"".join(np.ascontiguousarray(column, "<u4").tobytes() for column in columns)
    return {"offsets": schedule.offsets.tolist(), "quantum": quantum, "columns": _pack(packed)}


def _shares(drawn: Scene) -> dict[str, Any]:
    """Busy share of each kind, rank and bin: what is left of an op list too long to draw."""
    bins = max(1, min(BINS, MOST_SHARES // drawn.schedule.ranks))
    by_kind = np.moveaxis(shares(drawn, bins), 2, 0)
    return {"bins": bins, "offsets": [], "columns": _pack(np.ascontiguousarray(by_kind, "<f4").tobytes())}


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
