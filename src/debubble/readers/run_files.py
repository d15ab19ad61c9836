"""The files of one run: those of a path that one reader knows, and what lies among them and is set aside aloud."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..core.errors import Fault, InputError
from .stream import first_bytes, progress

_UNREADABLE = "it cannot be read"
_FEW = 8  # files with one fault that are named each on its own
_DIGITS = re.compile(r"\d[\d,.]*")
_PICKLE = "it is a pickle, which may run code when it is opened, and is not; dump the flight recorder as JSON"
# First bytes of what lies among traces, and what it is (https://en.wikipedia.org/wiki/List_of_file_signatures).
_KNOWN = (
    (b"\x89PNG", "it is a PNG picture"),
    (b"\xff\xd8\xff", "it is a JPEG picture"),
    (b"%PDF", "it is a PDF"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"\x80\x02", _PICKLE),  # 0x80 and the protocol's number, 2 to 5
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"\x80\x05", _PICKLE),
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
            strange.append((file, why_unreadable(error)))
    # A file that was named must be known; one that lies in a folder among others only if nothing else is there.
    for path, why in strange:
        if path in paths or (not found and _UNREADABLE in why):
            faults.append(Fault(str(path), why, f"known: {known}"))
    if not faults and not found:
        faults = [Fault(names(paths), "it holds no measurement", f"known: {known}")]
    if faults:
        raise InputError(*faults_alike(faults))
    main, kept, strays = _of_one_format(paths, found, name_of)
    if not in_folders(main):
        _check_one_run(paths, kept)
    # A README among traces is no loss; a file with their ending is one, and so is what could not be looked into.
    endings = {path.suffix for path in kept}
    lost = [(path, why) for path, why in strange if path.suffix in endings or _UNREADABLE in why]
    return RunFiles(tuple(kept), main, (*left_out(lost), *left_out(strays)))


def names(paths: Sequence[Path | str]) -> str:
    """What was given, in words."""
    return listed(paths, most=3)


def source_of(paths: Sequence[Path]) -> str:
    """What a reading of some files is called: the only one, or the folder of the first."""
    if len(paths) == 1:
        return str(paths[0])
    return str(paths[0].parent)


def listed(items: Sequence[object], most: int = 8) -> str:
    """Items in a row, with dots in place of those beyond ``most``."""
    shown = list(map(str, items[:most]))
    if len(items) > most:
        shown.append("..")
    return ", ".join(shown)


def why_unreadable(error: OSError) -> str:
    """What the system says of a file that it does not give, a clause."""
    return f"{_UNREADABLE}: {error.strerror or error}"


def _inside_all(paths: Sequence[Path], faults: list[Fault]) -> Iterator[Path]:
    """The files of all paths; those that cannot be looked into add a fault."""
    for path in paths:
        try:
            yield from _inside(path)
        except OSError as error:
            faults.append(Fault(str(path), why_unreadable(error), "give a path that can"))


def _inside(path: Path) -> list[Path]:
    """The path itself, or all files of a folder and the folders in it, in order of their numbers."""
    if not path.is_dir():
        return [path]
    files = []
    for file in path.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            files.append(file)
    if len(files) > _MOST_FILES:
        raise InputError(Fault(str(path), f"it holds {len(files):,} files", "give the folder of one run's traces"))
    return sorted(files, key=lambda file: natural(str(file)))


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which ``rank 9`` comes before ``rank 10``: text by its letters, numbers in it by their size."""
    key = []
    for part in re.split(r"(\d{1,18})", name):
        if part.isdecimal():
            key.append((int(part), ""))
        elif part:
            key.append((-1, part))
    return key


def _of_one_format(
    paths: Sequence[Path], found: Sequence[tuple[Path, F]], name_of: Callable[[F], str]
) -> tuple[F, list[Path], list[tuple[Path, str]]]:
    """The format that most files are of, these files, and the strays among them; what was named is no stray."""
    by_name: dict[str, list[Path]] = {}
    kinds: dict[str, F] = {}
    for path, kind in found:
        by_name.setdefault(name_of(kind), []).append(path)
        kinds.setdefault(name_of(kind), kind)
    main = max(by_name, key=lambda name: len(by_name[name]))
    kept = by_name[main]
    strays, named = [], False
    for name, some in by_name.items():
        if name != main:
            strays += [(path, f"it is {name} among {len(kept):,} files that are each {main}") for path in some]
            named |= not set(paths).isdisjoint(some)
    if named or len(kept) < _MOSTLY * len(found):
        examples = ", ".join(f"{name} ({some[0].name})" for name, some in by_name.items())
        raise InputError(Fault(names(paths), f"it holds several formats: {examples}", "name the files of one"))
    return kinds[main], kept, strays


def _check_one_run(paths: Sequence[Path], found: Sequence[Path]) -> None:
    folders = sorted({str(path.parent) for path in found if path not in paths})
    if len(folders) > 1:
        rule = f"traces lie in {len(folders)} folders: {listed(folders, most=3)}"
        raise InputError(Fault(names(paths), rule, "name one of them"))


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
    remarks = []
    for name, why, count in _alike(lost):
        if count == 1:
            remarks.append(f"{name}: {why}; it was left out")
        else:
            remarks.append(f"{name}: {why}; so for {count:,} files, which were left out")
    return remarks


def faults_alike(faults: Sequence[Fault]) -> list[Fault]:
    """Faults of files, one for all that are alike if these are many."""
    remedy = {fault.value: fault.remedy for fault in faults}
    found = []
    for name, why, count in _alike((fault.value, fault.rule) for fault in faults):
        if count > 1:
            why = f"{why}; so for {count:,} files"
        found.append(Fault(name, why, remedy[name]))
    return found


def _alike(lost: Iterable[tuple[str | Path, str]]) -> Iterable[tuple[str, str, int]]:
    """Path, fault and number of files: each on its own, or the first of many whose faults differ at most in numbers."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, why in lost:
        # Byte offsets and counts differ from file to file: without their digits the same fault reads the same.
        groups.setdefault(_DIGITS.sub("", why), []).append((str(path), why))
    for some in groups.values():
        if len(some) > _FEW:
            yield (*some[0], len(some))
        else:
            for path, why in some:
                yield path, why, 1


def read_on_ray(read: Callable[[Path], object], paths: Sequence[Path], together: int = 1) -> list[object]:
    """What each file holds, in their order, read by Ray tasks: on the cluster of RAY_ADDRESS, or on this host.

    The tasks open the paths where they run, so these must be there: a shared folder, or ``s3://`` and its like.

    Args:
        read: reads one file; raises nothing.
        paths: of the files.
        together: how many of them a task reads: small files cost less than a task.

    Raises:
        InputError: Ray is not installed, or its cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        rule = "Ray is not installed"
        raise InputError(Fault("--ray", rule, "install debubble[ray], or leave the option out")) from error
    try:
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        task = ray.remote(_read_some)
        found: list[object] = []
        batches = [paths[first : first + together] for first in range(0, len(paths), together)]
        running = [task.remote(read, batch) for batch in batches]  # all at once; they are waited for in order
        for batch, one in zip(batches, running, strict=True):
            rows = ray.get(one)
            found += rows
            progress.get()(sum(path.stat().st_size for path in batch if path.exists()))
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, SystemError) as error:  # the last of its start
        said = str(error).strip().splitlines() or [type(error).__name__]
        rule = f"the cluster does not answer: {said[-1]}"
        raise InputError(Fault("--ray", rule, "look at RAY_ADDRESS, or leave the option out")) from error
    return found


def _read_some(read: Callable[[Path], object], paths: Sequence[Path]) -> list[object]:
    return [read(path) for path in paths]
