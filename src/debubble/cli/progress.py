"""What a verb says while it works: its sentences on stderr, and a bar of bytes if a person watches a long reading."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from ..verbs.telling import listening
from .console import warn

_WORTH = 16 << 20  # bytes; less is read before rich, which draws the bar, is imported


@contextmanager
def working(paths: Sequence[Path | str] = ()) -> Iterator[None]:
    """Print what a verb says, and show a bar while it reads files.

    Args:
        paths: that it reads.
    """
    with listening(warn), reading(paths):
        yield


@contextmanager
def reading(paths: Sequence[Path | str]) -> Iterator[None]:
    """Show a bar while files are read."""
    total = 0
    if sys.stderr is not None and sys.stderr.isatty():  # in a log a bar is noise
        total = _bytes([Path(path) for path in paths])
    # At least one byte: a size that cannot be told is 0, and no bar can be drawn of it.
    if total < max(_WORTH, 1):
        yield
        return
    with import_module("debubble.cli.bar").bar(total):
        yield


def _bytes(paths: Sequence[Path]) -> int:
    """The size of all files; 0 if that cannot be told, which is for the reader to say."""
    try:
        files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0
