"""The laws of a schedule that need no clock: each op once, on the rank of its stage, after what it builds on.

What an op builds on is made on its own rank, and stands before it by law, or on another, and is a transfer. Whether
ranks can wait for each other for ever is found by ``lower``, which takes these laws as given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .errors import Violation
from .schedule import NOTHING, Kind, Op, Schedule

_MOST = 1000  # violations of one law that are spelled out; a file with more is wrong from the ground up

# Lines of the table that `locate` builds: I and B share one, because both yield the gradient of the input.
FORWARD, GRADIENT, WEIGHT = 0, 1, 2
LINE = np.array([FORWARD, GRADIENT, WEIGHT, GRADIENT], np.int32)


def locate(schedule: Schedule) -> NDArray[np.int32]:
    """Where each op stands first, int32[3, stages, units]: lines F, gradient (I or B), W; -1 where there is none."""
    where = np.full((3, schedule.stages, schedule.units), -1, np.int32)
    # Backwards, because of several writes to one cell the last stays, and the first place is asked for.
    where.reshape(-1)[_keys(schedule)[::-1]] = np.arange(len(schedule) - 1, -1, -1, dtype=np.int32)
    return where


def violations(schedule: Schedule, *, in_order: bool = False) -> list[Violation]:
    """Everything in a schedule that breaks a law, or an empty list.

    Args:
        schedule: what to judge.
        in_order: also ask that each stage takes the micro-batches of each kind first in, first out, backwards taking
            the slices of each in reverse. Published schedules do (costs nothing where micro-batches are alike); a
            user's own order need not.
    """
    strangers = list(_strangers(schedule))
    if strangers:  # they have no cell in the table that the other laws read
        return strangers + _without_strangers(schedule, in_order)
    where = locate(schedule)
    found = [*_misplaced(schedule), *_repeated(schedule, where), *_entangled(schedule)]
    found += _missing(schedule, where)
    if not found:
        found += _too_early(schedule, where)
    if in_order:
        found += _out_of_order(schedule)
    return found


def cells(schedule: Schedule, line: NDArray[np.int32], stage: NDArray[np.int32]) -> NDArray[np.int32]:
    """Index into the raveled table of `locate` for a line and a stage of each op's own unit, int32[ops]."""
    return (line * np.int32(schedule.stages) + stage) * np.int32(schedule.units) + schedule.unit


def _keys(schedule: Schedule) -> NDArray[np.int32]:
    return cells(schedule, LINE[schedule.kind], schedule.stage)


def _at(schedule: Schedule, row: int, sentence: str, remedy: str) -> Violation:
    rank = int(np.searchsorted(schedule.offsets, row, side="right")) - 1
    return Violation(rank, int(row - schedule.offsets[rank]), sentence, remedy)


def _name(schedule: Schedule, row: int) -> str:
    return schedule.op(row).text(schedule.slices)


def _strangers(schedule: Schedule) -> Iterator[Violation]:
    """Ops of a stage or micro-batch that does not exist."""
    for column, size, noun in (
        (schedule.stage, schedule.stages, "stages"),
        (schedule.unit, schedule.units, "micro-batches"),
    ):
        for row in np.flatnonzero((column < 0) | (column >= size))[:_MOST]:
            sentence = f"{_name(schedule, row)} does not exist: there are {size} {noun}, counted from 0"
            yield _at(schedule, row, sentence, "leave it out")


def _without_strangers(schedule: Schedule, in_order: bool) -> list[Violation]:
    """What the other ops break, at their positions in the whole; slots are judged once all ops exist."""
    kept = (schedule.stage >= 0) & (schedule.stage < schedule.stages)
    kept &= (schedule.unit >= 0) & (schedule.unit < schedule.units)
    rows = np.flatnonzero(kept)
    size = np.bincount(schedule.rank_of()[rows], minlength=schedule.ranks)
    rest = replace(
        schedule,
        offsets=np.concatenate([[0], np.cumsum(size)]),
        kind=schedule.kind[rows],
        stage=schedule.stage[rows],
        unit=schedule.unit[rows],
        joined=None,
    )
    found = []
    for violation in violations(rest, in_order=in_order):
        if violation.position < 0:  # of an op that is missing
            found.append(violation)
        else:
            row = int(rows[rest.offsets[violation.rank] + violation.position])
            found.append(_at(schedule, row, violation.sentence, violation.remedy))
    return found


def _misplaced(schedule: Schedule) -> Iterator[Violation]:
    """Ops on a rank that does not hold their stage."""
    if schedule.route is None:
        home = schedule.placement[0, schedule.stage]
    else:
        home = schedule.placement[schedule.copy_of(schedule.unit), schedule.stage]
    for row in np.flatnonzero(home != schedule.rank_of())[:_MOST]:
        yield _at(
            schedule,
            row,
            f"{_name(schedule, row)} belongs on rank {home[row]}, where stage {schedule.stage[row]} lives",
            f"move it to rank {home[row]}",
        )


def _repeated(schedule: Schedule, where: NDArray[np.int32]) -> Iterator[Violation]:
    """Ops that stand there twice; a full backward beside a split one counts as twice."""
    if np.count_nonzero(where >= 0) == len(schedule):
        return
    first = where.ravel()[_keys(schedule)]
    for row in np.flatnonzero(first != np.arange(len(schedule)))[:_MOST]:
        sentence = f"{_name(schedule, row)} repeats {_name(schedule, first[row])}, which already ran"
        yield _at(schedule, row, sentence, "leave it out")


def _entangled(schedule: Schedule) -> Iterator[Violation]:
    """Slots of more than two ops, and slots whose second op builds on the first: they cannot run together."""
    if schedule.joined is None:
        return
    second = np.flatnonzero(schedule.joined)
    lone = np.isin(second, schedule.offsets[:-1]) | schedule.joined[second - 1]
    for row in second[lone][:_MOST]:
        sentence = f"{_name(schedule, row)} joins a slot that has no room: a slot holds one op or two"
        yield _at(schedule, row, sentence, "give it a slot of its own")
    second = second[~lone]
    line, step = LINE[schedule.kind[second]], schedule.stage[second] - schedule.stage[second - 1]
    same_line, same_unit = line == LINE[schedule.kind[second - 1]], schedule.unit[second] == schedule.unit[second - 1]
    onward = same_line & (line != WEIGHT) & (step == np.where(line == FORWARD, 1, -1))
    next_kind = (line == LINE[schedule.kind[second - 1]] + 1) & (step == 0)
    same_sequence = schedule.unit[second] // schedule.slices == schedule.unit[second - 1] // schedule.slices
    next_slice = same_line & (line != WEIGHT) & (step == 0) & same_sequence
    for row in second[same_unit & (onward | next_kind) | next_slice & ~same_unit][:_MOST]:
        first, name = _name(schedule, row - 1), _name(schedule, row)
        yield _at(schedule, row, f"{name} shares a slot with {first}, which it builds on", "give it a slot of its own")


def _missing(schedule: Schedule, where: NDArray[np.int32]) -> Iterator[Violation]:
    """Ops that a step needs and that stand nowhere."""
    lacking = [(Kind.F, where[FORWARD] < 0)]
    if not schedule.forward_only:
        gradient = where[GRADIENT]
        lacking.append((Kind.B, gradient < 0))
        split = (gradient >= 0) & (schedule.kind[gradient] == Kind.I)
        lacking.append((Kind.W, split & (where[WEIGHT] < 0)))
        for stage, unit in np.argwhere(~split & (gradient >= 0) & (where[WEIGHT] >= 0))[:_MOST]:
            row = where[WEIGHT, stage, unit]
            whole = _name(schedule, gradient[stage, unit])
            sentence = f"{_name(schedule, row)} repeats {whole}, which holds W"
            yield _at(schedule, row, sentence, f"leave it out, or split {whole} into I and W")
    for kind, absent in lacking:
        for stage, unit in np.argwhere(absent)[:_MOST]:
            rank = int(schedule.placement[schedule.copy_of(np.array([unit]))[0], stage])
            text = Op(kind, int(stage), int(unit)).text(schedule.slices)
            yield Violation(rank, -1, f"{text} is missing", f"add it to rank {rank}")


def _too_early(schedule: Schedule, where: NDArray[np.int32]) -> Iterator[Violation]:
    """Ops that stand before something of their own stage that they build on."""
    gradient, weight = where[GRADIENT], where[WEIGHT]
    pairs = [(where[FORWARD], gradient), (gradient, weight)]
    if schedule.slices > 1:
        # Causal attention: a slice attends to those before it, so its gradient needs those behind it.
        inner = np.arange(schedule.units) % schedule.slices > 0
        pairs.append((where[FORWARD][:, :-1][:, inner[1:]], where[FORWARD][:, 1:][:, inner[1:]]))
        pairs.append((gradient[:, 1:][:, inner[1:]], gradient[:, :-1][:, inner[1:]]))
    for first, second in pairs:
        early = (second >= 0) & (second < first)
        for row, needed in zip(second[early][:_MOST], first[early][:_MOST], strict=True):
            first_made = _name(schedule, needed)
            sentence = f"{_name(schedule, row)} stands before {first_made}, which it builds on"
            yield _at(schedule, row, sentence, f"move it behind {first_made}")


def _out_of_order(schedule: Schedule) -> Iterator[Violation]:
    """Ops of one stage, kind and copy of the weights whose micro-batches, or their slices, are not in turn."""
    group = (schedule.copy_of(schedule.unit).astype(np.int64) * 4 + schedule.kind) * schedule.stages + schedule.stage
    rows = np.argsort(group, kind="stable")
    slice_ = schedule.unit % schedule.slices
    mirrored = np.where(schedule.kind == Kind.F, 0, schedule.slices - 1 - 2 * slice_)
    turn = schedule.unit + mirrored
    behind = (np.diff(group[rows]) == 0) & (np.diff(turn[rows]) < 0)
    for row, earlier in zip(rows[1:][behind][:_MOST], rows[:-1][behind][:_MOST], strict=True):
        sentence = f"{_name(schedule, row)} comes after {_name(schedule, earlier)}: not first in, first out"
        yield _at(schedule, row, sentence, "take the micro-batches of a stage in order")


# For each kind: how far away the stage is whose output it takes in, and the line of `locate` where that stands.
_STEP = np.array([-1, 1, 0, 1], np.int32)
_FEEDS = np.array([FORWARD, GRADIENT, GRADIENT, GRADIENT], np.int32)


def needs_of(schedule: Schedule) -> NDArray[np.int32]:
    """What each op needs from another rank, in the schedule's numbering, int32[1 or 2, ops].

    F of stage s needs F of stage s-1; I and B need the gradient of stage s+1. What an op needs from its own rank
    stands before it by law. A second line is there only where slots hold two ops: each waits for the inputs of both.
    """
    source = schedule.stage + _STEP[schedule.kind]
    none = (schedule.kind == Kind.W) | (source < 0) | (source >= schedule.stages)
    cell = cells(schedule, _FEEDS[schedule.kind], source)
    cell[none] = 0
    needs = locate(schedule).ravel()[cell]  # cell 0 stands for none, so that one gather serves all
    needs[none] = NOTHING
    if (schedule.placement[:, 1:] == schedule.placement[:, :-1]).any():
        rank = schedule.rank_of()
        local = ~none & (rank[needs] == rank)
        needs[local & (needs < np.arange(len(needs)))] = NOTHING  # satisfied by the lane; the rest deadlocks: found
    if schedule.joined is None:
        return needs[None]
    second = np.flatnonzero(schedule.joined)
    mate = np.full(len(needs), NOTHING, np.int32)
    mate[second], mate[second - 1] = needs[second - 1], needs[second]
    return np.stack([needs, mate])


def transfers(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every pair of ops on different ranks of which one needs what the other makes: producers and consumers.

    Both int32[transfers], in the order of the consumers.
    """
    needs = needs_of(schedule)[0]
    consumer = np.flatnonzero(needs >= 0).astype(np.int32)
    return needs[consumer], consumer
