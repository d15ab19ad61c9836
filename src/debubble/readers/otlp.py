"""Megatron-Core's OpenTelemetry spans as OTLP JSON: micro-batches, sends and receives of each rank, one clock a host.

A line of what the collector's file exporter writes is one batch of spans, and so is a file that is one document:
``{"resourceSpans": [{"resource": .., "scopeSpans": [{"spans": [..]}]}]}`` (https://opentelemetry.io/docs/specs/otlp/).
The resource says whose spans they are (``dl.rank``, ``dl.pipeline_parallel.rank``, ``host.name``), the names say what
they are (Megatron-LM, docs/user-guide on telemetry, span groups). No chunk is named and no backward's micro-batch:
their order tells. Fused sends and receives (``send_forward_recv_backward``) get no span of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.op import Kind
from ..reconstruct.device_ops import UNKNOWN, Clock, RankOps, Reading, Transfers
from .run_files import left_out
from .stream import blocks, mended

_MOST_BYTES = 1 << 28  # of one line, or of a file that is one document
_LAST = (1 << 63) - 1  # nanoseconds
_WORK = {"megatron.microbatch.forward": Kind.F, "megatron.microbatch.backward": Kind.B}
_MOVES = {  # name: whether it sends, and whether activations
    "megatron.p2p.send_forward": (True, 1),
    "megatron.p2p.recv_forward": (False, 1),
    "megatron.p2p.send_backward": (True, 0),
    "megatron.p2p.recv_backward": (False, 0),
}
_STEP, _PASSES = "megatron.train_step", "megatron.forward_backward"
_EVALUATION = "megatron.evaluate"
_RANK = ("dl.rank", "nv.dl.rank")
_PLACE, _REPLICA = "dl.pipeline_parallel.rank", "dl.data_parallel.rank"
_MEMBER, _WORLD = "dl.tensor_parallel.rank", ("dl.world_size", "nv.dl.world_size")
_REMEDY = "export with MEGATRON_OTEL_SPAN_GROUPS=all, which has the groups step, microbatch and communication"

Value = int | str | float | bool | None


class _Any(msgspec.Struct, gc=False):
    """A value by its type; 64-bit integers are strings in OTLP JSON, and launchers write numbers as text."""

    intValue: int | str | None = None  # noqa: N815 - the format's name, as below
    stringValue: str | None = None  # noqa: N815

    def number(self) -> int | None:
        said = str(self.stringValue if self.intValue is None else self.intValue).strip()
        return int(said) if said.isdecimal() and len(said) < 10 else None


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
    """What the spans of one rank say, times in nanoseconds since 1970.

    Args:
        work: start, end and kind of each op.
        moves: start, end, whether it sends, and direction of each transfer.
        steps: start, end and iteration of each step.
        evaluations: start and end of each.
        passes: micro-batches of a step, as its spans say them.
    """

    source: str
    said: dict[str, int]
    host: str
    work: list[tuple[int, int, int]] = field(default_factory=list)
    moves: list[tuple[int, int, bool, int]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    evaluations: list[tuple[int, int]] = field(default_factory=list)
    passes: set[int] = field(default_factory=set)


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
            lost.append((str(path), f"it cannot be read: {error.strerror or error}"))
    remarks += left_out(lost)
    if found.count["nameless"]:
        remarks.append(
            f"{source}: {found.count['nameless']:,} spans were left out: their resource does not say dl.rank"
        )
    if found.count["backwards"]:
        remarks.append(f"{source}: {found.count['backwards']:,} spans were left out: they end before they start")
    ranks = {rank: one for rank, one in sorted(found.ranks.items()) if one.work}
    if not ranks:
        raise InputError(Fault(source, _missing(found, remarks), _REMEDY))
    clock = Clock.SHARED if len({one.host for one in ranks.values()}) == 1 else Clock.OWN
    whole = _whole_transfers(ranks, remarks)
    devices = [_device(rank, one, clock, whole) for rank, one in ranks.items()]
    remarks.append(
        f"{source}: spans are times of the CPU; on a GPU they end at the launch, unless the job synchronizes"
    )
    world = max((one.said["world"] for one in ranks.values() if "world" in one.said), default=None)
    return Reading(source, tuple(devices), tuple(remarks), world, _chunks(devices, ranks))


def _missing(found: _Found, remarks: list[str]) -> str:
    why = "".join(f"; {remark}" for remark in remarks)
    return f"none of its {found.count['read']:,} spans of known ranks is megatron.microbatch.forward or .backward{why}"


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
        lines = "1 line" if bad == 1 else f"{bad:,} lines"
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
    spans = [span for scope in one.scopeSpans for span in scope.spans]
    rank = _first(said, _RANK)
    if rank is None:
        found.count["nameless"] += len(spans)
        return
    device = found.ranks.get(rank)
    if device is None:
        host = said["host.name"].stringValue if "host.name" in said else None
        device = found.ranks[rank] = _Rank(source, _told(said), host or f"of rank {rank}")
    found.count["read"] += len(spans)
    for span in spans:
        start, end = span.startTimeUnixNano, span.endTimeUnixNano
        if not 0 <= start <= end <= _LAST:
            found.count["backwards"] += 1
        elif span.name in _WORK:
            device.work.append((start, end, _WORK[span.name]))
        elif span.name in _MOVES:
            device.moves.append((start, end, *_MOVES[span.name]))
        elif span.name == _EVALUATION:
            device.evaluations.append((start, end))
        elif span.name == _STEP:
            iteration = _of_span(span, "megatron.iteration")
            device.steps.append((start, end, UNKNOWN if iteration is None else iteration))
        elif span.name == _PASSES:
            device.passes.add(_of_span(span, "megatron.num_microbatches") or 0)
        elif span.name == "megatron.pp.recv_forward.linked":
            place = _of_span(span, _PLACE)
            if place is not None:
                device.said.setdefault("place", place)


def _told(said: dict[str, _Any]) -> dict[str, int]:
    """Coordinates of a rank, as far as its resource says them."""
    keys = {"place": (_PLACE,), "replica": (_REPLICA,), "member": (_MEMBER,), "world": _WORLD}
    found = {name: _first(said, known) for name, known in keys.items()}
    return {name: number for name, number in found.items() if number is not None}


def _first(said: dict[str, _Any], keys: Sequence[str]) -> int | None:
    return next((number for key in keys if key in said and (number := said[key].number()) is not None), None)


def _of_span(span: _Span, key: str) -> int | None:
    return next((each.value.number() for each in span.attributes if each.key == key), None)


def _whole_transfers(ranks: dict[int, _Rank], remarks: list[str]) -> bool:
    """Whether every send and receive has a span; where some do, the others were fused and their times are not known."""
    told = sum(len(one.moves) for one in ranks.values())
    if not told:
        return False
    ways = list(_MOVES.values())
    for one in ranks.values():
        passes = Counter(kind for _, _, kind in one.work)
        moves = Counter((sends, forward) for _, _, sends, forward in one.moves)
        if any(moves[way] not in (0, passes[Kind.F if way[1] else Kind.B]) for way in ways):
            remarks.append(
                f"{one.source}: its {told:,} sends and receives are not one for each pass (fused ones get no span); "
                "they were not used"
            )
            return False
    return True


def _device(rank: int, one: _Rank, clock: Clock, whole: bool) -> RankOps:
    work = np.array(sorted(one.work), np.int64).reshape(-1, 3)
    work = work[_outside(work[:, 0], one.evaluations)]
    steps = np.array(sorted(one.steps), np.int64).reshape(-1, 3)
    return RankOps(
        rank=rank,
        source=one.source,
        step=_step_of(work[:, 0], steps),
        kind=work[:, 2].astype(np.uint8),
        start=work[:, 0].copy(),
        end=work[:, 1].copy(),
        position=one.said.get("place"),
        replica=one.said.get("replica"),
        clock=clock,
        step_ns={int(number): int(end - start) for start, end, number in steps if number >= 0},
        talks=bool(one.moves),
        transfers=_transfers(one, steps) if whole else None,
    )


def _transfers(one: _Rank, steps: NDArray[np.int64]) -> Transfers:
    rows = np.array(sorted(one.moves), np.int64).reshape(-1, 4)
    rows = rows[_outside(rows[:, 0], one.evaluations)]
    return Transfers(
        step=_step_of(rows[:, 0], steps),
        send=rows[:, 2] > 0,
        forward=rows[:, 3].astype(np.int8),
        peer=np.full(len(rows), UNKNOWN, np.int32),
        start=rows[:, 0].copy(),
        end=rows[:, 1].copy(),
    )


def _outside(times: NDArray[np.int64], spans: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which times lie in none of the spans: passes of an evaluation are not of training."""
    kept = np.ones(len(times), bool)
    for start, end in spans:
        kept &= (times < start) | (times > end)
    return kept


def _step_of(times: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Iteration of the step that each time lies in; -1 where none does."""
    if not len(steps):
        return np.full(len(times), UNKNOWN, np.int64)
    row = np.searchsorted(steps[:, 0], times, side="right") - 1
    inside = (row >= 0) & (times <= steps[row, 1])
    return np.where(inside, steps[row, 2], UNKNOWN)


def _chunks(devices: Sequence[RankOps], ranks: dict[int, _Rank]) -> int | None:
    """Stages a rank: the forwards of a step over the micro-batches that its spans name; None where they differ."""
    found = set()
    for device in devices:
        named = ranks[device.rank].passes
        forwards = device.step[(device.kind == Kind.F) & (device.step >= 0)]
        if len(named) != 1 or not len(forwards) or not (passes := next(iter(named))):
            return None
        counts = np.unique(forwards, return_counts=True)[1]
        found.add(int(np.median(counts)) / passes)
    each = found.pop()
    return int(each) if not found and each.is_integer() and each >= 1 else None
