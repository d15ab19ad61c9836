"""Chrome trace JSON as columns: decoded a chunk at a time, cut where one event ends and the next begins.

    blocks of text  ->  header | [ event, event, .. | event, .. ] | trailer  ->  columns of one chunk  ->  the taker

The root is an object whose keys stand before or behind ``traceEvents``, in any order, or a bare list. A chunk that the
typed decoder refuses is mended, then read event by event, so that one bad byte costs one event. Memory holds a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from .files import joins, mended, pieces

Lane = tuple[int | str | None, int | str | None]
Worth = Callable[[], NDArray[np.bool_]]
_MOST_HEADER = 8 << 20  # bytes before the first event; the largest seen holds 11 groups of 300 ranks in 30 kB
_PATIENCE = 3 << 20  # bytes to wait for the end of an event: past it a quote is missing, or this is no trace
_BARREN = 64 << 20  # bytes without one event after which the rest is none either: megabytes of noise cost minutes
_MOST = 1_000_000  # names, and lanes, that are told apart: a file of ids instead of either must not fill memory
_RETRIES = 6
_GAP = b", \r\n\t"
FAR = 4e18  # nanoseconds; times beyond it are nonsense, and must not overflow on their way to being set aside
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_OPENS = re.compile(rb"\s*:\s*\[")
_CLOSES = re.compile(rb'\s*(?:,\s*"|\}|$)')
_ENDING = re.compile(rb"\]\s*(?:,[^\[\]{}]*)?\}?\s*\Z")
_FLOWS = re.compile(rb"[stf]")  # phases of arrows: their start, a step, their finish
_JUNK = re.compile(rb"\A(?:\xef\xbb\xbf|\s+|(?:INFO|WARN|WARNING|ERROR|DEBUG|STAGE)[ :][^\n]*\n)+")


class Event(msgspec.Struct, gc=False):
    """What is read of each event; ``ts`` and ``dur`` are microseconds, whatever ``displayTimeUnit`` says.

    The fields stand in the order in which profilers write them, which is the order that is decoded fastest.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = 0
    tid: int | str | None = 0
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: int | str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One chunk of events as columns of the same length.

    Args:
        phase: the letter of each event, uint8.
        word: index into ``Words.known``, a pair of category and name, int32.
        lane: index into ``Words.lanes``, a pair of pid and tid, int32.
        start: nanoseconds, int64, without the base time of the file.
        duration: nanoseconds, int64.
        link: id of a flow, int64; 0 where there is none.
        args: JSON of the arguments.
        correlation: the id that joins a launch with its kernel, int64, -1 without one; None if ``args`` tell it.
    """

    phase: NDArray[np.uint8]
    word: NDArray[np.int32]
    lane: NDArray[np.int32]
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    link: NDArray[np.int64]
    args: list[msgspec.Raw]
    correlation: NDArray[np.int64] | None = None


class _Numbers(dict[Any, int]):
    """Numbers that are given out as keys come up; past a million of them all others share the number of ``rest``."""

    def __init__(self, rest: object) -> None:
        self._rest = rest

    def __missing__(self, key: object) -> int:
        if len(self) >= _MOST and key != self._rest:
            return self[self._rest]
        self[key] = number = len(self)
        return number


class _Seen(dict[Any, Any]):
    """What was found for a key is looked up when it comes again: a call for each event is what costs."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find = find

    def __missing__(self, key: object) -> Any:
        self[key] = found = self._find(key)
        return found


class Words:
    """Numbers for the names and lanes of one file, given out as they come up."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], int] = _Numbers(("", ""))
        self.lanes: dict[Lane, int] = _Numbers((None, None))


@dataclass(frozen=True, slots=True)
class Told:
    """What a file says beside its events.

    Args:
        header: the keys of the root object but ``traceEvents``.
        remarks: what was lost or mended, a clause each.
        rows: events that were read, of whatever kind.
    """

    header: dict[str, Any]
    remarks: tuple[str, ...]
    rows: int


class _Tally:
    """What a pass over a file finds out on the way."""

    def __init__(self) -> None:
        self.header, self.trailer = b"", b""
        self.rows = self.lost = self.mended = 0
        self.closed = self.unread = self.barren = False

    def remarks(self) -> Iterator[str]:
        if self.lost:
            yield f"{self.lost:,} events could not be read and were left out"
        if self.mended:
            yield f"{self.mended:,} stretches of broken JSON were mended (NaN, control characters, bad escapes)"
        if self.barren:
            yield f"no event is in {_BARREN >> 20} MiB on end; what comes after was left out"
        elif not self.closed:
            yield "the list of events has no end: the file is cut off, and its tail is missing"
        if self.unread:
            yield "what stands behind the list of events could not be read"


def read_events(
    blocks: Iterable[bytes],
    take: Callable[[Events], None],
    words: Words,
    *,
    skip: frozenset[str] = frozenset(),
    worth: Worth | None = None,
) -> Told:
    """Decode a trace and hand its events to ``take``, chunk after chunk.

    Args:
        blocks: the text of the file.
        take: receives the columns of each chunk; they are not kept.
        words: filled with the names and lanes that the columns index.
        skip: categories whose names are not even counted among the words.
        worth: says of each word known by now whether its events become columns, bool[words]; all do without it.

    Raises:
        InputError: the text holds no list of events.
    """
    tally = _Tally()
    for batch in _batches(iter(blocks), tally):
        tally.rows += len(batch)
        # A trace with Python stacks is mostly of categories that tell nothing: dropped before any name is looked up.
        kept = [event for event in batch if event.cat not in skip] if skip else batch
        if kept:
            take(_columns(kept, words, worth))
    front, back = (_keys(text) for text in (tally.header.rstrip(_GAP) + b"}", tally.trailer.lstrip(_GAP)))
    tally.unread = not back and bool(tally.trailer.strip(_GAP + b"}"))
    return Told(front | back, tuple(tally.remarks()), tally.rows)


def arguments(raws: list[msgspec.Raw], decoder: msgspec.json.Decoder[Any]) -> list[Any]:
    """Decode the arguments of many events at once, with a decoder of a list.

    What the decoder refuses is mended, then read alone; what remains unreadable counts as empty.
    """
    text = b"[" + b",".join(raws) + b"]"
    for attempt in (bytes, mended):
        try:
            return list(decoder.decode(attempt(text)))
        except msgspec.MsgspecError:
            continue
    return [arguments([raw], decoder)[0] if len(raws) > 1 else decoder.decode(b"[{}]")[0] for raw in raws]


def _batches(blocks: Iterator[bytes], tally: _Tally) -> Iterator[list[Event]]:
    rest, barren = _into_the_list(blocks, tally), 0
    for block in blocks:
        if tally.closed:
            tally.trailer += block
            if len(tally.trailer) > _MOST_HEADER:
                break
            continue
        rest += block
        events, rest = _decoded(rest, tally)
        yield events
        barren = 0 if events else barren + len(block)
        if barren > _BARREN:
            tally.barren = True
            return
    if not tally.closed:
        yield _last(rest, tally)


def _into_the_list(blocks: Iterator[bytes], tally: _Tally) -> bytes:
    """Skip to the first event; keep the header; return what was read beyond it."""
    text = b""
    for block in blocks:
        text = _JUNK.sub(b"", text + block)
        if text.startswith(b"["):
            return text[1:]
        found = _find_key(text)
        if found:
            tally.header = text[text.index(b"{") + 1 : found[0]]
            return text[found[1] :]
        if len(text) > _MOST_HEADER or not text.startswith(b"{"):
            break
    raise InputError(
        Fault("trace", "it holds no list of trace events", "give a Chrome or Kineto trace: an object with traceEvents")
    )


def _find_key(text: bytes) -> tuple[int, int] | None:
    """Where the key ``traceEvents`` of the root begins, and where its list begins."""
    for depth, token in _depths(text):
        opens = _OPENS.match(text, token.end()) if depth == 1 and token[0] == b'"traceEvents"' else None
        if opens:
            return token.start(), opens.end()
    return None


def _boundary(text: bytes, end: int) -> int:
    """Index of the last comma before ``end`` that stands between ``}`` and ``{``; -1 where there is none."""
    while (end := text.rfind(b"{", 0, end)) > 0:
        before = text[max(end - 256, 0) : end].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return max(end - 256, 0) + len(before) - 1
    return -1


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)  # lax: some tracers write ts as a string


def _decode(text: bytes) -> list[Event] | None:
    try:
        return _EVENTS.decode(b"[" + text + b"]")
    except msgspec.MsgspecError:
        return None


def _decoded(text: bytes, tally: _Tally) -> tuple[list[Event], bytes]:
    """The whole events at the start of a text, and the rest of it."""
    cut = at = _boundary(text, len(text))
    for _ in range(_RETRIES):  # a list of objects inside an event, or a string, looks like a boundary
        if at < 0:
            break
        events = _decode(text[:at])
        if events is not None:
            return events, text[at + 1 :]
        at = _boundary(text, at)
    closed = _closed(text, tally)
    if closed is not None:
        return closed
    sure = _last_between(text)
    if sure < 0 and len(text) <= _PATIENCE:
        return [], text  # an event that is not whole yet
    # A cut that may lie inside an event costs that event alone; waiting for more would hold the whole file.
    at = sure if sure > 0 else cut
    if at < 0:
        tally.lost += 1
        return [], b""
    return _salvaged(text[:at], tally), text[at + 1 :]


def _closed(text: bytes, tally: _Tally) -> tuple[list[Event], bytes] | None:
    """The last events, where the list ends inside this text; the rest is the trailer. None where it does not."""
    end = _guessed_end(text)
    if end is None:
        end = _end(text)
        if end is None or not _CLOSES.match(text, end + 1):
            return None
    tally.closed, tally.trailer = True, text[end + 1 :]
    return _salvaged(text[:end], tally), b""


def _guessed_end(text: bytes) -> int | None:
    """Where the list ends if one of the last brackets ends it: found by trying, because scanning is slow."""
    at = len(text)
    for _ in range(_RETRIES):
        at = text.rfind(b"]", 0, at)
        if at < 0:
            return None
        if _CLOSES.match(text, at + 1) and text[:at].rstrip()[-1:] in b"}" and _decode(text[:at]) is not None:
            return at
    return None


def _end(text: bytes) -> int | None:
    """Where the list ends, by a scan that knows strings."""
    for depth, token in _depths(text):
        if depth < 0:
            return token.start() if token[0] == b"]" else None
    return None


def _last_between(text: bytes) -> int:
    """Index of the last comma between two whole events, by a scan that knows strings; -1 where there is none."""
    last = -1
    for depth, token in _depths(text):
        if depth == 0 and token[0] == b"}":
            last = token.end()
    comma = text.find(b",", last) if last >= 0 else -1
    return comma if comma >= 0 and not text[last:comma].strip() else -1


def _depths(text: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in b"{[") - (token[0] in b"}]")
        yield depth, token


def _last(text: bytes, tally: _Tally) -> list[Event]:
    """The events at the end of a file, whose list may lack its end."""
    closed = _closed(text, tally)
    if closed is not None:
        return closed[0]
    end = _ENDING.search(text)  # a broken event hides the end from the scan
    tally.closed = end is not None
    body = text[: end.start()] if end else text.rstrip(b", \n\r\t")
    return _salvaged(body, tally)


def _salvaged(text: bytes, tally: _Tally) -> list[Event]:
    """The events of a chunk: as it is, or mended whole, or one by one, whichever works first."""
    events = _decode(text)
    if events is not None:
        return events
    events = _decode(mended(text))
    if events is not None:
        tally.mended += 1
        return events
    parts, events, at = pieces(text), [], 0
    while at < len(parts):
        for piece, behind in joins(parts, at):
            one = _decode(piece) or _decode(mended(piece))
            if one:
                events += one
                at = behind
                break
        else:
            tally.lost, at = tally.lost + 1, at + 1
    return events


def _keys(inside: bytes) -> dict[str, Any]:
    """The keys of an object without its opening brace; an empty dictionary where it cannot be read."""
    text = b"{" + inside
    for attempt in (bytes, mended):
        try:
            keys = msgspec.json.decode(attempt(text))
        except msgspec.MsgspecError:
            continue
        return keys if isinstance(keys, dict) else {}
    return {}


def _columns(events: list[Event], words: Words, worth: Worth | None) -> Events:
    """Columns of the events that are worth any; a name that comes again in the chunk costs two lookups."""
    word_of = _Seen(lambda category: _Seen(lambda name: words.known[category, name]))
    word = np.fromiter([word_of[event.cat][event.name] for event in events], np.int32, len(events))
    if worth is not None:
        kept = worth()[word]
        events, word = list(compress(events, kept.tolist())), word[kept]
    phases = _phases(events)
    lanes = words.lanes
    return Events(
        phase=np.frombuffer(phases, np.uint8),
        word=word,
        lane=np.fromiter([lanes[event.pid, event.tid] for event in events], np.int32, len(events)),
        start=_nanoseconds([event.ts for event in events]),
        duration=_nanoseconds([event.dur for event in events]),
        link=_links(events) if _FLOWS.search(phases) else np.zeros(len(events), np.int64),
        args=[event.args for event in events],
    )


def _phases(events: list[Event]) -> bytes:
    """A letter for each event."""
    # A letter each in any sound trace: one join instead of a look at each.
    phases = "".join([event.ph for event in events])
    if len(phases) != len(events):
        phases = "".join([event.ph[:1] or " " for event in events])
    return phases.encode("latin-1", "replace")


def _links(events: list[Event]) -> NDArray[np.int64]:
    return np.array([0 if event.id is None else _number(event.id) for event in events], np.int64)


def _nanoseconds(microseconds: list[float | None]) -> NDArray[np.int64]:
    """Rounded to whole nanoseconds; a missing time is 0."""
    # ts is in microseconds with a fraction; doubles hold nanoseconds since boot, not since 1970.
    times = np.nan_to_num(np.array(microseconds, np.float64), nan=0.0) * 1000
    return np.rint(np.clip(times, -FAR, FAR)).astype(np.int64)


def _number(flow: int | str) -> int:
    """A number for a flow's id, which may be a string or larger than 64 bits."""
    return (flow if isinstance(flow, int) else hash(flow)) & ((1 << 62) - 1)
