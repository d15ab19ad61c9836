"""``draw``: timelines as text for a terminal, and as a figure in a file. In Python alone: verbs draw what they find."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..core.atomic import replacing
from ..core.errors import Fault, InputError
from ..core.timeline import Timeline
from ..drawing.plot import plot
from ..drawing.svg import figure
from ..drawing.terminal import timeline_text
from ..export import perfetto

KINDS = ("svg", "png", "pdf", "json", "gz")  # the last two: a trace that ui.perfetto.dev opens


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
        _write(timelines, Path(file))
    return "\n\n".join(timeline_text(each, width, utf8=utf8, colour=colour) for each in timelines)


def _write(timelines: tuple[Timeline, ...], path: Path) -> None:
    kind = path.suffix.lstrip(".")
    if kind not in KINDS:
        raise InputError(Fault(f"file = {path}", "its suffix tells no kind of figure", f"give .{', .'.join(KINDS)}"))
    if kind in ("json", "gz"):
        if len(timelines) != 1:
            raise InputError(Fault(f"file = {path}", "a trace holds one timeline", "draw one, or give .svg"))
        perfetto.write(timelines[0], path)
        return
    titled = [(f"{each.program.schedule.name}, {each.evidence}", each) for each in timelines]
    data = figure(titled).encode() if kind == "svg" else plot(titled, kind)
    with replacing(path) as stream:
        stream.write(data)
