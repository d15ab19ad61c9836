"""The files of one run: those of a path that one reader knows, and what lies among them and is set aside aloud."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..core.errors import Fault, InputError
from .stream import first_bytes

_FEW = 8  # files with one fault that are named each on its own
_DIGITS = re.compile(r"\d[\d,.]*")
_PICKLE = "it is a pickle, which may run code when it is opened, and is not; dump the flight recorder as JSON"
# First bytes of what lies among traces, and what it is (https://en.wikipedia.org/wiki/List_of_file_signatures).
_KNOWN = (
    (b"\x89PNG", "it is a PNG picture"),
    (b"\xff\xd8\xff", "it is a JPEG picture"),
    (b"%PDF", "it is a PDF"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
    (b"\xff\xfe", "it is UTF-16 text; write it as UTF-8"),
    (b"\xfe\xff", "it is UTF-16 text; write it as UTF-8"),
)
_PAGE = re.compile(rb"\s*<(?:!doctype\s+)?html", re.IGNORECASE)
_MOST_FILES = 100_000
_MOSTLY = 0.75  # of the files that are known must be of one format for the others to be strays

F = TypeVar("F")


@dataclass(frozen=True, slots=True, eq=False)
class RunFiles(Generic[F]):
    """What was found.

    Args:
        paths: of one format.
        format: theirs.
        remarks: what was set aside, a sentence each.
    """

    paths: tuple[Path, ...]
    format: F
    remarks: tuple[str, ...]


def run_files(
    paths: Sequence[Path],
    recognised: Callable[[Path], F | None],
    name_of: Callable[[F], str],
    known: str,
    *,
    in_folders: Callable[[F], bool] = lambda kind: False,  # noqa: ARG005 - few formats are
) -> RunFiles[F]:
    """Find the files of one run.

    Args:
        paths: files and folders that were given.
        recognised: the format of a file; None if nothing is known about it.
        name_of: what a format is called.
        known: the formats there are, for messages.
        in_folders: whether files of a format say themselves which run they are of, so that each host may have a folder.

    Raises:
        InputError: nothing is there, nothing of it is known, or several formats or runs are mixed; all faults at once.
    """
    found: list[tuple[Path, F]] = []
    strange: list[tuple[Path, str]] = []
    faults: list[Fault] = []
    for file in _inside_all(paths, faults):
        try:
            kind = recognised(file)
            if kind is None:
                strange.append((file, why_unknown(first_bytes(file, 64))))
            else:
                found.append((file, kind))
        except OSError as error:
            strange.append((file, _unreadable(file, error).rule))
    asked_for = [(path, why) for path, why in strange if path in paths]
    faults += [Fault(str(path), why, f"known: {known}") for path, why in asked_for]
    if not faults and not found:
        unread = [Fault(str(path), why, f"known: {known}") for path, why in strange if "cannot be read" in why]
        faults = unread or [Fault(names(paths), "it holds no measurement", f"known: {known}")]
    if faults:
        raise InputError(*faults_alike(faults))
    kept, strays = _of_one_format(paths, found, name_of)
    if not in_folders(kept[0][1]):
        _check_one_run(paths, kept)
    endings = {path.suffix for path, _ in kept}
    lost = [(path, why) for path, why in strange if path.suffix in endings or "cannot be read" in why]
    return RunFiles(tuple(path for path, _ in kept), kept[0][1], (*left_out(lost), *left_out(strays)))


def names(paths: Sequence[Path | str]) -> str:
    """What was given, in words."""
    return ", ".join(str(path) for path in paths[:3]) + (", .." if len(paths) > 3 else "")


def _unreadable(path: Path, error: OSError) -> Fault:
    return Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a path that can")


def _inside_all(paths: Sequence[Path], faults: list[Fault]) -> Iterator[Path]:
    """The files of all paths; those that cannot be looked into add a fault."""
    for path in paths:
        try:
            yield from _inside(path)
        except OSError as error:
            faults.append(_unreadable(path, error))


def _inside(path: Path) -> list[Path]:
    """The path itself, or all files of a folder and the folders in it, in order of their numbers."""
    if not path.is_dir():
        return [path]
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
    if len(files) > _MOST_FILES:
        raise InputError(Fault(str(path), f"it holds {len(files):,} files", "give the folder of one run's traces"))
    return sorted(files, key=lambda file: [int(p) if p.isdigit() else p for p in re.split(r"(\d{1,18})", str(file))])


def _of_one_format(
    paths: Sequence[Path], found: Sequence[tuple[Path, F]], name_of: Callable[[F], str]
) -> tuple[list[tuple[Path, F]], list[tuple[Path, str]]]:
    """The files of the format that most are of, and the strays among them; those that were named are no strays."""
    counts = Counter(name_of(kind) for _, kind in found)
    main, count = counts.most_common(1)[0]
    strays = [(path, name_of(kind)) for path, kind in found if name_of(kind) != main]
    if strays and (count < _MOSTLY * len(found) or any(path in paths for path, _ in strays)):
        first = {name_of(kind): path for path, kind in reversed(found)}
        examples = ", ".join(f"{name} ({first[name].name})" for name in counts)
        raise InputError(Fault(names(paths), f"it holds several formats: {examples}", "name the files of one"))
    kept = [(path, kind) for path, kind in found if name_of(kind) == main]
    return kept, [(path, f"it is {kind} among {count:,} files that are each {main}") for path, kind in strays]


def _check_one_run(paths: Sequence[Path], found: Sequence[tuple[Path, F]]) -> None:
    folders = sorted({str(path.parent) for path, _ in found if path not in paths})
    if len(folders) > 1:
        shown = ", ".join(folders[:3]) + (", .." if len(folders) > 3 else "")
        raise InputError(Fault(names(paths), f"traces lie in {len(folders)} folders: {shown}", "name one of them"))


# Files that cannot be used: why, in words that say what they are instead, and one line for many alike.


def is_foreign(head: bytes) -> bool:
    """Whether a file that begins like this is certainly nothing that a reader knows, whatever is in it."""
    return any(head.startswith(magic) for magic, _ in _KNOWN)


def why_unknown(head: bytes) -> str:
    """What a file is that no reader knows, a clause.

    Args:
        head: its first bytes, unpacked.
    """
    if not head:
        return "it is empty"
    if _PAGE.match(head):
        return "it is a web page"
    for magic, what in _KNOWN:
        if head.startswith(magic):
            return what
    return "its content is of no known format"


def left_out(lost: Iterable[tuple[str | Path, str]]) -> list[str]:
    """A sentence for each file that was left out; one for all that have the same fault if these are many.

    Args:
        lost: path and fault of each, a clause.
    """
    return [f"{name}: {why}; {_were(count)} left out" for name, why, count in _alike(lost)]


def faults_alike(faults: Sequence[Fault]) -> list[Fault]:
    """Faults of files, one for all that are alike if these are many."""
    remedy = {fault.value: fault.remedy for fault in faults}
    found = []
    for name, why, count in _alike((fault.value, fault.rule) for fault in faults):
        rule = why if count == 1 else f"{why}; so for {count:,} files"
        found.append(Fault(name, rule, remedy[name]))
    return found


def _were(count: int) -> str:
    return "it was" if count == 1 else f"so for {count:,} files, which were"


def _alike(lost: Iterable[tuple[str | Path, str]]) -> Iterable[tuple[str, str, int]]:
    """Path, fault and number of files: each on its own, or the first of many whose faults differ at most in numbers."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, why in lost:
        groups.setdefault(_DIGITS.sub("", why), []).append((str(path), why))
    for some in groups.values():
        if len(some) > _FEW:
            yield (*some[0], len(some))
        else:
            yield from ((path, why, 1) for path, why in some)
