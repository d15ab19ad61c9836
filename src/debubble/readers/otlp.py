"""Megatron-Core's OpenTelemetry spans as OTLP JSON: micro-batches, sends and receives of each rank, one clock a host.

A line of what the collector's file exporter writes is one batch of spans, and so is a file that is one document:
``{"resourceSpans": [{"resource": .., "scopeSpans": [{"spans": [..]}]}]}`` (https://opentelemetry.io/docs/specs/otlp/).
The resource says whose spans they are (``dl.rank``, ``dl.pipeline_parallel.rank``, ``host.name``), the names say what
they are (Megatron-LM, docs/user-guide on telemetry, span groups). No chunk is named and no backward's micro-batch:
their order tells. Fused sends and receives (``send_forward_recv_backward``) get no span of their own.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.schedule import Kind
from ..reconstruct.device_ops import UNKNOWN, Clock, RankOps, Reading, Transfers
from .files import blocks, left_out, mended, why_unreadable

_MOST_BYTES = 1 << 28  # of one line, or of a file that is one document
_LAST = (1 << 63) - 1  # nanoseconds


class _What(IntEnum):
    """What a span is of; the transfers are odd where they send, and from 4 on where they carry gradients."""

    RECEIVE_FORWARD = 2
    SEND_FORWARD = 3
    RECEIVE_BACKWARD = 4
    SEND_BACKWARD = 5
    FORWARD = 6
    BACKWARD = 7
    STEP = 8
    EVALUATION = 9


_SPANS = {
    "megatron.microbatch.forward": _What.FORWARD,
    "megatron.microbatch.backward": _What.BACKWARD,
    "megatron.p2p.send_forward": _What.SEND_FORWARD,
    "megatron.p2p.recv_forward": _What.RECEIVE_FORWARD,
    "megatron.p2p.send_backward": _What.SEND_BACKWARD,
    "megatron.p2p.recv_backward": _What.RECEIVE_BACKWARD,
    "megatron.train_step": _What.STEP,
    "megatron.evaluate": _What.EVALUATION,
}
_PASSES = "megatron.forward_backward"  # around all micro-batches of a step; says how many they are
_LINKED = "megatron.pp.recv_forward.linked"  # says the place in the pipeline where the resource does not
_RANK = ("dl.rank", "nv.dl.rank")
_PLACE, _REPLICA = "dl.pipeline_parallel.rank", "dl.data_parallel.rank"
_COORDINATES = {
    "place": (_PLACE,),
    "replica": (_REPLICA,),
    "tensor": ("dl.tensor_parallel.rank",),
    "context": ("dl.context_parallel.rank",),
    "world": ("dl.world_size", "nv.dl.world_size"),
}
_REMEDY = "export with MEGATRON_OTEL_SPAN_GROUPS=all, which has the groups step, microbatch and communication"

Value = int | str | float | bool | None


class _Any(msgspec.Struct, gc=False):
    """A value by its type; 64-bit integers are strings in OTLP JSON, and launchers write numbers as text."""

    intValue: int | str | None = None  # noqa: N815 - the format's name, as below
    stringValue: str | None = None  # noqa: N815

    def number(self) -> int | None:
        said = self.stringValue if self.intValue is None else self.intValue
        text = str(said).strip()
        if not text.isdecimal() or len(text) >= 10:
            return None
        return int(text)


class _Attribute(msgspec.Struct, gc=False):
    key: str = ""
    value: _Any = msgspec.field(default_factory=_Any)


class _Span(msgspec.Struct, gc=False):
    name: str = ""
    startTimeUnixNano: int = 0  # noqa: N815
    endTimeUnixNano: int = 0  # noqa: N815
    attributes: list[_Attribute] = []


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] = []


class _OfResource(msgspec.Struct):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scopeSpans: list[_Scope] = []  # noqa: N815


class _Batch(msgspec.Struct):
    resourceSpans: list[_OfResource] = []  # noqa: N815


@dataclass(frozen=True, slots=True)
class _Rank:
    """What the spans of one rank say.

    Args:
        source: the file in which it first came up.
        said: its coordinates, as far as its resource says them.
        host: whose clock its times are of.
        cells: four integers a span: what it is, its start and end in nanoseconds since 1970, and a step's iteration
            (-1 for any other span). Millions of spans are 32 bytes each, and no object.
        passes: micro-batches of a step, as its spans say them.
    """

    source: str
    said: dict[str, int]
    host: str
    cells: array[int] = field(default_factory=lambda: array("q"))
    passes: set[int] = field(default_factory=set)

    def rows(self, *kinds: _What) -> NDArray[np.int64]:
        """Start, end, iteration and kind of the spans of some kinds by their start, int64[4, spans]."""
        what, start, end, iteration = np.array(self.cells, np.int64).reshape(-1, 4).T
        mine = np.flatnonzero(np.isin(what, kinds))
        mine = mine[np.lexsort((end[mine], start[mine]))]
        return np.stack([start[mine], end[mine], iteration[mine], what[mine]])


@dataclass(frozen=True, slots=True)
class _Found:
    """All ranks so far, and how many spans were read, are of no known rank (``nameless``), or run ``backwards``."""

    ranks: dict[int, _Rank] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)


def is_otlp(head: bytes) -> bool:
    """Whether a file that begins like this holds spans as OTLP JSON."""
    return head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{" and b'"resourceSpans"' in head


def read_otlp(paths: Sequence[Path], source: str) -> Reading:
    """Read the spans of all ranks; a line that cannot be read costs that line.

    Args:
        paths: files of one run, in which spans of several ranks may be mixed.
        source: what the user gave, for messages.

    Raises:
        InputError: no span of a micro-batch is there, or none of them says its rank.
    """
    found, remarks, lost = _Found(), list[str](), list[tuple[str, str]]()
    for path in paths:
        try:
            _read(path, found, remarks)
        except OSError as error:
            lost.append((str(path), why_unreadable(error)))
    remarks += left_out(lost)
    if found.count["nameless"]:
        remarks.append(
            f"{source}: {found.count['nameless']:,} spans were left out: their resource does not say dl.rank"
        )
    if found.count["backwards"]:
        remarks.append(f"{source}: {found.count['backwards']:,} spans were left out: they end before they start")
    ranks = {}
    for rank, one in sorted(found.ranks.items()):
        if one.rows(_What.FORWARD, _What.BACKWARD).size:
            ranks[rank] = one
    if not ranks:
        raise InputError(Fault(source, _missing(found, remarks), _REMEDY))
    hosts = {one.host for one in ranks.values()}
    clock = Clock.SHARED if len(hosts) == 1 else Clock.OWN
    whole = _whole_transfers(ranks, remarks)
    replicas = _replicas(ranks)
    devices = []
    for rank, one in ranks.items():
        devices.append(replace(_device(rank, one, clock, whole), replica=replicas[rank]))
    remarks.append(
        f"{source}: spans are times of the CPU; on a GPU they end at the launch, unless the job synchronizes"
    )
    worlds = [one.said["world"] for one in ranks.values() if "world" in one.said]
    return Reading(source, tuple(devices), tuple(remarks), max(worlds, default=None), _chunks(devices, ranks))


def _missing(found: _Found, remarks: list[str]) -> str:
    rule = f"none of its {found.count['read']:,} spans of known ranks is megatron.microbatch.forward or .backward"
    return "; ".join([rule, *remarks])


def _read(path: Path, found: _Found, remarks: list[str]) -> None:
    bad, first = 0, 0
    for number, text in _documents(path, remarks):
        batch = _decoded(text)
        if batch is None:
            bad, first = bad + 1, first or number
            continue
        for one in batch.resourceSpans:
            _take(one, found, str(path))
    if bad:
        lines = f"{bad:,} lines"
        if bad == 1:
            lines = "1 line"
        remarks.append(f"{path}: {lines} left out, the first is line {first}: it is no batch of spans")


def _documents(path: Path, remarks: list[str]) -> Iterator[tuple[int, bytes]]:
    """Number and text of each line; the whole file where its first line is not a document, but begins one."""
    rest, number, whole = b"", 0, False
    for block in blocks(path, remarks):
        rest += block
        if len(rest) > _MOST_BYTES:
            remarks.append(f"{path}: it has {_MOST_BYTES >> 20} MiB without an end of line; they were left out")
            return
        if not number and not whole and b"\n" in rest:  # a pretty document breaks off behind its first brace
            whole = rest.partition(b"\n")[0].strip() in (b"{", b"")
        if whole:
            continue
        *lines, rest = rest.split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


_DECODER = msgspec.json.Decoder(_Batch, strict=False)  # lax: times are strings of digits


def _decoded(text: bytes) -> _Batch | None:
    for attempt in (bytes, mended):
        try:
            return _DECODER.decode(attempt(text))
        except msgspec.MsgspecError:
            continue
    return None


def _take(one: _OfResource, found: _Found, source: str) -> None:
    """Sort the spans of one resource by what they are."""
    said = {each.key: each.value for each in one.resource.attributes}
    spans: list[_Span] = []
    for scope in one.scopeSpans:
        spans += scope.spans
    rank = _first(said, _RANK)
    if rank is None:
        found.count["nameless"] += len(spans)
        return
    # Batches of one rank come again and again: its coordinates are those of the first.
    device = found.ranks.get(rank)
    if device is None:
        host = said["host.name"].stringValue if "host.name" in said else None
        device = found.ranks[rank] = _Rank(source, _told(said), host or f"of rank {rank}")
    found.count["read"] += len(spans)
    for span in spans:
        start, end = span.startTimeUnixNano, span.endTimeUnixNano
        # An end of 0 is what a span has that was never ended.
        if not 0 <= start <= end <= _LAST:
            found.count["backwards"] += 1
            continue
        what = _SPANS.get(span.name)
        if what is not None:
            iteration = _of_span(span, "megatron.iteration") if what == _What.STEP else None
            device.cells.extend((what, start, end, UNKNOWN if iteration is None else iteration))
        elif span.name == _PASSES:
            device.passes.add(_of_span(span, "megatron.num_microbatches") or 0)
        elif span.name == _LINKED:
            place = _of_span(span, _PLACE)
            if place is not None:
                device.said.setdefault("place", place)


def _told(said: dict[str, _Any]) -> dict[str, int]:
    """Coordinates of a rank, as far as its resource says them."""
    found = {}
    for name, keys in _COORDINATES.items():
        number = _first(said, keys)
        if number is not None:
            found[name] = number
    return found


def _first(said: dict[str, _Any], keys: Sequence[str]) -> int | None:
    for key in keys:
        if key in said and (number := said[key].number()) is not None:
            return number
    return None


def _of_span(span: _Span, key: str) -> int | None:
    for each in span.attributes:
        if each.key == key:
            return each.value.number()
    return None


def _replicas(ranks: dict[int, _Rank]) -> dict[int, int | None]:
    """The replica of each rank: as it says itself, else by its tensor and context rank if all say these.

    Ranks of one place that differ in these are members of one stage; those that do not are of different replicas, which
    count in the order of ranks: every framework puts the tensor axis innermost.
    """
    said = {rank: one.said.get("replica") for rank, one in ranks.items()}
    known = all({"place", "tensor"} <= one.said.keys() for one in ranks.values())
    if not known or None not in said.values():
        return said
    seen: Counter[tuple[int, ...]] = Counter()
    counted: dict[int, int | None] = {}
    for rank, one in ranks.items():
        seat = (one.said["place"], one.said["tensor"], one.said.get("context", 0))
        counted[rank] = seen[seat]
        seen[seat] += 1
    return counted


def _whole_transfers(ranks: dict[int, _Rank], remarks: list[str]) -> bool:
    """Whether every send and receive has a span; where some do, the others were fused and their times are not known."""
    spans = 0
    for one in ranks.values():
        what = np.array(one.cells, np.int64)[::4]
        times = np.bincount(what, minlength=len(_What) + 2)
        forward = times[[_What.SEND_FORWARD, _What.RECEIVE_FORWARD]]
        backward = times[[_What.SEND_BACKWARD, _What.RECEIVE_BACKWARD]]
        spans += int(forward.sum() + backward.sum())
        # The first rank receives no activations and the last sends none: a way has a span for each pass, or none.
        fused = ((forward > 0) & (forward != times[_What.FORWARD])).any()
        fused |= ((backward > 0) & (backward != times[_What.BACKWARD])).any()
        if fused:
            remarks.append(
                f"{one.source}: its sends and receives are not one for each pass (fused ones get no span); "
                "they were not used"
            )
            return False
    return spans > 0


def _device(rank: int, one: _Rank, clock: Clock, whole: bool) -> RankOps:
    start, end, _, what = _in_training(one, _What.FORWARD, _What.BACKWARD)
    steps = one.rows(_What.STEP)
    moves = _in_training(one, *(kind for kind in _What if kind <= _What.SEND_BACKWARD))
    lengths = {}
    for begun, done, number in steps[:3].T.tolist():
        if number >= 0:
            lengths[number] = done - begun
    return RankOps(
        rank=rank,
        source=one.source,
        step=_step_of(start, steps),
        kind=np.where(what == _What.FORWARD, Kind.F, Kind.B).astype(np.uint8),
        start=start,
        end=end,
        position=one.said.get("place"),
        clock=clock,
        step_ns=lengths,
        talks=moves.size > 0,
        transfers=_transfers(moves, steps) if whole else None,
    )


def _transfers(moves: NDArray[np.int64], steps: NDArray[np.int64]) -> Transfers:
    start, end, _, what = moves
    return Transfers(
        step=_step_of(start, steps),
        send=what % 2 == 1,
        forward=(what < _What.RECEIVE_BACKWARD).astype(np.int8),
        peer=np.full(len(start), UNKNOWN, np.int32),
        start=start,
        end=end,
    )


def _in_training(one: _Rank, *kinds: _What) -> NDArray[np.int64]:
    """Spans of some kinds, without those in an evaluation: its passes are no training's, int64[4, spans]."""
    rows = one.rows(*kinds)
    evaluations = one.rows(_What.EVALUATION)
    return rows[:, _outside(rows[0], evaluations[0], evaluations[1])]


def _outside(times: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which times lie in none of some spans, which are sorted by their start."""
    if not len(start):
        return np.ones(len(times), np.bool_)
    reach = np.maximum.accumulate(end)
    before = np.searchsorted(start, times, side="right") - 1
    outside: NDArray[np.bool_] = (before < 0) | (times > reach[before])
    return outside


def _step_of(times: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Iteration of the step that each time lies in; -1 where none does."""
    if not steps.size:
        return np.full(len(times), UNKNOWN, np.int64)
    row = np.searchsorted(steps[0], times, side="right") - 1
    inside = (row >= 0) & (times <= steps[1, row])
    return np.where(inside, steps[2, row], UNKNOWN)


def _chunks(devices: Sequence[RankOps], ranks: dict[int, _Rank]) -> int | None:
    """Stages a rank: the forwards of a step over the micro-batches that its spans name; None where they differ."""
    found = set()
    for device in devices:
        named = ranks[device.rank].passes
        forwards = device.step[(device.kind == Kind.F) & (device.step >= 0)]
        if len(named) != 1 or not len(forwards) or 0 in named:
            return None
        counts = np.unique(forwards, return_counts=True)[1]
        found.add(int(np.median(counts)) / max(named))
    each = found.pop()
    if found or not each.is_integer() or each < 1:
        return None
    return int(each)
