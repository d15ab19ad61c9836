"""What leaves the program is safe: a file appears whole or not at all, and text from elsewhere commands nothing."""

from __future__ import annotations

import os
import re
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


# Controls (but tab and newline), marks that turn the direction of text, line ends that only some programs know, and
# what no file can hold: halves of characters (bytes of a name that are no UTF-8) and what XML refuses.
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
# An absolute path of at least two parts: /home/me/runs/eight, C:\Users\me\eight. Not a share of two units (tokens/s),
# and not an address (s3://bucket/run, https://..): there the first slash follows a letter, a colon or another slash.
_UNIX = re.compile(r"""(?<![\w:/.~\\])/(?:[^\s/'"<>|:]+/)+([^\s/'"<>|:]*)""")
_WINDOWS = re.compile(r"""(?<!\w)(?:[A-Za-z]:|\\)\\(?:[^\s\\'"<>|:]+\\)*([^\s\\'"<>|:]*)""")


def inert(text: str) -> str:
    r"""The text with every character that commands a terminal or turns text around written out, as in ``\x1b``."""
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def without_folders(text: str) -> str:
    """The text with the last part of each absolute path in its place: whose machine it was is nobody's business."""
    return _WINDOWS.sub(r"\1", _UNIX.sub(r"\1", text))
