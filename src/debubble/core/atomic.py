"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import Fault, InputError


@contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the name ``path`` once all of it is on disk.

    What is there and no file, as a device or a pipe, is written to as it is: a new name would put a file in its place.
    A link stays, and what it leads to is replaced.

    Raises:
        InputError: the folder cannot be written to, or the disk is full; nothing is left behind then.
    """
    path = Path(path)
    try:
        with path.open("wb") if path.exists() and not path.is_file() else _renamed(path.resolve()) as stream:
            yield stream
    except OSError as error:
        fault = Fault(str(path), f"it cannot be written: {error.strerror or error}", "give a path that can be written")
        raise InputError(fault) from error


@contextmanager
def _renamed(path: Path) -> Iterator[BinaryIO]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
