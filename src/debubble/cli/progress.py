"""How far a reading has come: a bar of bytes on stderr, where a person is watching and it takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_WORTH = 16 << 20  # bytes; less is read before a bar is drawn


@contextmanager
def reading(paths: Sequence[Path]) -> Iterator[None]:
    """Show a bar while files are read."""
    if not sys.stderr.isatty() or (total := _bytes(paths)) < _WORTH:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from ..readers.stream import progress

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        token = progress.set(lambda size: bar.advance(task, size))
        try:
            yield
        finally:
            progress.reset(token)


def _bytes(paths: Sequence[Path]) -> int:
    """The size of all files; 0 where that cannot be told, which is for the reader to say."""
    try:
        files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0
