"""Bytes of files wherever they lie: paths and ``s3://`` addresses, gzip unpacked block by block, JSON mended.

Readers use of a path no more than ``Remote`` has: its name, its folder, whether it is there, its size and its bytes.
All memory is bounded: a gzip file that unpacks to far more than it can hold is cut off, and that is said.
"""

from __future__ import annotations

import codecs
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

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
