"""Picture files that several verbs write: the page, and the figure as SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import wrote

if TYPE_CHECKING:
    from ..core.timeline import Timeline
    from ..drawing.html import Page

Figures = Sequence[tuple[str, "Timeline"]]  # a title and what to draw, one below the other on one time axis

KINDS = {
    "html": "Write a page to explore in a browser: one file, which needs no network.",
    "svg": "Write the picture as a figure.",
    "png": "Write the figure as PNG (the extra `plot`).",
    "pdf": "Write the figure as PDF (the extra `plot`).",
}


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each kind of picture; the command takes those that were given as ``pictures``."""

    @wraps(command)
    def with_pictures(*args: Any, **given: Any) -> Any:
        pictures = {kind: path for kind in KINDS if (path := given.pop(kind)) is not None}
        return command(*args, pictures=pictures, **given)

    for kind, sentence in reversed(KINDS.items()):
        option = click.option(f"--{kind}", type=click.Path(path_type=Path), metavar="F", help=sentence)
        with_pictures = option(with_pictures)
    return with_pictures


def write_all(pictures: Mapping[str, Path], figures: Figures, page: Callable[[], Page]) -> None:
    """Write each picture that was asked for, and say so."""
    for kind, path in pictures.items():
        write(kind, path, figures, page)
        wrote(path)


def write(kind: str, path: Path, figures: Figures, page: Callable[[], Page]) -> None:
    """Write one picture.

    Args:
        kind: one of ``KINDS``.
        path: where to.
        figures: what a figure shows.
        page: makes the page.

    Raises:
        InputError: the path cannot be written; PNG or PDF without matplotlib; a figure of nothing.
    """
    from ..core.atomic import replacing

    data = _page(page) if kind == "html" else _figure(kind, figures)
    with replacing(path) as stream:
        stream.write(data)


def _page(page: Callable[[], Page]) -> bytes:
    from ..drawing.html import html

    return html(page()).encode()


def _figure(kind: str, figures: Figures) -> bytes:
    from ..core.errors import Fault, InputError

    if not figures:
        rule = "neither run has a timeline to draw"
        raise InputError(Fault(f"--{kind}", rule, "state pipeline and microbatches, or give a recording"))
    if kind == "svg":
        from ..drawing.svg import figure

        return figure(figures).encode()
    from ..drawing.plot import plot

    return plot(figures, kind)
