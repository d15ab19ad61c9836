"""Laws of simulation on random legal schedules: equal to a second simulator, monotone, bounded, fully accounted for."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.bounds import lower_bound
from debubble.core.costs import Costs
from debubble.core.errors import InputError
from debubble.core.exchange import exchange
from debubble.core.legality import verify
from debubble.core.lower import apart, lower
from debubble.core.program import Sends
from debubble.core.schedule import Schedule, Shape
from debubble.core.simulate import simulate
from debubble.core.timeline import Timeline
from debubble.schedules.catalog import CATALOG, build
from oracle import Oracle
from strategies import costs, schedules

WAYS = pytest.mark.parametrize("sends", list(Sends), ids=lambda sends: sends.value)
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
    second = Oracle(schedule, spent, sends.value)
    times = (second.run_meeting(exchange(lower(schedule))) if sends is Sends.RENDEZVOUS else second.run()).times
    assert by_op(simulate(lower(schedule, sends), spent)) == times


@WAYS
@HURRY
@given(run=runs())
def test_every_nanosecond_of_every_rank_is_accounted_for(sends, run):
    schedule, spent = run
    parts = account(simulate(lower(schedule, sends), spent))
    columns = (parts.compute, parts.warm_up, parts.waiting, parts.transfer, parts.cool_down)
    assert (sum(columns) == parts.window).all()
    assert all((column >= 0).all() for column in columns)


@WAYS
@HURRY
@given(run=runs())
def test_compute_is_the_work_of_the_ops_whatever_the_sends(sends, run):
    schedule, spent = run
    timeline = simulate(lower(schedule, sends), spent)
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
    if program.occupies_ranks:
        np.add.at(busy, rank[program.producer], took)
    if sends is Sends.RENDEZVOUS:
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


@WAYS
@HURRY
@given(run=runs())
def test_no_run_beats_the_lower_bound(sends, run):
    schedule, spent = run
    assert lower_bound(schedule, spent) <= simulate(lower(schedule, sends), spent).makespan


@HURRY
@given(run=runs())
def test_each_way_of_sending_costs_at_least_as_much_as_the_one_before(run):
    schedule, spent = run
    asynchronous, link, blocking, _ = (simulate(lower(schedule, sends), spent).makespan for sends in Sends)
    assert asynchronous <= link
    assert asynchronous <= blocking


@HURRY
@given(schedule=schedules())
def test_no_schedule_deadlocks_by_rendezvous_in_the_order_of_exchange(schedule):
    assert len(lower(schedule, Sends.RENDEZVOUS)) == len(schedule) + len(lower(schedule, Sends.LINK).producer)


@HURRY
@given(st.sampled_from(list(CATALOG)), st.integers(1, 9), st.integers(1, 30), st.integers(1, 4), st.integers(1, 3))
def test_no_schedule_of_the_catalog_deadlocks_by_rendezvous_at_any_shape(name, p, m, v, s):
    schedule = defined(name, p, m, ((v, s), (v, 1), (1, s), (2, 1), (1, 1)))
    assert verify(schedule, exchange(lower(schedule)), (Sends.RENDEZVOUS,)).legal


def defined(name, p, m, finer):
    """The schedule at the first of some chunks and slices for which it is defined; it says so where it is not."""
    for v, s in finer:
        try:
            return build(name, Shape(p, m, v, s))
        except InputError:
            continue
    return reject()


@WAYS
@HURRY
@given(schedule=schedules())
def test_rows_of_one_round_do_not_depend_on_each_other(sends, schedule):
    program = lower(schedule, sends)
    assert sorted(program.order.tolist()) == list(range(len(program)))
    in_round = np.empty(len(program) + 1, np.int64)
    in_round[program.order] = np.repeat(np.arange(len(program.rounds) - 1), np.diff(program.rounds))
    in_round[-1] = -1
    now = in_round[program.order]
    assert (in_round[program.before] < now).all()
    assert (in_round[program.needs] < now).all()


@WAYS
@settings(max_examples=25, deadline=None)
@given(schedule=schedules(pairs=False), data=st.data())
def test_compiled_sweep_equals_the_one_in_numpy(sends, schedule, data):
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    spent = data.draw(costs(schedule))
    flat = Costs(spent.durations[:, :, :1].copy(), spent.transfers[:, :, :1].copy())
    program = lower(schedule, sends)
    slow, fast = simulate(program, flat), simulate(program, flat, fast=True)
    assert np.array_equal(slow.start, fast.start)
    assert np.array_equal(slow.end, fast.end)


@HURRY
@given(run=runs())
def test_pairs_apart_are_the_same_ops_one_by_one(run):
    schedule, spent = apart(run[0]), run[1]
    assert by_op(simulate(lower(schedule), spent)) == Oracle(schedule, spent).run().times
