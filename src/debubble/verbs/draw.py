"""Pictures as text and as files: what ``draw`` makes of timelines, and what verbs write of their results."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from ..core.errors import Fault, InputError
from ..core.program import Timeline
from ..core.results import Result
from ..core.safe_output import replacing
from ..drawing import perfetto
from ..drawing.figure import figure, plot
from ..drawing.terminal import timeline_text
from ..readers import torch_csv
from ..report.render import html, pictures_of

FIGURES = ("svg", "png", "pdf")
TRACES = ("json", "gz")  # that ui.perfetto.dev opens


def draw(
    *timelines: Timeline,
    file: str | PathLike[str] | None = None,
    width: int = 80,
    utf8: bool = True,
    colour: bool = False,
) -> str:
    """Draw timelines, one below the other.

        >>> print(debubble.draw(timeline))
        >>> debubble.draw(timeline, other, file="two.svg")

    Args:
        timelines: simulated or measured ones; on a figure they share one axis of time.
        file: also write a figure, ``.svg``, ``.png`` or ``.pdf``, or of one timeline a trace for Perfetto, ``.json`` or
            ``.json.gz``.
        width: columns of the text.
        utf8: whether the text may hold block characters; letters if not.
        colour: whether it is coloured for a terminal.

    Returns:
        A line for each rank and a legend, of each timeline.

    Raises:
        InputError: no such kind of file, no matplotlib for PNG or PDF, or a path that cannot be written.
    """
    if file is not None:
        _write_timelines(timelines, Path(file))
    return "\n\n".join(timeline_text(timeline, width, utf8=utf8, colour=colour) for timeline in timelines)


def _write_timelines(timelines: Sequence[Timeline], path: Path) -> None:
    kind = path.suffix.lstrip(".")
    if kind in FIGURES:
        # A figure leaves its report: its caption says what kind of evidence it shows.
        titled = [(f"{timeline.program.schedule.name}, {timeline.evidence}", timeline) for timeline in timelines]
        _save(_figure(kind, titled), path)
    elif kind not in TRACES:
        rule = "its suffix tells no kind of figure"
        raise InputError(Fault(f"file = {path}", rule, f"give .{', .'.join((*FIGURES, *TRACES))}"))
    elif len(timelines) != 1:
        raise InputError(Fault(f"file = {path}", "a trace holds one timeline", "draw one, or give .svg"))
    else:
        perfetto.write(timelines[0], path)


def write(result: Result, *, kind: str, path: str | PathLike[str]) -> None:
    """Write one file of a result; the package names this function in ``core.results.RENDERERS``.

    Args:
        result: what a verb returned.
        kind: ``html``, ``svg``, ``png``, ``pdf``, ``perfetto`` or ``torch-csv``.
        path: where to.

    Raises:
        InputError: no such kind, nothing to draw, no matplotlib for PNG or PDF, a path that cannot be written.
    """
    # A page has its own pictures; figures and traces need a timeline.
    if kind == "html":
        _save(html(result).encode(), Path(path))
        return
    pictures = pictures_of(result)
    if not pictures:
        raise InputError(Fault(f"--{kind}", result.undrawn, "state pipeline and microbatches, or give a recording"))
    # A figure shows all timelines; a trace and an order are of one, the first: it is what was asked for.
    if kind == "perfetto":
        perfetto.write(pictures[0].timeline, Path(path))
    elif kind == "torch-csv":
        torch_csv.write(pictures[0].timeline.program.schedule, Path(path))
    elif kind in FIGURES:
        titled = [(picture.caption or picture.title or picture.name, picture.timeline) for picture in pictures]
        _save(_figure(kind, titled), Path(path))
    else:
        remedy = f"give html, {', '.join(FIGURES)}, perfetto, torch-csv"
        raise InputError(Fault(f"kind = {kind}", "it is no kind of file", remedy))


def _figure(kind: str, timelines: Sequence[tuple[str, Timeline]]) -> bytes:
    """All timelines one below the other on one time axis."""
    if kind == "svg":
        return figure(timelines).encode()
    return plot(timelines, kind)


def _save(data: bytes, path: Path) -> None:
    with replacing(path) as stream:
        stream.write(data)
