"""Work and messages of one file in the order of their launch: kernels if there are any, else calls; and its steps.

A kernel belongs to the moment at which the CPU launched it, not to the moment at which it ran: the two lie
milliseconds apart, and only the first lies inside the range that names the op.

On CUDA a p2p kernel says what it is; on ROCm, and in batches (``nccl:coalesced``), only the calls on the CPU do: one
that shares its External id, or those posted since the batch before. ``SendRecv`` in a kernel's name tells nothing: an
all-to-all has it too.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reconstruct.device_ops import UNKNOWN, Collectives, Ints, Transfers
from .kineto_tables import UNLINKED, CommArgs, Tables, linked, outermost
from .op_names import Role, Way, step_of

_FAR = 1 << 61
Lanes = NDArray[np.integer[Any]]
_PART = 1 << 18  # rows at a time
_LONG = 20_000_000  # nanoseconds; shorter overlaps of kernels are real (programmatic launch), and harmless


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Work as columns, ordered by launch.

    Args:
        launched: when the CPU launched (or, without a device, started) it, int64[pieces], nanoseconds.
        start: int64[pieces], nanoseconds.
        end: int64[pieces], nanoseconds.
        way: int8[pieces], a ``Way``.
        device: whether these are kernels.
        unlaunched: kernels whose launch is not in the file, and that were left out.
    """

    launched: Ints
    start: Ints
    end: Ints
    way: NDArray[np.int8]
    device: bool
    unlaunched: int = 0

    def __len__(self) -> int:
        return len(self.launched)


def pieces_of(tables: Tables) -> Pieces:
    """All compute work of one file; communication is none.

    The table of kernels is taken out of ``tables``: it is the largest of a trace, and pieces are all that is needed
    of it from here on. Twice it would be most of the memory that reading takes.
    """
    kernels = tables.taken("kernels")
    if len(kernels["start"]):
        return _kernels(tables, kernels)
    return _calls(tables)


def _kernels(tables: Tables, kernels: dict[str, NDArray[Any]]) -> Pieces:
    """Here one column after the other comes and goes: each is as long as the trace has kernels."""
    end = _stream_bound(kernels)
    start = kernels.pop("start")
    del kernels["end"], kernels["lane"]
    launched, lane = launches_of(tables, kernels.pop("correlation"))
    if (lane < 0).all():  # a file without calls of the runtime: the order on the device is all there is
        launched = start
    way = _way_of_launches(tables, launched, lane, kernels.pop("way"))
    del lane
    lost = int((launched < 0).sum())
    if lost or (launched[1:] < launched[:-1]).any():  # else nothing is copied: this is the largest table of a trace
        order = np.argsort(launched, kind="stable")[lost:]
        launched = launched[order]
        start = start[order]
        end = end[order]
        way = way[order]
    return Pieces(launched, start, end, way, True, lost)


def launches_of(tables: Tables, correlation: NDArray[np.uint32]) -> tuple[Ints, Lanes]:
    """When and on which lane each kernel was launched, int64[kernels] and int[kernels]; -1 where nothing says."""
    table = tables.columns["launches"]
    names = table["correlation"]
    linked = names != UNLINKED
    if 8 * len(correlation) < len(names):  # a few of many: the table of ids below would be the largest of all
        wanted = []
        for part in slices(len(names)):
            wanted.append(part.start + np.flatnonzero(np.isin(names[part], correlation)))
        rows = np.concatenate(wanted)
        table, names, linked = {name: column[rows] for name, column in table.items()}, names[rows], linked[rows]
    most = int(names.max(initial=0, where=linked))
    launched, lane = np.full(len(correlation), -1), np.full(len(correlation), -1, table["lane"].dtype)
    if not linked.any():
        return launched, lane
    if most > 8 * len(names) + 1_000_000:  # ids far apart: number them anew
        number = np.unique(np.concatenate([names, correlation]), return_inverse=True)[1].astype(np.uint32)
        names, correlation = number[: len(names)], number[len(names) :]
        most = int(names.max(initial=0, where=linked))
    row = np.full(most + 2, -1, np.int32)  # which launch has this id; the last slot stays empty
    for part in slices(len(names)):
        here = np.flatnonzero(linked[part])
        row[names[part][here]] = here + part.start
    for part in slices(len(correlation)):
        at = row[np.minimum(correlation[part], most + 1)]
        for found, column in ((launched, table["start"]), (lane, table["lane"])):
            found[part] = np.where(at >= 0, column[at], -1)
    return launched, lane


def _stream_bound(table: dict[str, NDArray[Any]]) -> Ints:
    """The ends of kernels, none later than those of its successors on the same stream, int64[kernels].

    A stream runs in order, so a kernel that "ends" seconds after its successors is a fault of the tracer.
    """
    lane, start, end = table["lane"], table["start"], table["end"]
    if not any((end[part] - start[part] > _LONG).any() for part in slices(len(end))):
        return end
    order = np.lexsort((start, lane))
    bound = np.empty(len(order), np.int64)
    for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        bound[rows] = np.minimum.accumulate(end[rows][::-1])[::-1]
    return bound


def _calls(tables: Tables) -> Pieces:
    table = tables.columns["calls"]
    lane, start, end = table["lane"], table["start"], table["end"]
    rows = outermost(lane, start, end)  # once more: a call may have come in another chunk than those inside it
    lane, start, end = lane[rows], start[rows], end[rows]
    # Without a device the autograd engine's work is the backward, and every other call a forward.
    engine = tables.roles[table["word"][rows]] == Role.ENGINE
    way = np.where(engine, Way.BACKWARD, Way.FORWARD).astype(np.int8)
    way[~np.isin(lane, _working_lanes(tables))] = Way.NEITHER  # data loaders compute too
    way[inside(start, *marks(tables, Role.OPTIMIZER)[1:])] = Way.NEITHER
    order = np.argsort(start, kind="stable")
    return Pieces(start[order], start[order], end[order], way[order], False)


def _working_lanes(tables: Tables) -> NDArray[np.int64]:
    """Threads that talk to other ranks or run the autograd engine."""
    calls, told, spans = tables.columns["calls"], tables.columns["comms"], tables.columns["marks"]
    engine = calls["lane"][tables.roles[calls["word"]] == Role.ENGINE]
    moves = spans["lane"][np.isin(tables.roles[spans["word"]], [Role.SEND, Role.RECEIVE, Role.POST, Role.LABEL])]
    return np.unique(np.concatenate([engine, told["lane"], moves]).astype(np.int64))


def _way_of_launches(tables: Tables, launched: Ints, lane: Lanes, named: NDArray[np.int8]) -> NDArray[np.int8]:
    """Ranges of the user tell first, then the autograd engine, then the names of kernels."""
    way = named.copy()
    calls = tables.columns["calls"]
    engine = tables.roles[calls["word"]] == Role.ENGINE
    if engine.any():
        # If the engine shows itself, what it does not launch is a forward.
        way = np.where(named == Way.NEITHER, named, np.int8(Way.FORWARD))
        for thread in np.unique(calls["lane"][engine]).tolist():
            mine = engine & (calls["lane"] == thread)
            spans = calls["start"][mine], calls["end"][mine]
            way[(lane == thread) & inside(launched, *spans) & (way != Way.NEITHER)] = Way.BACKWARD
    word, begin, stop = marks(tables, Role.RANGE)
    for direction in (Way.FORWARD, Way.BACKWARD):
        mine = tables.ways[word] == direction
        way[inside(launched, begin[mine], stop[mine])] = direction
    way[inside(launched, *marks(tables, Role.OPTIMIZER)[1:])] = Way.NEITHER
    return way


def marks(tables: Tables, role: Role) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Word, start and end of all marks of a role, by start."""
    table = tables.columns["marks"]
    rows = np.flatnonzero(tables.roles[table["word"]] == role)
    rows = rows[np.argsort(table["start"][rows], kind="stable")]
    return table["word"][rows], table["start"][rows], table["end"][rows]


def inside(moment: Ints, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Whether each moment lies in any of some spans, bool[moments]."""
    if not len(start):
        return np.zeros(len(moment), np.bool_)
    if (start[1:] < start[:-1]).any():  # else nothing is copied: the calls of one thread came in order
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    latest = np.maximum.accumulate(end)
    within = np.zeros(len(moment), np.bool_)
    for part in slices(len(moment)):
        at = np.searchsorted(start, moment[part], side="right") - 1
        within[part] = (at >= 0) & (moment[part] <= latest[np.maximum(at, 0)])
    return within


def slices(rows: int) -> Iterator[slice]:
    """Parts of a long table: what is worked out on the way then takes no memory beside the table itself."""
    for first in range(0, rows, _PART):
        yield slice(first, min(first + _PART, rows))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Spans of steps on the CPU, in order; none where the file marks none.

    Args:
        number: int64[steps].
        start: int64[steps], nanoseconds.
        end: int64[steps], nanoseconds.
        whole: bool[steps], whether both ends are marked, so that the span is the length of the step.
        counted: whether numbers are counted from the beginning of the file.
    """

    number: Ints
    start: Ints
    end: Ints
    whole: NDArray[np.bool_]
    counted: bool = False

    def of(self, moment: Ints) -> Ints:
        """The number of the step around each moment; -1 outside of all."""
        if not len(self.number):
            return np.full(len(moment), UNKNOWN, np.int64)
        at = np.searchsorted(self.start, moment, side="right") - 1
        inside = (at >= 0) & (moment <= self.end[np.maximum(at, 0)])
        return np.where(inside, self.number[np.maximum(at, 0)], UNKNOWN)

    def lengths(self) -> dict[int, int]:
        """Nanoseconds of each whole step by its number."""
        rows = np.flatnonzero(self.whole)
        return {int(self.number[row]): int(self.end[row] - self.start[row]) for row in rows}


def steps_of(tables: Tables, posted: Ints) -> Steps:
    """The steps that a file marks: by ``ProfilerStep#N`` ranges, else by the ends of optimizer steps.

    Args:
        tables: of the file.
        posted: when it posted sends and receives, nanoseconds.
    """
    word, start, end = marks(tables, Role.STEP)
    if len(word):
        number = np.array([step_of(tables.names[w]) for w in word.tolist()], np.int64)
        return Steps(number, start, end, np.ones(len(word), np.bool_))
    _, begun, done = marks(tables, Role.OPTIMIZER)
    busy = np.sort(np.concatenate([marks(tables, Role.LABEL)[1], posted]))
    # An optimizer step that no work or message comes before since the last one ends no step.
    between = np.diff(np.searchsorted(busy, begun), prepend=0) > 0
    done = done[between]  # a second optimizer right behind the first ends no further step
    if not len(done):
        none = np.empty(0, np.int64)
        return Steps(none, none, none, none.astype(np.bool_))
    bounds = np.concatenate([[-_FAR], done, [_FAR]])
    whole = np.ones(len(bounds) - 1, np.bool_)
    whole[[0, -1]] = False
    return Steps(np.arange(len(whole)), bounds[:-1] + 1, bounds[1:], whole, counted=True)


_MOST_RANKS = 1 << 31  # peers beyond are no ranks
_COLLECTIVE = re.compile(r"reduce|gather|broadcast|barrier", re.IGNORECASE)


class Sense(IntEnum):
    """What a call or kernel of communication does."""

    OTHER = 0
    RECEIVE = 1
    SEND = 2
    BATCH = 3  # several at once; only the calls before it say which
    EITHER = 4  # one of the two; which, only the other side can tell


EITHER = "send or receive"  # name of a collective whose kernel is all that a trace has of it
_TRANSFERS = (Sense.SEND, Sense.RECEIVE, Sense.EITHER)


@dataclass(frozen=True, slots=True, eq=False)
class Posts:
    """When a rank asked for sends and receives, which is where runs of work are cut.

    Args:
        moment: int64[posts], nanoseconds, ascending.
        sense: a ``Sense`` each, int8[posts].
    """

    moment: Ints
    sense: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.moment)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The p2p kernels of one file, in the order of their launch, without directions.

    Args:
        transfers: their columns.
        launched: when each was launched, int64[transfers], nanoseconds; -1 if that was before the file begins.
    """

    transfers: Transfers
    launched: Ints


def sense_of(args: CommArgs) -> Sense:
    """The sense that ``Collective name`` tells."""
    name = (args.collective or "").lower()
    if name in ("send", "isend"):
        return Sense.SEND
    if name in ("recv", "irecv", "recvanysource"):
        return Sense.RECEIVE
    if name == EITHER:
        return Sense.EITHER
    if "coalesced" in name:
        return Sense.BATCH
    return Sense.OTHER


def posts_of(tables: Tables) -> Posts:
    """When this rank posted sends and receives."""
    table = tables.columns["comms"]
    sense = np.fromiter(map(sense_of, tables.comm_args), np.int8, len(tables.comm_args))
    posted = (tables.roles[table["word"]] == Role.COMMS) & np.isin(sense, _TRANSFERS)
    moments, senses = [table["start"][posted]], [sense[posted]]
    for role, meaning in ((Role.SEND, Sense.SEND), (Role.RECEIVE, Sense.RECEIVE), (Role.POST, None)):
        word, start, _ = marks(tables, role)
        moments.append(start)
        if meaning is None:
            sends = np.array(["send" in tables.names[w] for w in word.tolist()], np.bool_)
            senses.append(np.where(sends, Sense.SEND, Sense.RECEIVE).astype(np.int8))
        else:
            senses.append(np.full(len(start), meaning, np.int8))
    moment = np.concatenate(moments)
    order = np.argsort(moment, kind="stable")
    return Posts(moment[order], np.concatenate(senses)[order])


def messages_of(tables: Tables, steps: Steps) -> tuple[Moves | None, Collectives | None]:
    """The p2p kernels of one file, and those of collectives; None if there are none that can be told.

    A transfer that may be a send or a receive is called a send, and its stream is known.
    """
    table = tables.columns["comms"]
    kernels = np.flatnonzero(tables.roles[table["word"]] == Role.COMM_KERNEL)
    if not len(kernels):
        return None, None
    launched, _ = launches_of(tables, linked([tables.comm_args[row].correlation for row in kernels]))
    if (launched < 0).all():  # a file without calls of the runtime: the order on the device is all there is
        launched = table["start"][kernels]
    # Else what has no launch was launched before the file begins: its moment on the device lies among launches of
    # later ops, of which it is none, and maybe of a later step.
    order = np.lexsort((table["start"][kernels], launched))
    kernels, launched = kernels[order], launched[order]
    return _moves(tables, steps, kernels, launched), _collectives(tables, steps, kernels, launched)


def _moves(tables: Tables, steps: Steps, kernels: Ints, launched: Ints) -> Moves | None:
    """The kernels that send or receive."""
    table = tables.columns["comms"]
    told = _told(tables, kernels, launched)
    if not told:
        return None
    row, moment, sense, peer, group = np.array(told, np.int64).T
    either = sense == Sense.EITHER
    stream = None
    if either.any():
        stream = np.where(either, table["lane"][row], UNKNOWN).astype(np.int64)
    transfers = Transfers(
        step=_step_of(steps, moment),
        send=sense != Sense.RECEIVE,
        forward=np.full(len(row), UNKNOWN, np.int8),
        peer=peer.astype(np.int32),
        start=table["start"][row],
        end=table["end"][row],
        group=group,
        stream=stream,
    )
    return Moves(transfers, moment)


def _step_of(steps: Steps, launched: Ints) -> Ints:
    """The step of each launch; -1 also where that is not in the file."""
    return np.where(launched < 0, UNKNOWN, steps.of(launched))


def _collectives(tables: Tables, steps: Steps, kernels: Ints, launched: Ints) -> Collectives | None:
    """The kernels of collectives in which several ranks take part."""
    table = tables.columns["comms"]
    by_id = _calls_by_id(tables)
    found = []
    for row, moment in zip(kernels.tolist(), launched.tolist(), strict=True):
        args = _own_or_of_call(tables.comm_args[row], by_id)
        size = _size(args)
        if size > 1 and _COLLECTIVE.search(args.collective or ""):
            found.append((row, moment, size, _members(args)))
    if not found:
        return None
    rows, moments, sizes, members = np.array(found, np.int64).T
    return Collectives(
        step=_step_of(steps, moments),
        members=members,
        size=sizes.astype(np.int32),
        start=table["start"][rows],
        end=table["end"][rows],
    )


def _comm_calls(tables: Tables) -> Ints:
    """Rows of calls of communication on the CPU, in order."""
    table = tables.columns["comms"]
    calls = np.flatnonzero(tables.roles[table["word"]] == Role.COMMS)
    return calls[np.argsort(table["start"][calls], kind="stable")]


def _calls_by_id(tables: Tables) -> dict[int, CommArgs]:
    calls = {}
    for row in _comm_calls(tables).tolist():
        args = tables.comm_args[row]
        if args.external >= 0:
            calls[args.external] = args
    return calls


def _own_or_of_call(args: CommArgs, by_id: dict[int, CommArgs]) -> CommArgs:
    """What a kernel says itself, else what the call with its id says."""
    if args.collective:
        return args
    return by_id.get(args.external, args)


def _told(tables: Tables, kernels: Ints, launched: Ints) -> list[tuple[int, int, int, int, int]]:
    """Row, launch, sense, peer and group of every p2p kernel by launch; a batch comes once for each of its calls."""
    table, args = tables.columns["comms"], tables.comm_args
    by_id = _calls_by_id(tables)
    # Calls whose kernel names them itself are told; the others belong to the next batch that is launched.
    own = {args[row].external for row in kernels.tolist()}
    alone = [row for row in _comm_calls(tables).tolist() if args[row].external not in own and _is_move(args[row])]
    posted = deque(zip(table["start"][alone].tolist(), alone, strict=True))
    told: list[tuple[int, int, int, int, int]] = []
    for row, moment in zip(kernels.tolist(), launched.tolist(), strict=True):
        mine = _own_or_of_call(args[row], by_id)
        if sense_of(mine) == Sense.BATCH:
            while posted and posted[0][0] <= moment:
                call = args[posted.popleft()[1]]
                told.append((row, moment, sense_of(call), _peer(call), _group(call)))
        elif _is_move(mine):
            told.append((row, moment, sense_of(mine), _peer(mine), _group(mine)))
    return told


def _is_move(args: CommArgs) -> bool:
    return sense_of(args) in _TRANSFERS


def _peer(args: CommArgs) -> int:
    peer = args.target if sense_of(args) == Sense.SEND else args.source
    if peer is None or not 0 <= peer < _MOST_RANKS:
        return UNKNOWN
    return peer


def _group(args: CommArgs) -> int:
    """A number for the communicator's name, the same on all ranks."""
    if not args.group:
        return UNKNOWN
    return zlib.crc32(bytes(args.group))


def _members(args: CommArgs) -> int:
    """A number for the ranks of a group, the same on all of them; -1 if they are not named, or not all of them."""
    ranks = re.findall(rb"\d+", bytes(args.members))
    if len(ranks) != _size(args):  # Kineto cuts long lists: [0, 1, .., 511, ...]
        return UNKNOWN
    return zlib.crc32(b" ".join(ranks))


def _size(args: CommArgs) -> int:
    """How many ranks a group has, 0 if it does not say."""
    text = bytes(args.size).strip(b'"')
    if not text.isdigit() or len(text) >= 10:
        return 0
    return int(text)
