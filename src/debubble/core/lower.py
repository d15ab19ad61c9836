"""Lowering: from the order of ops and an engine to rows that wait for rows, or to the circle that forbids it.

Ranks are numbered first, round by round, each with its own items alone (see ``hosts``); a transfer then gets its row
behind the round in which the later of its two sides is posted:

    round        0    1    2    3
    rank 0      0F0  0F1       0B0
    rank 1           1F0  1B0
    transfers     F0        B0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .engine import IDEAL, Engine, Occupies, Posting
from .errors import Deadlock, Fault, IllegalSchedule, InputError
from .hosts import RECEIVER, SENDER, Hosts, check_lanes, circle, hosts_of, of_computations
from .kernels import Rounds, Stuck, rounds
from .laws import needs_of, violations
from .posting_rules import by_steps, in_rounds, placed, planned, when_made
from .posts import Exchange, Index, Order, Posts, as_exchange, from_exchange, mismatches
from .program import Lines, Program
from .schedule import NOTHING, Schedule

Keys = NDArray[np.int32]


def lower(
    schedule: Schedule,
    engine: Engine = IDEAL,
    given: Exchange | None = None,
    *,
    timetable: Index | None = None,
    occupied: bool = False,
) -> Program:
    """Prove a schedule legal and free of deadlock under an engine, and lay it out for simulation and execution.

    The output of an overlapped pair leaves when both of its ops have ended, as engines send it; ``apart`` gives the
    schedule in which each half sends at once.

    Args:
        schedule: what to lower.
        engine: how it communicates.
        given: where sends and receives stand, if somebody wrote that down; for engines that have no rule of their own
            for it (``engine.takes_orders``).
        timetable: when each op ends by plan, int64[ops], for an engine that posts by a plan; None for F = I = W.
        occupied: whether transfers take up time of their senders (``Costs.sender``), under an engine that can tell.

    Raises:
        IllegalSchedule: an op is missing, repeated, misplaced or too early, or a given send or receive is; carries
            every violation.
        Deadlock: ranks wait for each other in a circle, computing or communicating; carries the circle.
        InputError: the engine asks for more chunks a rank than the schedule has.
        ValueError: sends and receives were given to an engine that has a rule of its own.
    """
    if broken := violations(schedule):
        raise IllegalSchedule(schedule.name, broken)
    _check_chunks(schedule, engine)
    order = Order(schedule, needs_of(schedule)[0])
    if not len(order.consumer) or (given is None and engine == IDEAL):
        return replace(_plain(order), engine=engine)
    if (order.receives_from == order.rank).any():
        _plain(order)  # it deadlocks: an input from behind on the same rank
    posts = posted(order, engine, timetable) if given is None else _taken(order, given, engine)
    hosts = hosts_of(order, posts, engine, occupied=occupied)
    try:
        check_lanes(order, hosts)  # rounds take it as given that both sides of a lane have the same order
        numbered = _numbered(order, hosts)
    except Deadlock:
        _rounds_of_ops(order)  # a circle of computations alone is no fault of the engine
        raise
    except Stuck as stuck:
        _rounds_of_ops(order)
        raise circle(order, hosts, stuck) from None
    return _laid_out(order, engine, hosts, numbered, occupied=occupied)


def communication(schedule: Schedule, engine: Engine, timetable: Index | None = None) -> Exchange:
    """What each rank computes, sends and receives under an engine, in order, and until when it waits for what.

    Args:
        schedule: a legal one.
        engine: any but ``ideal``, whose transfers nobody posts.
        timetable: as in ``lower``.
    """
    order = Order(schedule, needs_of(schedule)[0])
    return as_exchange(order, posted(order, engine, timetable))


def apart(schedule: Schedule) -> Schedule:
    """The same order with every overlapped pair run as two ops, one after the other, each sending at once.

    Ideal DualPipeV at p=4, m=8 with 10 ms a forward and 20 ms a backward of a chunk takes 540 ms with pairs whose
    outputs leave together, which is what PyTorch's runtime does, and 510 ms so.
    """
    return replace(schedule, joined=None)


def _check_chunks(schedule: Schedule, engine: Engine) -> None:
    chunks = int(schedule.chunks_of().sum(axis=0).max(initial=0))
    if chunks < engine.least_chunks:
        rule = f"it runs schedules of {engine.least_chunks} chunks a rank or more, and {schedule.name} has {chunks}"
        raise InputError(Fault(f"engine = {engine}", rule, "give an interleaved schedule, or another engine"))


def _numbered(order: Order, hosts: Hosts) -> Rounds:
    """The rounds of all hosts; those of the ops alone where nothing else is done and nothing more is needed."""
    # Then `order.rounds` may be known already, from the plain program that a rule by time has asked for.
    if len(hosts) == len(order.first) and np.array_equal(hosts.needs, order.needs()):
        return order.rounds
    return rounds(hosts.offsets, hosts.needs)


def _taken(order: Order, given: Exchange, engine: Engine) -> Posts:
    """An order that somebody wrote, with what each rank waits for under an engine."""
    if not engine.takes_orders:
        raise ValueError(f"{engine} posts by a rule of its own; it takes no order of sends and receives")
    if wrong := mismatches(order.schedule, given):
        raise IllegalSchedule(order.schedule.name, wrong)
    posts = from_exchange(order, given)
    if engine.occupies is Occupies.NOBODY:
        return replace(posts, until=posts.when_used(order))
    return replace(posts, until=posts.behind_batch())  # a transfer that takes up the rank is waited for at once


def posted(order: Order, engine: Engine, timetable: Index | None = None) -> Posts:
    """Where an engine posts, by its own rule, and until when it waits."""
    if engine.posting is Posting.STEPS:
        return by_steps(order, engine)
    if engine.posting is Posting.MADE:
        return when_made(order, engine)
    if engine.posting is Posting.ROUNDS:
        _rounds_of_ops(order)
        return in_rounds(order)
    if engine.posting is Posting.PLACED:
        return placed(order, _plain(order))
    return planned(order, engine, _plain(order), timetable)


def _rounds_of_ops(order: Order) -> Rounds:
    """The rounds of ops that wait for nothing but their inputs, or the circle in which they wait for each other."""
    try:
        return order.rounds
    except Stuck as stuck:
        raise of_computations(order, order.needs(), stuck) from None


def _plain(order: Order) -> Program:
    """The program of ``IDEAL``: a row for each slot, and a hop is a lag."""
    needs, numbered = order.needs(), _rounds_of_ops(order)
    slot, slots, lines = numbered.order, len(order.first), _lines(order)
    row = np.zeros(slots + 1, np.int32)  # -1, nothing, finds the start
    row[slot] = np.arange(1, slots + 1, dtype=np.int32)
    waits = np.zeros((1 + len(needs), slots + 1), np.int32)
    waits[0, 1:] = row.take(slot - 1)
    waits[0, row[order.offsets[:-1][np.diff(order.offsets) > 0]]] = 0  # nothing comes before the first of a rank
    line_of_op = _line_of(order, slice(None))
    lag = np.full((len(needs), slots + 1), lines.nothing, np.int32)
    for line, ends in enumerate((order.first, order.last)[: len(needs)]):
        waits[1 + line, 1:] = row.take(needs[line].take(slot))
        op = slot
        if order.schedule.joined is not None:
            op = ends[slot]
        lag[line, 1:] = np.where(waits[1 + line, 1:], lines.arrival + line_of_op.take(op), lines.nothing)
    ops = slot
    if order.schedule.joined is not None:
        ops = order.first[slot]
    none = np.empty(0, np.int32)
    return Program(
        schedule=order.schedule,
        engine=IDEAL,
        order=np.append(np.int32(NOTHING), ops),
        row=order.of_slots(row[:-1]).astype(np.int32),
        rounds=numbered.first + 1,
        waits=waits,
        key=np.append(np.int32(lines.nothing), _key_of_ops(order).take(ops)),
        lag=lag,
        producer=none,
        consumer=none,
        holds=np.empty((2, 0), np.int32),
        launches=none,
    )


def _lines(order: Order) -> Lines:
    return Lines(order.schedule.stages)


def _line_of(order: Order, op: Index | slice) -> Keys:
    """``kind x stages + stage`` of some ops, or of all."""
    schedule = order.schedule
    return schedule.kind[op] * np.int32(schedule.stages) + schedule.stage[op]


def _key_of_ops(order: Order) -> Keys:
    """The line of each op's duration, int32[ops]; at the first op of a pair the line of its own that the pair has."""
    key = _line_of(order, slice(None))
    pairs = order.first[order.first != order.last]
    key[pairs] = _lines(order).nothing + 1 + np.arange(len(pairs), dtype=np.int32)
    return key


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Where items and transfers have their rows.

    Args:
        item: row of each item, int64[items].
        move: row of each transfer, int64[transfers].
        rounds: first row of each round, int64[rounds + 1].
        ahead: transfer in front of each on its lane that nothing else makes it wait for, int32[transfers]; None where
            there is none at all.
    """

    item: Index
    move: Index
    rounds: NDArray[np.int64]
    ahead: Keys | None


def _rows(hosts: Hosts, numbered: Rounds, *, occupied: bool) -> _Rows:
    """Put each transfer behind the round of its later side, and behind what is in front of it on its lane."""
    moves, counts = len(hosts.clock) // 2, np.diff(numbered.first)
    round_of = np.append(numbered.of_items(), np.int32(NOTHING))
    later = np.maximum(round_of.take(hosts.clock[SENDER::2]), round_of.take(hosts.clock[RECEIVER::2]))
    ahead = _lane_ahead(hosts, occupied=occupied)
    key, stride = 2 * later + 3, 2  # an item of round k, then the transfers behind it, place by place
    if ahead is not None:
        place = _places(later, ahead)
        stride = int(place.max(initial=0)) + 2
        key = (later + np.int32(1)) * np.int32(stride) + np.int32(1) + place
    item_keys = np.arange(1, len(numbered.first)) * stride
    moved = np.bincount(key, minlength=len(numbered.first) * stride)
    size = moved.copy()
    size[item_keys] = counts
    first = np.cumsum(size) - size + 1
    item_row, move_row = np.empty(len(hosts), np.int64), np.empty(moves, np.int64)
    moved_by = np.repeat(first[item_keys] - numbered.first[:-1], counts)
    item_row[numbered.order.astype(np.int64)] = np.arange(len(hosts)) + moved_by
    if len(size) < 2**16:  # NumPy sorts 16 bits by radix, in linear time, and wider keys by merging
        key = key.astype(np.uint16)
    sequence = np.argsort(key, kind="stable")
    shift = first - np.cumsum(moved) + moved
    move_row[sequence] = np.arange(moves) + np.repeat(shift, moved)
    return _Rows(item_row, move_row, np.append(first[size > 0], len(hosts) + moves + 1), ahead)


def _lane_ahead(hosts: Hosts, *, occupied: bool) -> Keys | None:
    """The transfer in front of each on its lane, unless its rank has waited for that before it posts this one."""
    posts, lanes = hosts.posts, hosts.lanes
    if lanes is None:
        return None
    waited = posts.until.take(lanes.first) <= posts.row.take(lanes.second)
    if occupied:  # only the sender's own wait spares its lane the time that the next send takes up
        waited &= posts.sends.take(lanes.second)
    if waited.all():
        return None
    found = lanes.in_front[SENDER::2].copy()  # both sides have the same in front, or `check_lanes` has refused
    found[hosts.side.take(lanes.second.compress(waited)) >> 1] = NOTHING
    if (found < 0).all():
        return None
    return found


def _places(later: Keys, ahead: Keys) -> Keys:
    """Of transfers behind one round, how many of its lane come before each."""
    place = np.zeros(len(later), np.int32)
    behind = np.flatnonzero((ahead >= 0) & (later.take(ahead) == later))
    while (place[behind] != (moved := place[ahead[behind]] + 1)).any():  # as often as the longest chain on a lane
        place[behind] = moved
    return place


def _laid_out(order: Order, engine: Engine, hosts: Hosts, numbered: Rounds, *, occupied: bool) -> Program:
    """Items and transfers in rows, in topological order."""
    rows = _rows(hosts, numbered, occupied=occupied)
    lines, line = _lines(order), _line_of(order, order.consumer)
    stop = np.flatnonzero(hosts.slot < 0)
    launches = hosts.launches.take(stop)
    ops, moves = len(order.schedule), len(order.consumer)
    what = np.empty(len(hosts) + moves, np.int32)  # of items and transfers
    what[: len(hosts)] = order.first.take(hosts.slot)
    what[stop] = np.arange(ops + moves, ops + moves + len(stop))
    what[len(hosts) :] = np.arange(ops, ops + moves)
    number = np.empty(len(what) + 1, np.int32)
    number[0] = NOTHING
    number[rows.item], number[rows.move] = what[: len(hosts)], what[len(hosts) :]
    launching = np.full(len(stop) + 1, lines.nothing, np.int32)  # one more, which NOTHING, the start, finds
    launched = np.flatnonzero(launches >= 0)
    launching[launched] = lines.sender + line[launches[launched]]
    key = np.concatenate([_key_of_ops(order), lines.wire + line, launching], dtype=np.int32).take(number)
    taken_up = occupied and engine.meets and engine.occupies is Occupies.NOBODY
    waits, lag = _waiting(engine, hosts, rows, lagging=taken_up and not engine.queue)
    if len(lag):
        base = lines.arrival if hosts.late else lines.sender
        lag = np.where(lag >= 0, base + np.append(line, 0)[lag], lines.nothing)
    return Program(
        schedule=order.schedule,
        engine=engine,
        order=number,
        row=_row_of_all(order, hosts, rows),
        rounds=rows.rounds,
        waits=waits,
        key=key,
        lag=lag.astype(np.int32),
        producer=order.producer,
        consumer=order.consumer.astype(np.int32),
        holds=_holds(order, hosts),
        launches=launches.astype(np.int32),
        occupied=taken_up,
    )


def _waiting(engine: Engine, hosts: Hosts, rows: _Rows, *, lagging: bool) -> tuple[Keys, Keys]:
    """What each row waits for, int32[width, rows], and the transfer whose lag is added, int32[lagged, rows]."""
    items, start = len(hosts), np.int32(0)
    row_of_end = np.zeros(hosts.base + len(hosts.clock) + 1, np.int32)  # of an item or a side; the last of ``NOTHING``
    row_of_end[:items] = rows.item
    row_of_end[hosts.base + SENDER : -1 : 2] = row_of_end[hosts.base + RECEIVER : -1 : 2] = rows.move
    free = []
    if engine.meets:
        free.append(row_of_end.take(hosts.clock[RECEIVER::2]))
    late = [row_of_end.take(hosts.clock[SENDER::2])]
    if rows.ahead is not None:
        in_front = row_of_end[hosts.base : -1 : 2].take(rows.ahead)
        in_front[rows.ahead < 0] = start
        late.append(in_front)
    if not lagging:
        free, late = [*free, *late], []
    # Rows of items and of transfers share the lines: first what has no lag, behind it what has one.
    own = len(hosts.waits) - hosts.late
    width, lagged = max(own, len(free)), max(hosts.late, len(late))
    waits = np.zeros((width + lagged, items + len(rows.move) + 1), np.int32)
    lag = np.full((lagged, waits.shape[1]), NOTHING, np.int32)
    places = [*range(own), *range(width, width + hosts.late)]
    for place, line in zip(places, hosts.waits, strict=True):
        waits[place, rows.item] = row_of_end.take(line)
        if place >= width:
            lag[place - width, rows.item] = np.where(line >= hosts.base, (line - hosts.base) // 2, NOTHING)
    places = [*range(len(free)), *range(width, width + len(late))]
    for place, ends in zip(places, [*free, *late], strict=True):
        waits[place, rows.move] = ends
        if place >= width:
            lag[place - width, rows.move] = np.where(ends > 0, np.arange(len(ends)), NOTHING)
    return waits, lag


def _row_of_all(order: Order, hosts: Hosts, rows: _Rows) -> Keys:
    """The row of each op and transfer, int32[ops + transfers]."""
    of_slot = rows.item.compress(hosts.slot >= 0)
    return np.concatenate([order.of_slots(of_slot), rows.move], dtype=np.int32)


def _holds(order: Order, hosts: Hosts) -> Keys:
    """The first op of each side's rank that cannot start before a transfer has ended, int32[2, transfers]."""
    is_slot = hosts.slot >= 0
    ends = hosts.offsets[1 : order.schedule.ranks + 1]
    slots = np.zeros(len(hosts) + 1, np.int32)  # before each item
    np.cumsum(is_slot.astype(np.int32), out=slots[1:])
    op = np.append(order.first, np.int32(NOTHING)).take(slots)  # what waits behind a stop is the next slot ..
    behind_last = np.flatnonzero(is_slot)[order.offsets[1:] - 1] + 1
    for first, last in zip(behind_last.tolist(), ends.tolist(), strict=True):
        op[first:last] = NOTHING  # .. of its rank
    op[ends[-1] :] = NOTHING  # items of lanes, and no item
    return np.stack([op.take(hosts.hold[SENDER::2]), op.take(hosts.hold[RECEIVER::2])])
