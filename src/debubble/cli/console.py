"""Where text goes: what the terminal can show, results on stdout; sentences, warnings and a bar of bytes on stderr."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TextIO

from ..verbs.arguments import listening

# What pictures are drawn with: a terminal that encodes these shows all of them.
_GLYPHS = "█▒░·│→×µ"
_PLAIN = str.maketrans(
    {"█": "F", "▒": "B", "·": ".", "→": ">", "×": "x", "µ": "u", "—": "-", "–": "-", "≥": ">=", "±": "+-"}
)

# What can command a terminal, or turn the direction of text; and the colours that our own pictures are painted in.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PAINT = re.compile("(\x1b\\[(?:0|38;5;[0-9]{1,3}|30;48;5;[0-9]{1,3})m)")


@dataclass(frozen=True, slots=True)
class Look:
    """What stdout can show.

    Args:
        width: columns for pictures; 80 where there is no terminal.
        utf8: whether block characters can be printed.
        colour: whether to colour.
        terminal: whether a person is watching.
    """

    width: int = 80
    utf8: bool = True
    colour: bool = False
    terminal: bool = False


def look(*, ascii_only: bool = False, no_colour: bool = False) -> Look:
    """Ask stdout and the environment (``NO_COLOR``, ``COLUMNS``, ``TERM``) what can be shown."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None where a shell closed it
    colour = terminal and not no_colour and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    # 40 columns hold a rank's name, its busy share and a few boxes; a narrower terminal wraps.
    return Look(
        width=max(40, shutil.get_terminal_size((80, 24)).columns),
        utf8=not ascii_only and _can_encode(sys.stdout, _GLYPHS),
        colour=colour,
        terminal=terminal,
    )


def say(text: str = "") -> None:
    """Print a result on stdout; what its encoding lacks is replaced, never an exception."""
    put(_fit(text, sys.stdout))


def put(text: str) -> None:
    """Print on stdout and write it out at once.

    Raises:
        OSError: stdout, by name, does not take it.
    """
    try:  # flushed at once: a full disk is an error of this answer, not of the interpreter's end
        print(text, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from error


def warn(sentence: str) -> None:
    """Print a warning or progress on stderr."""
    if sys.stderr is not None:  # else print would take stdout
        print(_fit(sentence, sys.stderr), file=sys.stderr)


def wrote(path: Path | str) -> None:
    """Say on stderr that a file was written."""
    warn(f"wrote {path}")


def printable(line: str, stream: TextIO) -> str:
    """Escape what a hostile file name or cell could do to a terminal, and what its encoding lacks."""
    safe = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in line)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return safe.encode(encoding, "backslashreplace").decode(encoding)


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _tame(text: str) -> str:
    """Names come from other people's files: what could command a terminal is printed as an escape."""
    if not _CONTROL.search(text):
        return text
    # Every second part is a colour of our own; what is between them came from somebody's file.
    parts = _PAINT.split(text)
    parts[::2] = (_CONTROL.sub(lambda found: repr(found[0])[1:-1], part) for part in parts[::2])
    return "".join(parts)


def _fit(text: str, stream: TextIO) -> str:
    text = _tame(text)
    if _can_encode(stream, text):
        return text
    encoding = getattr(stream, "encoding", None) or "ascii"
    # Signs that have a plain likeness become it; the rest becomes a question mark.
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


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
