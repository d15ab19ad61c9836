"""Files wherever they lie: those of one run that one reader knows, and their bytes, unpacked, mended and bounded.

Paths and ``s3://`` addresses alike: readers use of a path no more than ``Remote`` has: its name, its folder, whether it
is there, its size and its bytes. All memory is bounded: a gzip file that unpacks to far more than it can hold is cut
off, and that is said. What lies among the files of a run and is none is set aside aloud.
"""

from __future__ import annotations

import codecs
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Generic, TypeVar, cast

from ..core.errors import Fault, InputError


@dataclass(frozen=True, slots=True)
class Size:
    """What ``stat`` tells of a remote file."""

    st_size: int


@dataclass(frozen=True, slots=True, order=True)
class Remote:
    """A file or folder behind an address; the methods are those of ``Path`` that readers use."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.address).name

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.address).suffix

    @property
    def parent(self) -> Remote:
        """The folder around it."""
        return Remote(self.address.rstrip("/").rpartition("/")[0])

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open its bytes."""
        return cast(BinaryIO, self._system().open(self.address, mode))

    def read_bytes(self) -> bytes:
        """All of its bytes."""
        with self.open() as stream:
            return stream.read()

    def exists(self) -> bool:
        """Whether anything is there."""
        return bool(self._system().exists(self.address))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self._system().isdir(self.address))

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._system().isfile(self.address))

    def stat(self) -> Size:
        """Its size."""
        return Size(int(self._system().info(self.address)["size"] or 0))

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Files of the folder whose names fit a pattern."""
        return (file for file in self.rglob(pattern) if file.parent == Remote(self.address.rstrip("/")))

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """Files of the folder and of those in it whose names fit a pattern."""
        system = self._system()
        folder, here = self.address.rstrip("/"), system._strip_protocol(self.address).rstrip("/")
        for found in system.find(self.address):
            file = Remote(folder + found.removeprefix(here))
            if fnmatch(file.name, pattern):
                yield file

    def _system(self) -> Any:
        scheme = self.address.partition("://")[0]
        try:
            import fsspec

            return fsspec.filesystem(scheme)
        except ImportError as error:
            rule = f"{scheme}:// is opened by a package that is not here ({error})"
            raise InputError(Fault(self.address, rule, "install debubble[remote], and what it names")) from error
        except ValueError as error:
            rule = f"{scheme}:// is not known to fsspec"
            raise InputError(Fault(self.address, rule, "give a path, or an address such as s3://bucket/run")) from error


def place(text: str | Path | Remote) -> Path:
    """A path of this machine, or a ``Remote`` that stands in for one."""
    if isinstance(text, str) and "://" in text:
        return cast(Path, Remote(text))
    return cast(Path, text) if isinstance(text, Remote) else Path(text)


@contextmanager
def local(path: Path | Remote) -> Iterator[Path]:
    """The file on this machine: itself, or a copy for as long as it is needed."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with path.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        yield copy


BLOCK = 1 << 20  # bytes of text at a time: what a reader holds
LONGEST = 1 << 20  # characters of a line that are kept; no table and no log has longer ones
_PACKED = 1 << 18
_GZIP = b"\x1f\x8b"
# Traces and logs shrink 5 to 50 times; deflate ends at 1,032 times, which only repetition of one byte reaches.
_MOST_UNPACKED = 1 << 28  # bytes that may come from next to nothing
_MOST_RATIO = 400

# Is told how many bytes of a file were read, for whoever shows how far a reading has come; ``int`` does nothing.
progress: ContextVar[Callable[[int], object]] = ContextVar("progress", default=int)


def blocks(path: Path, remarks: list[str]) -> Iterator[bytes]:
    """Yield the text of a file, plain or gzip, in blocks of at most 1 MiB.

    A gzip file that is cut off or torn yields all that can be unpacked; ``remarks`` then says where it ended.
    """
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP
        stream.seek(0)
        if not packed:
            for block in iter(lambda: stream.read(BLOCK), b""):
                progress.get()(len(block))
                yield block
            return
        try:
            fault = yield from _unpacked(stream)
        except _errors() as error:
            fault = f"the gzip stream is torn ({error})"
        if fault:
            remarks.append(f"{path}: {fault} at byte {stream.tell():,}; only what came before was read")


def lines(path: Path, remarks: list[str]) -> Iterator[str]:
    """Yield each line without its end; bytes that are no UTF-8 become the replacement character.

    Args:
        path: what to read.
        remarks: gets a sentence where a gzip file is cut off.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8-sig")("replace"), ""
    for block in blocks(path, remarks):
        *whole, rest = (rest + decoder.decode(block)).split("\n")
        yield from (line.rstrip("\r")[:LONGEST] for line in whole)
        rest = rest[:LONGEST]
    if rest:
        yield rest


def first_bytes(path: Path, size: int = 4096) -> bytes:
    """The first ``size`` bytes of the text of a file, for telling formats apart."""
    text, token = b"", progress.set(int)  # a look is no reading
    try:
        for block in blocks(path, []):
            text += block
            if len(text) >= size:
                break
    finally:
        progress.reset(token)
    return text[:size]


def _unpacked(stream: BinaryIO) -> Generator[bytes, None, str]:
    """Yield the text of every gzip member; return what is wrong with the last one, or an empty string."""
    zlib = _zlib()
    inflater, packed, size = zlib.decompressobj(wbits=31), _read(stream), 0
    while True:
        text = inflater.decompress(packed, BLOCK)
        size += len(text)
        # Only much text from few bytes is a bomb: a small file may shrink as far, and harms nobody.
        if size > _MOST_UNPACKED and size > _MOST_RATIO * stream.tell():
            return f"the gzip stream unpacks to more than {_MOST_RATIO} times its size"
        if text:
            yield text
        if inflater.eof:
            packed = inflater.unused_data or _read(stream)
            # gzip files may be concatenated, as logs are that were rotated and joined.
            if not packed.startswith(_GZIP):  # padding, or nothing
                return ""
            inflater = zlib.decompressobj(wbits=31)
        else:
            packed = inflater.unconsumed_tail or _read(stream)
            if not packed and not text:
                return "the gzip stream is cut off"


def _read(stream: BinaryIO) -> bytes:
    packed = stream.read(_PACKED)
    progress.get()(len(packed))
    return packed


def _zlib() -> Any:
    try:
        from isal import isal_zlib as zlib
    except ImportError:  # no wheel for this machine
        import zlib  # type: ignore[no-redef]
    return zlib


def _errors() -> tuple[type[Exception], ...]:
    import zlib

    return (zlib.error, getattr(_zlib(), "error", zlib.error), EOFError)


_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,])\s*[-+]?(?:NaN|nan|Infinity|inf|Inf)\b")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LOG_LINE = re.compile(rb"(?m)^(?:INFO|WARN|WARNING|ERROR|DEBUG|STAGE)[ :][^\n]*$")
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_NESTED = 8  # pieces that are tried as one event, where lists of objects stand inside it


def mended(text: bytes) -> bytes:
    """The same JSON without what parsers refuse; what it says stays the same, but for the unreadable characters.

    NaN and infinities become null, control characters spaces, bytes that are no UTF-8 the replacement character,
    backslashes that escape nothing plain backslashes, and log lines between events go.
    """
    text = _LOG_LINE.sub(b"", text).translate(_CONTROL).decode("utf-8", "replace").encode()
    # Halves of a doubled backslash are good escapes: only what stands between them is looked at.
    text = rb"\\".join(_BAD_ESCAPE.sub(rb"\\\\", part) for part in text.split(rb"\\"))
    return _NOT_A_NUMBER.sub(b"null", text)


def pieces(text: bytes) -> list[bytes]:
    """Cut a run of events at what looks like the end of one and the start of the next."""
    return _BETWEEN.split(text)


def joins(parts: Sequence[bytes], first: int) -> Iterator[tuple[bytes, int]]:
    """What may be the event that begins at a piece: it alone, it with the next, ..; and the piece behind it."""
    for last in range(first + 1, min(first + _NESTED, len(parts)) + 1):
        yield b",".join(parts[first:last]), last


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
