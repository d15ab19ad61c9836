"""The bar of bytes on stderr, drawn by rich, which is imported when one is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..readers.files import progress


@contextmanager
def bar(total: int) -> Iterator[None]:
    """Show how many of so many bytes were read."""
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("reading", total=total)
        token = progress.set(lambda size: shown.advance(task, size))
        try:
            yield
        finally:
            progress.reset(token)
