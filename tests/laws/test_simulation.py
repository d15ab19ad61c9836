"""Laws of simulation on random legal schedules: equal to a second simulator, monotone, bounded, fully accounted for."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from debubble.core import kernels
from debubble.core.account import account
from debubble.core.bounds import lower_bound
from debubble.core.costs import Costs
from debubble.core.engine import LINK, RENDEZVOUS, SENDS, Engine, Occupies
from debubble.core.errors import Deadlock, InputError
from debubble.core.lower import apart, lower
from debubble.core.order_check import verify
from debubble.core.posting_rules import exchange
from debubble.core.program import Program, Timeline
from debubble.core.schedule import Schedule, Shape
from debubble.core.simulate import makespan, simulate, simulate_many
from debubble.frameworks.engines import ENGINES
from debubble.schedules.catalog import CATALOG, build
from oracle import Oracle
from strategies import costs, schedules

WAYS = pytest.mark.parametrize("sends", list(SENDS.values()), ids=list(SENDS))
NAMES = {engine: name for name, engine in SENDS.items()}
ENGINES_AND_WAYS = {**SENDS, **ENGINES}
EVERY_ENGINE = pytest.mark.parametrize("engine", list(ENGINES_AND_WAYS.values()), ids=list(ENGINES_AND_WAYS))
HURRY = settings(max_examples=60, deadline=None)


@st.composite
def runs(draw, **limits) -> tuple[Schedule, Costs]:
    schedule = draw(schedules(**limits))
    return schedule, draw(costs(schedule, links=True))


def by_op(timeline: Timeline) -> dict:
    schedule = timeline.program.schedule
    return {schedule.op(i): (int(timeline.start[i]), int(timeline.end[i])) for i in range(len(schedule))}


@WAYS
@HURRY
@given(run=runs())
def test_simulate_equals_the_second_simulator(sends, run):
    schedule, spent = run
    second = Oracle(schedule, spent, NAMES[sends])
    times = (second.run_meeting(exchange(lower(schedule))) if sends is RENDEZVOUS else second.run()).times
    assert by_op(simulate(lower(schedule, sends), spent)) == times


@EVERY_ENGINE
@HURRY
@given(run=runs())
def test_every_nanosecond_of_every_rank_is_accounted_for(engine, run):
    schedule, spent = run
    parts = account(simulate(lowered(schedule, engine), spent))
    columns = (parts.compute, parts.warm_up, parts.waiting, parts.transfer, parts.cool_down)
    assert (sum(columns) == parts.window).all()
    assert all((column >= 0).all() for column in columns)


@EVERY_ENGINE
@HURRY
@given(run=runs())
def test_compute_is_the_work_of_the_ops_whoever_executes(engine, run):
    schedule, spent = run
    timeline = simulate(lowered(schedule, engine), spent)
    work = (timeline.end - timeline.start)[: len(schedule)].copy()
    if schedule.joined is not None:
        work[schedule.joined] = 0  # a pair counts once
    assert account(timeline).compute.tolist() == np.bincount(schedule.rank_of(), work, schedule.ranks).tolist()


@WAYS
@HURRY
@given(run=runs())
def test_transfers_that_occupy_a_rank_count_as_transfer(sends, run):
    program = lower(run[0], sends)
    timeline = simulate(program, run[1])
    took = (timeline.end - timeline.start)[len(run[0]) :]
    rank = run[0].rank_of()
    busy = np.zeros(run[0].ranks, np.int64)
    if program.engine.occupies is not Occupies.NOBODY:
        np.add.at(busy, rank[program.producer], took)
    if sends is RENDEZVOUS:
        np.add.at(busy, rank[program.consumer], took)
        assert account(timeline).transfer.tolist() == busy.tolist()
    assert (account(timeline).transfer >= busy).all()


@WAYS
@HURRY
@given(run=runs(), seed=st.integers(0, 2**32 - 1))
def test_a_longer_op_or_hop_never_shortens_the_run(sends, run, seed):
    schedule, spent = run
    dice = np.random.default_rng(seed)
    longer = Costs(*(t + dice.integers(0, 3, t.shape) for t in (spent.durations, spent.transfers)))
    spent = Costs(spent.durations, spent.transfers)  # a pair's own scale rounds, so it is not monotone to the ns
    program = lower(schedule, sends)
    before, after = simulate(program, spent), simulate(program, longer)
    assert (after.end >= before.end).all()


@EVERY_ENGINE
@HURRY
@given(run=runs())
def test_no_run_beats_the_lower_bound(engine, run):
    schedule, spent = run
    assert lower_bound(schedule, spent, engine) <= simulate(lowered(schedule, engine), spent).makespan


@HURRY
@given(run=runs())
def test_each_way_of_sending_costs_at_least_as_much_as_the_one_before(run):
    schedule, spent = run
    asynchronous, link, blocking, _ = (simulate(lower(schedule, sends), spent).makespan for sends in SENDS.values())
    assert asynchronous <= link
    assert asynchronous <= blocking


@HURRY
@given(schedule=schedules())
def test_no_schedule_deadlocks_by_rendezvous_in_the_order_of_exchange(schedule):
    assert len(lower(schedule, RENDEZVOUS)) == len(schedule) + len(lower(schedule, LINK).producer)


@HURRY
@given(st.sampled_from(list(CATALOG)), st.integers(1, 9), st.integers(1, 30), st.integers(1, 4), st.integers(1, 3))
def test_no_schedule_of_the_catalog_deadlocks_by_rendezvous_at_any_shape(name, p, m, v, s):
    schedule = defined(name, p, m, ((v, s), (v, 1), (1, s), (2, 1), (1, 1)))
    assert verify(schedule, exchange(lower(schedule)), (RENDEZVOUS,)).legal


def defined(name, p, m, finer):
    """The schedule at the first of some chunks and slices for which it is defined; it says so where it is not."""
    for v, s in finer:
        try:
            return build(name, Shape(p, m, v, s))
        except InputError:
            continue
    return reject()


@EVERY_ENGINE
@HURRY
@given(schedule=schedules())
def test_each_row_waits_for_rows_of_earlier_rounds_and_each_item_has_one(engine, schedule):
    program = lowered(schedule, engine)
    slots = len(schedule) if schedule.joined is None else len(schedule) - schedule.joined.sum()
    assert (
        len(set(program.order.tolist()))
        == len(program.order)
        == 1 + slots + len(program.producer) + len(program.launches)
    )
    assert program.order[0] == -1
    first = np.repeat(program.rounds[:-1], np.diff(program.rounds))
    assert (program.waits[:, 1:] < first).all()
    assert (program.waits >= 0).all()


def lowered(schedule: Schedule, engine: Engine) -> Program:
    """The program; engines that deadlock on this order, and those that ask for more chunks, say nothing about it."""
    try:
        return lower(schedule, engine)
    except (Deadlock, InputError):
        return reject()


@EVERY_ENGINE
@settings(max_examples=25, deadline=None)
@given(schedule=schedules(), data=st.data())
def test_lists_rounds_and_numba_find_the_same_order_and_the_same_times(engine, schedule, data):
    spent = data.draw(costs(schedule))
    found = []
    for pace in ("lists", "narrow", "rounds", "woken", "compiled"):
        with running(pace):
            timeline = simulate(lowered(schedule, engine), spent)
        found.append((timeline.program.order.tolist(), timeline.start.tolist(), timeline.end.tolist()))
    orders, starts, ends = zip(*found, strict=True)
    assert [sorted(order) for order in orders] == [sorted(orders[0])] * len(found)
    assert list(starts) == [starts[0]] * len(found)
    assert list(ends) == [ends[0]] * len(found)


@contextmanager
def running(pace: str):
    """Make every size run as only small ones do, or those of few ranks, large ones, or those of very many ranks."""
    if pace == "compiled":
        pytest.importorskip("numba", reason="the extra `fast` is not installed")
    limits = {"lists": (10**9, 10**9), "compiled": (-1, -1)}.get(pace, (-1, 10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "has_numba", lambda: pace == "compiled")
        patch.setattr(kernels, "SMALL", limits[0])
        patch.setattr(kernels, "LARGE", limits[1])
        patch.setattr(kernels, "NARROW", 10**9 if pace == "narrow" else 0)
        patch.setattr(kernels, "WIDE", 0 if pace == "woken" else 10**9)
        yield


@EVERY_ENGINE
@settings(max_examples=25, deadline=None)
@given(schedule=schedules(), data=st.data(), compiled=st.booleans())
def test_many_costs_at_once_give_the_window_of_each_alone(engine, schedule, data, compiled):
    program = lowered(schedule, engine)
    spent = data.draw(st.lists(costs(schedule, links=True), min_size=1, max_size=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("debubble.core.simulate._WORTH", -1 if compiled else 10**12)
        windows = simulate_many(program, spent)
    assert windows.tolist() == [simulate(program, each).makespan for each in spent]
    assert windows.tolist() == [makespan(program, each) for each in spent]


@HURRY
@given(run=runs())
def test_pairs_apart_are_the_same_ops_one_by_one(run):
    schedule, spent = apart(run[0]), run[1]
    assert by_op(simulate(lower(schedule), spent)) == Oracle(schedule, spent).run().times
