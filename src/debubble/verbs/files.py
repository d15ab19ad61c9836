"""Files of a result: the page, the figure as SVG, PNG or PDF, a trace for Perfetto, the order as PyTorch's CSV."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ..core.atomic import replacing
from ..core.errors import Fault, InputError
from ..core.results import Result
from ..diagnosis.comparison import Comparison
from ..drawing.plot import plot
from ..drawing.svg import figure
from ..export import perfetto
from ..readers import torch_csv
from ..report.render import html, pictures_of
from ..report.sections import Picture

Made = bytes | Callable[[Path], None]


def write(result: Result, *, kind: str, path: str | PathLike[str]) -> None:
    """Write one file of a result.

    Args:
        result: what a verb returned.
        kind: ``html``, ``svg``, ``png``, ``pdf``, ``perfetto`` or ``torch-csv``.
        path: where to.

    Raises:
        InputError: no such kind, nothing to draw, no matplotlib for PNG or PDF, a path that cannot be written.
    """
    if kind == "html":
        _save(html(result).encode(), Path(path))
        return
    pictures = pictures_of(result)
    if not pictures:
        rule = "there is no timeline to draw"
        if isinstance(result, Comparison):
            rule = "neither run has a timeline to draw"
        raise InputError(Fault(f"--{kind}", rule, "state pipeline and microbatches, or give a recording"))
    if kind == "perfetto":
        perfetto.write(pictures[0].timeline, Path(path))
    elif kind == "torch-csv":
        torch_csv.write(pictures[0].timeline.program.schedule, Path(path))
    elif kind in ("svg", "png", "pdf"):
        _save(_figure(kind, pictures), Path(path))
    else:
        raise InputError(
            Fault(f"kind = {kind}", "it is no kind of file", "give html, svg, png, pdf, perfetto, torch-csv")
        )


def _figure(kind: str, pictures: list[Picture]) -> bytes:
    """All timelines one below the other on one time axis."""
    timelines = [(picture.caption or picture.title or picture.name, picture.timeline) for picture in pictures]
    return figure(timelines).encode() if kind == "svg" else plot(timelines, kind)


def _save(data: bytes, path: Path) -> None:
    with replacing(path) as stream:
        stream.write(data)
