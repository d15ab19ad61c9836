"""Ops of one file: those that ranges or spans name, by words or arguments, else runs of work between messages.

Ranges that name ops, with waiting cut off:

    Forward 3 |------------------------------|      on the CPU: the engine waits for its receive inside the range, so
    gloo:recv ----------------------|               the op starts where the last receive that ends inside ends; and it
    gloo:send                             |------   ends where a send is posted (torch's runtime posts it outside)
    op                              |-----|

    PP:1F0    |-----|                               with a device: from the first to the last kernel that was launched
    kernels           |--| |---| |----|             inside the range, whenever it ran

The two halves of ``PP:(0F7;7B3)OVERLAP_F_B`` are told apart by the first work of the autograd engine inside.

Ops that no range names are runs of work, cut where its direction changes and where a rank talks to another:

    launches   F F F   F F F   B B B B   F F        F from the main thread, B from the autograd engine (or by name)
    posts            ^       ^         ^            a send or receive ends a run
    ops        F0      F1      B0        F2         in the order of their kind

Flows from forward to backward ops, if the profiler writes them, tell which F a B belongs to, and that a run after the
last B (the scaling of gradients, say) is no F. Without them the order tells: first in, first out.

    launches   k k k    k k k    k k k k k k    k k k      if nothing tells a direction, the other ranks' messages will;
    posts            s        r              s r     s     a run with a receive before it and a send after it may be
    runs       -----    -----    ?????????               two ops, and where it could be cut is found here

Weight gradients that run one after the other, or right after the input's, are one run. A stage launches the same
kernels for each micro-batch, so their counts tell how many ops such a run is.

One file holds many devices. A process is a device, with these exceptions:

* threads named after ranks are devices (ByteDance: process ``DP rank [1]``, thread ``PP rank 2, TP rank 0, compute``);
* of several lanes that each hold forwards and backwards, each is a device (Paddle: threads ``GPU0``, ``GPU1``, ..);
* lanes that hold only forwards or only backwards belong together (SimuMax: ``fwd_compute`` and ``bwd_compute``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Kind
from ..reconstruct.device_ops import UNKNOWN, UNTOLD, Ints, Mask, RankOps, Transfers
from .files import natural
from .kineto_tables import Number, Tables, ToldArgs
from .kineto_work import Pieces, Posts, Sense, Steps, marks
from .op_names import OpName, Role, Way, ops_of, read_name

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Ops of one file, in the order of their launch.

    Args:
        kind: uint8[ops].
        stage: int32[ops]; -1 if the file does not say, as with the next two.
        chunk: index of the stage among those of its rank, int32[ops].
        unit: micro-batch, int32[ops]; -1 if only the order tells.
        launched: the moment on the CPU by which steps are told, int64[ops], nanoseconds.
        worked: when the first piece of work of each was launched, int64[ops]; what was posted before it came first.
        start: int64[ops], nanoseconds.
        end: int64[ops], nanoseconds.
        remarks: what was left out, a clause each.
        counted: whether ``unit`` is the index of an op among those of its kind, and no label.
        first_end: if no direction is told, where the first of two ops would end, int64[ops]; -1 if nothing tells.
        second_start: likewise where the second of two would begin.
    """

    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    unit: NDArray[np.int32]
    launched: Ints
    worked: Ints
    start: Ints
    end: Ints
    remarks: tuple[str, ...] = ()
    counted: bool = False
    first_end: Ints | None = None
    second_start: Ints | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, keep: Mask) -> Found:
        """Some of the ops."""
        columns = ("kind", "stage", "chunk", "unit", "launched", "worked", "start", "end", "first_end", "second_start")
        kept = {}
        for name in columns:
            whole = getattr(self, name)
            if whole is not None:
                kept[name] = whole[keep]
        return replace(self, **kept)


def named_ops(tables: Tables, pieces: Pieces, posts: Posts) -> Found:
    """Every op that a range names, once for each time it comes."""
    word, begin, stop = marks(tables, Role.LABEL)
    rows = _rows(tables, word)
    range_of, kind, stage, chunk, unit = rows
    start, end = begin[range_of], stop[range_of]
    # Two ops of one range stand next to each other: an overlapped forward and backward.
    pairs = np.flatnonzero(np.diff(range_of) == 0)
    if len(pairs):
        middle = _first_engine(pieces, start[pairs], end[pairs])
        end[pairs] = start[pairs + 1] = middle
    # Steps are told by where the range begins on the CPU, before waiting is cut off.
    launched = start.copy()
    worked = _first_launch(pieces, start, end)
    whole = np.ones(len(start), np.bool_)
    if pieces.device:
        start, end, whole = _extents(pieces, start, end)
    else:
        end[pairs] = _last_end(pieces, start[pairs], end[pairs])
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
        sent = posts.moment[posts.sense == Sense.SEND]
        end = _before_send(sent, _first_end(pieces, start, end), end)
    lost = int((~whole).sum())
    remarks: tuple[str, ...] = ()
    if lost:
        remarks = (f"{lost:,} named ops launched no kernel that is in the file, and were left out",)
    return Found(
        kind=kind[whole].astype(np.uint8),
        stage=stage[whole].astype(np.int32),
        chunk=chunk[whole].astype(np.int32),
        unit=unit[whole].astype(np.int32),
        launched=launched[whole],
        worked=worked[whole],
        start=start[whole],
        end=end[whole],
        remarks=remarks,
    )


def after_receive(received: Ints, start: Ints, end: Ints) -> Ints:
    """Where the last receive that ends inside each span ends, or the span's start."""
    received = np.sort(received)
    at = np.searchsorted(received, end, side="right") - 1
    last = np.concatenate([[np.iinfo(np.int64).min], received])[at + 1]
    later: Ints = np.maximum(start, last)
    return later


def _rows(tables: Tables, word: NDArray[np.int32]) -> NDArray[np.int64]:
    """Index of the range, kind, stage, chunk and micro-batch of each op that a range names, int64[5, ops]."""
    parts = [np.empty((0, 5), np.int64)]
    for number in np.unique(word).tolist():
        name = tables.names[number]
        ranges = np.flatnonzero(word == number)
        for kind, stage, unit in ops_of(name):
            op = np.array([0, kind, stage, read_name(name).chunk, unit])
            rows = np.tile(op, (len(ranges), 1))
            rows[:, 0] = ranges
            parts.append(rows)
    found = np.concatenate(parts)
    return found[np.argsort(found[:, 0], kind="stable")].T  # stable: the two ops of one range stay in their order


def _before_send(sent: Ints, worked: Ints, end: Ints) -> Ints:
    """Where the first send after the first work of each span is posted, or the span's end.

    Args:
        sent: when sends were posted, nanoseconds.
        worked: when the first piece of work inside each span was done.
        end: of each span.
    """
    first = np.append(np.sort(sent), _NEVER)[np.searchsorted(np.sort(sent), worked)]
    earlier: Ints = np.minimum(end, first)
    return earlier


def _first_engine(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """Launch of the first backward work inside each span, or the span's end."""
    backward = pieces.launched[pieces.way == Way.BACKWARD]
    found: Ints = np.minimum(np.append(backward, _NEVER)[np.searchsorted(backward, start)], end)
    return found


def _first_launch(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """Launch of the first work inside each span, or the span's start if there is none."""
    if not len(pieces):
        return start
    at = np.searchsorted(pieces.launched, start)
    launched = pieces.launched[np.minimum(at, len(pieces) - 1)]
    return np.where((at < len(pieces)) & (launched <= end), launched, start)


def _first_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the first work that begins inside each span, or the span's end if none does."""
    first = np.searchsorted(pieces.start, start)
    begun, done = np.append(pieces.start, _NEVER)[first], np.append(pieces.end, _NEVER)[first]
    return np.where(begun < end, done, end)


def _last_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the last work that begins inside each span, or the span's end if none does."""
    if not len(pieces):
        return end
    first, behind = np.searchsorted(pieces.start, start), np.searchsorted(pieces.start, end)
    return np.where(behind > first, pieces.end[np.maximum(behind - 1, 0)], end)


def _extents(pieces: Pieces, start: Ints, end: Ints) -> tuple[Ints, Ints, Mask]:
    """First start and last end of the kernels launched in each span, and whether there are any."""
    work = pieces.way != Way.NEITHER
    first, behind = np.searchsorted(pieces.launched, start), np.searchsorted(pieces.launched, end, side="right")
    whole = _any(work, first, behind)
    bounds = np.stack([first, behind], 1)[whole].ravel()
    if not len(bounds):
        return start, end, whole
    begin, stop = start.copy(), end.copy()
    # One column at a time: these are as long as the trace has kernels.
    begin[whole] = np.minimum.reduceat(_padded(pieces.start, work, _NEVER), bounds)[::2]
    stop[whole] = np.maximum.reduceat(_padded(pieces.end, work, np.iinfo(np.int64).min), bounds)[::2]
    return begin, stop, whole


def _any(work: Mask, first: Ints, behind: Ints) -> Mask:
    """Whether there is work from a row to before another, for each pair of them."""
    done = np.zeros(len(work) + 1, np.int32)
    np.cumsum(work, dtype=np.int32, out=done[1:])
    found: Mask = done[behind] > done[first]
    return found


def _padded(times: Ints, work: Mask, pad: int) -> Ints:
    """The times with ``pad`` where there is no work, and after the last."""
    padded = np.full(len(times) + 1, pad)
    np.copyto(padded[:-1], times, where=work)
    return padded


def column(values: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """A column, or None if no row of it is known."""
    if (values == UNKNOWN).all():
        return None
    return values


_COMPARABLE = 4  # times fewer kernels than a gradient of the input that a gradient of weights may launch


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Pieces that are work of the pipeline, in the order of their launch, and the first of each run of them.

    Args:
        pieces: all pieces of the file.
        use: which of them are meant, bool[all pieces].
        forward: whether each is a forward's, bool[pieces]; means nothing if no direction is told.
        step: int64[pieces].
        launched: int64[pieces], nanoseconds.
        first: index of the first piece of each run, int64[runs].
    """

    pieces: Pieces
    use: Mask
    forward: Mask
    step: Ints
    launched: Ints
    first: Ints

    @property
    def count(self) -> Ints:
        """How many pieces each run has, int64[runs]."""
        return np.diff(np.append(self.first, len(self.launched)))

    @property
    def start(self) -> Ints:
        """When each piece began, int64[pieces]; made anew each time, because it is as long as the trace."""
        return self.pieces.start[self.use]

    @property
    def end(self) -> Ints:
        """When each piece ended, int64[pieces]; likewise."""
        return self.pieces.end[self.use]


def runs_of(tables: Tables, pieces: Pieces, steps: Steps, posts: Posts) -> Found | None:
    """Every op that runs of work show; None if this rank never sends to or receives from another, or does no work."""
    told = (pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)
    if told.any():
        work = _cut(pieces, told, steps, posts)
        if work is not None:
            return _directed(tables, pieces, work, posts)
    elif pieces.device:
        work = _cut(pieces, pieces.way == Way.UNTOLD, steps, posts)
        if work is not None:
            return _undirected(tables, work, posts)
    return None


def _cut(pieces: Pieces, use: Mask, steps: Steps, posts: Posts) -> _Work | None:
    step = steps.of(pieces.launched)
    use = use & ((step >= 0) | (not len(steps.number)))
    if not len(posts) or not use.any():
        return None
    launched, step, forward = pieces.launched[use], step[use], pieces.way[use] == Way.FORWARD
    # How many posts come before each launch: where that number changes, a message lies between.
    part = np.searchsorted(posts.moment, launched, side="right")
    changes = (np.diff(forward) != 0) | (np.diff(part) != 0) | (np.diff(step) != 0)
    first = np.flatnonzero(np.concatenate([[True], changes]))
    return _Work(pieces, use, forward, step, launched, first)


def _around(work: _Work, posts: Posts) -> tuple[Mask, Mask]:
    """Whether a receive was posted right before each run, and whether a send was right after it, bool[runs] each."""
    begun, done = work.launched[work.first], work.launched[np.append(work.first[1:], len(work.launched)) - 1]

    def between(sense: Sense, low: Ints, high: Ints) -> Mask:
        moments = posts.moment[posts.sense == sense]
        some: Mask = np.searchsorted(moments, high, side="right") > np.searchsorted(moments, low, side="right")
        return some

    before, after = np.concatenate([[begun[0] - _DAY], done[:-1]]), np.append(begun[1:], done[-1] + _DAY)
    return between(Sense.RECEIVE, before, begun), between(Sense.SEND, done, after)


_DAY = 86_400_000_000_000  # nanoseconds


# Runs whose direction is told.


def _directed(tables: Tables, pieces: Pieces, work: _Work, posts: Posts) -> Found:
    first = np.union1d(work.first, _weight_cuts(work, *_around(work, posts)))
    start = np.minimum.reduceat(work.start, first)
    end = np.maximum.reduceat(work.end, first)
    if not pieces.device:
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
    forward, step, launched = work.forward[first], work.step[first], work.launched[first]
    partner = _partners(tables, forward, launched)
    keep = _real(forward, step, partner)
    row = np.cumsum(keep) - 1
    partner = np.where(partner >= 0, row[partner], UNKNOWN)[keep]
    forward, step, launched = forward[keep], step[keep], launched[keep]
    unit = occurrences(step, forward)
    unit = np.where(~forward & (partner >= 0), unit[partner], unit)
    nothing = np.full(len(unit), UNKNOWN, np.int32)
    return Found(
        kind=np.where(forward, Kind.F, Kind.B).astype(np.uint8),
        stage=nothing,
        chunk=nothing,
        unit=unit.astype(np.int32),
        launched=launched,
        worked=launched,
        start=start[keep],
        end=end[keep],
        counted=True,
    )


def _weight_cuts(work: _Work, received: Mask, sent: Mask) -> Ints:
    """Pieces at which a further gradient of weights begins inside a run, int64[cuts]; none if counts do not fit.

    A backward run that no message belongs to is gradients of weights alone; one that a message belongs to begins with
    the gradient of an input. In all there is one gradient of weights a forward.
    """
    forward, count, step = work.forward[work.first], work.count, work.step[work.first]
    messaged = received | sent
    inputs = ~forward & messaged
    if not inputs.any():
        return np.empty(0, np.int64)
    # The shortest run with a message is a gradient of the input alone; what is longer has weights' behind it.
    base = int(count[inputs].min())
    weights = np.where(forward, 0, np.where(messaged, count - base, count))
    cuts = []
    for number in np.unique(step).tolist():
        rows = np.flatnonzero(step == number)
        size, rest = divmod(int(weights[rows].sum()), max(int(forward[rows].sum()), 1))
        if rest or size * _COMPARABLE < base or (weights[rows] % size).any():
            continue
        for row in rows[weights[rows] > 0].tolist():
            skipped = base if messaged[row] else size
            cuts.append(work.first[row] + np.arange(skipped, count[row], size))
    return np.concatenate([np.empty(0, np.int64), *cuts])


def _partners(tables: Tables, forward: Mask, launched: Ints) -> Ints:
    """For each B the F that most of its flows come from, for each such F its B, int64[runs]; -1 if no flow tells."""
    partner = np.full(len(launched), UNKNOWN, np.int64)
    ends = _flows(tables)
    if not len(ends) or not len(partner):
        return partner
    forwards, backwards = np.flatnonzero(forward), np.flatnonzero(~forward)
    of = np.searchsorted(launched[forwards], ends[:, 0], side="right") - 1
    to = np.searchsorted(launched[backwards], ends[:, 1], side="right") - 1
    inside = (of >= 0) & (to >= 0)
    votes, count = np.unique(np.stack([to[inside], of[inside]], 1), axis=0, return_counts=True)
    for vote in votes[np.argsort(count, kind="stable")].tolist():  # the most votes come last, and stay
        partner[backwards[vote[0]]] = forwards[vote[1]]
    told = backwards[partner[backwards] >= 0]
    partner[partner[told]] = told
    return partner


def _flows(tables: Tables) -> Ints:
    """When each flow begins and ends, int64[flows, 2]; an id that comes again is another flow."""
    table = tables.columns["flows"]
    # Ids come again in later steps: a flow is a begin and the next end of its id.
    order = np.lexsort((table["ends"], table["start"], table["link"]))
    link, start, ends = table["link"][order], table["start"][order], table["ends"][order]
    first = np.flatnonzero((link[:-1] == link[1:]) & ~ends[:-1] & ends[1:])
    return np.stack([start[first], start[first + 1]], 1)


def _real(forward: Mask, step: Ints, partner: Ints) -> Mask:
    """Leave out what only looks like a forward: by flows, every run without a backward; else what ends a step."""
    keep = np.ones(len(forward), np.bool_)
    for number in np.unique(step).tolist():
        rows = np.flatnonzero(step == number)
        here = forward[rows]
        if (partner[rows] >= 0).any():
            keep[rows] = ~here | (partner[rows] >= 0)
        elif not here.all():
            last = int(np.flatnonzero(~here)[-1])
            surplus = int(here.sum() - (~here).sum())
            # Runs after the last backward go if forwards outnumber backwards by that many.
            keep[rows[last + 1 :]] = surplus < len(rows) - last - 1
    return keep


def occurrences(*columns: NDArray[np.generic]) -> Ints:
    """How many rows with the same values stand before each row, int64[rows]."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    same = np.unique(np.stack([column.astype(np.int64) for column in columns]), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(same, kind="stable")
    fresh = np.flatnonzero(np.diff(same[order], prepend=-1))
    count = np.arange(len(order)) - np.repeat(fresh, np.diff(np.append(fresh, len(order))))
    result = np.empty(len(order), np.int64)
    result[order] = count
    return result


# Runs whose direction nothing in their own file tells.


def _undirected(tables: Tables, work: _Work, posts: Posts) -> Found:
    first, launched = work.first, work.launched[work.first]
    cut = _double(work, _lanes(tables, work.launched), *_around(work, posts))
    sure = cut > 0
    second = np.where(sure, first + cut, first)
    start, end = work.start, work.end
    # Streams overlap: the first op ends with the latest kernel so far, the second begins with the earliest to come.
    upto, onward = np.maximum.accumulate(end), np.minimum.accumulate(start[::-1])[::-1]
    nothing = np.full(len(first), UNKNOWN, np.int32)
    return Found(
        kind=np.full(len(first), UNTOLD, np.uint8),
        stage=nothing,
        chunk=nothing,
        unit=nothing,
        launched=launched,
        worked=launched,
        start=np.minimum.reduceat(start, first),
        end=np.maximum.reduceat(end, first),
        first_end=np.where(sure, upto[np.maximum(second - 1, 0)], UNKNOWN),
        second_start=np.where(sure, onward[second], UNKNOWN),
    )


def _double(work: _Work, lane: NDArray[np.int32], received: Mask, sent: Mask) -> Ints:
    """How many launches belong to the first op of each run, if it is two; 0 if nothing tells, int64[runs].

    The cut lies between its only two launches, or where the thread that launches changes once. Runs with only a receive
    and runs with only a send are single ops (warm-up and cool-down): if all of each kind launch equally many kernels
    and a run launches the sum, it is one of each.
    """
    count = work.count
    cut = np.where(count == 2, 1, _turns(lane, work.first, count))
    receiving, sending = np.unique(count[received & ~sent]), np.unique(count[sent & ~received])
    if len(receiving) == len(sending) == 1:
        both = received & sent & (cut == 0) & (count == receiving + sending)
        cut[both] = receiving
    return cut


def _lanes(tables: Tables, launched: Ints) -> NDArray[np.int32]:
    """The thread of each launch, int32[launches]; -1 if its moment is no launch of the file's."""
    table = tables.columns["launches"]
    if not len(table["start"]):
        return np.full(len(launched), UNKNOWN, np.int32)
    order = np.argsort(table["start"], kind="stable")
    at = np.minimum(np.searchsorted(table["start"][order], launched), len(order) - 1)
    lane = table["lane"][order[at]]
    return np.where(table["start"][order[at]] == launched, lane, UNKNOWN).astype(np.int32)


def _turns(lane: NDArray[np.int32], first: Ints, count: Ints) -> Ints:
    """How many launches of each run come before its thread changes, if it does so once; else 0, int64[runs]."""
    change = np.concatenate([[False], np.diff(lane) != 0])
    change[first] = False
    times = np.add.reduceat(change.astype(np.int64), first)
    at = np.flatnonzero(change)
    run = np.repeat(np.arange(len(first)), count)[at]
    turns = np.zeros(len(first), np.int64)
    turns[run] = at - first[run]
    return np.where(times == 1, turns, 0)


_PLACE = re.compile(r"(PP|TP|DP|CP|EP) rank \[?(\d+)")
_NUMBERED = re.compile(r"(?:rank|gpu|device|worker|stage|pp)[\s:_#\[-]*(\d{1,9})", re.IGNORECASE)
_DIRECTION = re.compile(r"fwd|forward|bwd|backward|^\d+_", re.IGNORECASE)
_MOST = 1 << 31  # of a step, micro-batch, chunk or rank
_STEP, _UNIT = ("iteration", "step"), ("microbatch", "micro_batch", "microbatch_id", "mb_id", "mb")
_CHUNK, _STAGE = ("model_chunk", "chunk"), ("stage",)


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Spans of one file.

    Args:
        lane: of each, int64[spans].
        name: what its name says.
        args: its arguments.
        start: int64[spans], nanoseconds.
        end: int64[spans].
    """

    lane: Ints
    name: list[OpName]
    args: list[ToldArgs]
    start: Ints
    end: Ints

    def only(self, rows: Ints) -> _Spans:
        picked = rows.tolist()
        names, args = [self.name[row] for row in picked], [self.args[row] for row in picked]
        return _Spans(self.lane[rows], names, args, self.start[rows], self.end[rows])

    def number(self, names: Sequence[str]) -> Ints:
        """The first of some arguments that each span has, int64[spans]; -1 if it has none."""
        found = np.full(len(self.args), UNKNOWN, np.int64)
        for name in reversed(names):  # what comes first has the last word
            for row, args in enumerate(self.args):
                value = getattr(args, name)
                if value is not None:
                    found[row] = _whole(value)
        return found

    def said(self, name: str) -> Ints:
        """What the name of each span says: one of ``OpName``'s numbers, -1 for None, int64[spans]."""
        found = np.empty(len(self.name), np.int64)
        for row, each in enumerate(self.name):
            value = getattr(each, name)
            found[row] = UNKNOWN if value is None else value
        return found


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a span ran, as far as names and arguments say; ``owner`` is the process or lane that is its device."""

    owner: tuple[str, int]
    position: int
    replica: int
    member: tuple[int, ...]


def told(tables: Tables, source: str) -> tuple[list[RankOps], list[str]]:
    """The devices of one file whose spans say what they are, and what was left out."""
    spans, orphans = _spans(tables)
    owner = _owners(tables, spans)
    rows: defaultdict[_Place, list[int]] = defaultdict(list)
    for row, (lane, args) in enumerate(zip(spans.lane.tolist(), spans.args, strict=True)):
        rows[_place(tables, lane, owner[lane], args)].append(row)
    places = sorted(rows)
    lanes = {place: int(spans.lane[rows[place][0]]) for place in places}
    devices = []
    for rank, place in zip(_ranks(tables, places, lanes), places, strict=True):
        device = _device(rank, place, source, spans.only(np.array(rows[place])))
        if len(device):
            devices.append(device)
    remarks = []
    if orphans:
        remarks.append(f"{orphans:,} spans have a begin or an end only, and were left out")
    return devices, remarks


def _spans(tables: Tables) -> tuple[_Spans, int]:
    """The spans of a file, whose arguments may stand at their end alone; and the number of unmatched events."""
    table = tables.columns["told"]
    phase, lane, word = table["phase"].tolist(), table["lane"].tolist(), table["word"].tolist()
    stops = table["end"].tolist()
    open_: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    begin, end, args, orphans = [], [], [], 0
    # Spans of one lane and name nest: an end belongs to the last begin that is open.
    for row, letter in enumerate(phase):
        opened = open_[lane[row], word[row]]
        if letter == ord("B"):
            opened.append(row)
        elif letter == ord("X"):
            begin.append(row)
            end.append(stops[row])
            args.append(tables.told_args[row])
        elif opened:
            first = opened.pop()
            begin.append(first)
            end.append(stops[row])
            args.append(_both(tables.told_args[first], tables.told_args[row]))
        else:
            orphans += 1
    orphans += sum(map(len, open_.values()))
    rows = np.array(begin, np.int64)
    said = {number: read_name(tables.names[number]) for number in set(word)}  # few names, millions of spans
    names = [said[word[row]] for row in begin]
    start = table["start"][rows].astype(np.int64)
    return _Spans(table["lane"][rows].astype(np.int64), names, args, start, np.array(end, np.int64)), orphans


def _both(first: ToldArgs, second: ToldArgs) -> ToldArgs:
    """What either says; the end of a span knows more than its begin."""
    merged = {}
    for name in ToldArgs.__struct_fields__:
        value = getattr(second, name)
        merged[name] = getattr(first, name) if value is None else value
    return ToldArgs(**merged)


def _whole(value: Number) -> int:
    """A number that a tracer wrote as it liked; -1 if it is none, or beyond all bounds."""
    try:
        number = int(float(value or 0))
    except (ValueError, OverflowError):
        return UNKNOWN
    if value is None or not -1 <= number < _MOST:
        return UNKNOWN
    return number


# Which lanes are one device.


def _owners(tables: Tables, spans: _Spans) -> dict[int, tuple[str, int]]:
    """The process or lane that is the device of each lane."""
    forward: defaultdict[int, set[bool]] = defaultdict(set)
    for lane, name in zip(spans.lane.tolist(), spans.name, strict=True):
        ways = forward[lane]
        if name.kind is not None:
            ways.add(name.kind == Kind.F)
    lanes: defaultdict[str, list[int]] = defaultdict(list)
    for lane in forward:
        lanes[str(tables.lanes[lane][0])].append(lane)
    owner: dict[int, tuple[str, int]] = {}
    for process, some in lanes.items():
        owner |= dict.fromkeys(some, (process, -1))
        groups = _groups(tables, some, forward)
        if len(groups) > 1:
            for number, group in enumerate(groups):
                owner |= dict.fromkeys(group, (process, number))
    return owner


def _groups(tables: Tables, lanes: list[int], forward: dict[int, set[bool]]) -> list[list[int]]:
    """Lanes of one process that are one device: each that holds both ways, else those whose names differ in the way."""
    lanes = sorted(lanes, key=lambda lane: natural(str(tables.lanes[lane][1])))
    both = [[lane] for lane in lanes if len(forward[lane]) == 2]
    if both:
        return both
    named: defaultdict[str, list[int]] = defaultdict(list)
    for lane in lanes:
        named[_DIRECTION.sub("", str(tables.threads.get(lane, tables.lanes[lane][1])))].append(lane)
    for group in named.values():
        ways = set().union(*map(forward.__getitem__, group))
        if len(ways) < 2:
            return [lanes]
    return list(named.values())


def _place(tables: Tables, lane: int, owner: tuple[str, int], args: ToldArgs) -> _Place:
    process = tables.lanes[lane][0]
    said = dict(_PLACE.findall(f"{tables.processes.get(process, '')} {tables.threads.get(lane, '')}"))
    position, replica = _whole(args.pp_rank), _whole(args.dp_rank)
    if position < 0:
        position = int(said.get("PP", UNKNOWN))
    if replica < 0:
        replica = int(said.get("DP", UNKNOWN))
    if said.get("PP"):  # names say all of the place: what process it was makes no difference
        owner = ("", -1)
    member = tuple(int(said.get(axis, 0)) for axis in ("TP", "CP", "EP"))
    return _Place(owner, position, replica, member)


def _ranks(tables: Tables, places: Sequence[_Place], lanes: dict[_Place, int]) -> list[int]:
    """A rank for each device: its process number, else that in its name, if all have another one; else in order."""
    owners = [place.owner for place in places]
    # Only if a device is a process or a lane of its own do their names tell ranks apart.
    if len(set(owners)) == len(owners):
        if all(number == -1 and process.isdecimal() and int(process) < _MOST for process, number in owners):
            return [int(process) for process, _ in owners]
        numbers = []
        for place in places:
            if (match := _NUMBERED.search(_title(tables, lanes[place], place.owner))) is not None:
                numbers.append(int(match[1]))
        if len(set(numbers)) == len(places):
            return numbers
    order = sorted(range(len(places)), key=lambda i: (natural(owners[i][0]), owners[i][1], places[i]))
    ranks = np.empty(len(places), np.int64)
    ranks[order] = np.arange(len(places))
    return ranks.tolist()


def _title(tables: Tables, lane: int, owner: tuple[str, int]) -> str:
    """What a device is called: its lane if that is one, else its process."""
    process, thread = tables.lanes[lane]
    if owner[1] >= 0:
        return f"{tables.threads.get(lane, '')} {thread}"
    return f"{tables.processes.get(process, '')} {process}"


# What a device did.


def _device(rank: int, place: _Place, source: str, spans: _Spans) -> RankOps:
    kinds = spans.said("kind")
    moves = (spans.said("transfers") > 0) & (spans.said("send") >= 0)
    step = spans.number(_STEP)
    # A tracer that times forward_step also times the forward that it calls: the outer one is the op.
    ops = np.flatnonzero((kinds >= 0) & ~_inside(kinds, spans.start, spans.end))
    work = spans.only(ops)

    def known(arguments: Sequence[str], name: str) -> NDArray[np.int32] | None:
        by_argument = work.number(arguments)
        values = np.where(by_argument >= 0, by_argument, work.said(name))
        return column(values.astype(np.int32))

    transfers = None
    if moves.any():
        transfers = _transfers(spans.only(np.flatnonzero(moves)), step[moves])
    return RankOps(
        rank=rank,
        source=source,
        step=step[ops],
        kind=kinds[ops].astype(np.uint8),
        start=work.start,
        end=work.end,
        stage=known(_STAGE, "stage"),
        chunk=known(_CHUNK, "chunk"),
        unit=known(_UNIT, "unit"),
        position=None if place.position < 0 else place.position,
        replica=None if place.replica < 0 else place.replica,
        transfers=transfers,
    )


def _inside(kinds: Ints, start: Ints, end: Ints) -> Mask:
    """Whether each span lies inside another one of its kind: tracers time what they call, and what that calls."""
    within = np.zeros(len(kinds), np.bool_)
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        # Of two that begin together the longer comes first, so that the shorter one lies inside.
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        reached = np.maximum.accumulate(end[rows])
        within[rows[1:]] = end[rows[1:]] <= reached[:-1]
    return within


def _transfers(spans: _Spans, step: Ints) -> Transfers:
    order = np.argsort(spans.start, kind="stable")
    spans, step = spans.only(order), step[order]
    return Transfers(
        step=step,
        send=spans.said("send") > 0,
        forward=spans.said("forward").astype(np.int8),
        peer=spans.number(("peer",)).astype(np.int32),
        start=spans.start,
        end=spans.end,
    )
