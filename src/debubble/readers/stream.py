"""The bytes and lines of a file, unpacked, a block at a time: its first bytes tell whether it is gzip, not its name."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

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
        if size > _MOST_UNPACKED and size > _MOST_RATIO * stream.tell():
            return f"the gzip stream unpacks to more than {_MOST_RATIO} times its size"
        if text:
            yield text
        if inflater.eof:
            packed = inflater.unused_data or _read(stream)
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
