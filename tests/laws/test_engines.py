"""Engines on random orders, hops and sizes: equal to the loops that people wrote, event by event, in plain Python."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from debubble.core.costs import Costs
from debubble.core.errors import Deadlock, InputError
from debubble.core.lower import lower
from debubble.core.schedule import KINDS, Schedule, Shape
from debubble.core.simulate import simulate
from debubble.frameworks.engines import ENGINES
from debubble.schedules.catalog import build
from host_programs import (
    Clock,
    Pipeline,
    deepspeed,
    fused_neighbours,
    megatron_1f1b,
    megatron_interleaved,
    megatron_overlap,
    megatron_overlap_all,
    torch_1f1b,
    torch_runtime,
    zero_bubble,
)
from strategies import schedules

HURRY = settings(max_examples=60, deadline=None)


@st.composite
def speeds(draw, schedule: Schedule, *, taken: bool = True) -> Costs:
    """Costs of every kind, stage and now and then unit, with hops on some links, and senders taken up by some."""
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (KINDS, schedule.stages, draw(st.sampled_from([1, schedule.units])))
    hop = dice.integers(0, draw(st.sampled_from([1, 10, 40])), shape) * dice.integers(0, 2, shape)
    sender = dice.integers(0, 20, shape) * dice.integers(0, 2, shape) if taken and draw(st.booleans()) else None
    return Costs(dice.integers(1, 30, shape), hop, sender=sender, pair_scale=draw(st.sampled_from([1.0, 0.75])))


def clock(schedule: Schedule, costs: Costs, **traits) -> Clock:
    pipe = Pipeline(schedule)

    def of(table, op):
        return int(table[op.kind, op.stage, op.microbatch if table.shape[2] > 1 else 0])

    def spent(*slot):
        total = sum(of(costs.durations, op) for op in slot)
        return total if len(slot) == 1 else round(total * costs.pair_scale)

    return Clock(
        pipe,
        spent,
        lambda made: of(costs.transfers, pipe.sink[made]),
        lambda made: of(costs.sender_side(), pipe.sink[made]),
        **traits,
    )


def followed(schedule: Schedule, costs: Costs, program, **traits) -> Clock:
    """The clock of a pipeline whose every rank runs a host program."""
    second = clock(schedule, costs, **traits)
    return second.run({rank: list(program(second.pipe, rank)) for rank in range(schedule.ranks)})


def same(engine: str, schedule: Schedule, costs: Costs, second: Clock, **lowering) -> None:
    """Ops and transfers have the same times as by the clock."""
    program = lower(schedule, ENGINES[engine], occupied=costs.sender is not None, **lowering)
    first = simulate(program, costs)
    ops = [schedule.op(op) for op in range(len(schedule))]
    assert {op: (int(first.start[at]), int(first.end[at])) for at, op in enumerate(ops)} == {
        op: (second.start[op], second.end[op]) for op in ops
    }
    ends = {ops[made]: int(first.end[len(ops) + at]) for at, made in enumerate(program.producer)}
    assert ends == {made: second._end(made) for made in ends}


@HURRY
@given(st.integers(1, 6), st.integers(1, 9), st.data())
def test_megatron_on_1f1b_is_its_loop(p, m, data):
    schedule = build("1f1b", Shape(p, m))
    costs = data.draw(speeds(schedule))
    same("megatron", schedule, costs, followed(schedule, costs, megatron_1f1b))


@HURRY
@given(schedules(), st.data())
def test_megatron_on_any_order_batches_what_goes_to_one_neighbour(schedule, data):
    costs = data.draw(speeds(schedule))
    if stuck(schedule, "megatron"):
        with pytest.raises(RuntimeError, match="deadlock"):
            followed(schedule, costs, fused_neighbours)
        return
    same("megatron", schedule, costs, followed(schedule, costs, fused_neighbours))


def stuck(schedule: Schedule, engine: str) -> bool:
    """Whether an engine deadlocks, by our own proof, which names who waits for whom."""
    try:
        lower(schedule, ENGINES[engine])
    except Deadlock as circle:
        return bool(circle.cycle and circle.violations)
    return False


@pytest.mark.parametrize(
    ("engine", "program", "traits"),
    [
        ("megatron", megatron_interleaved, {}),
        ("megatron-overlap", megatron_overlap, {"two_ways": True}),
        ("megatron-overlap:warmup-flush", megatron_overlap_all, {"two_ways": True}),
    ],
)
@HURRY
@given(st.integers(2, 4), st.integers(1, 4), st.integers(2, 3), st.sampled_from([None, 1, 2]), st.data())
def test_megatron_interleaved_is_its_loop(engine, program, traits, p, rounds, v, wider, data):
    m = p * rounds
    try:
        schedule = build("interleaved", Shape(p, m, v, group=None if wider is None else min(m, p * wider)))
    except InputError:
        reject()
    costs = data.draw(speeds(schedule))
    try:
        second = followed(schedule, costs, program, **traits)
    except RuntimeError:
        assert stuck(schedule, engine)
        return
    same(engine, schedule, costs, second)


@HURRY
@given(st.integers(1, 6), st.integers(1, 9), st.data())
def test_torch_1f1b_is_its_loop(p, m, data):
    schedule = build("1f1b", Shape(p, m))
    costs = data.draw(speeds(schedule))
    same("torch-1f1b", schedule, costs, followed(schedule, costs, torch_1f1b))


@HURRY
@given(st.integers(1, 6), st.integers(1, 9), st.data())
def test_deepspeed_is_its_table_of_steps(p, m, data):
    schedule = build("1f1b", Shape(p, m))
    costs = data.draw(speeds(schedule))
    same("deepspeed", schedule, costs, followed(schedule, costs, deepspeed))


@pytest.mark.parametrize("engine", ["torch", "torch:one-lane"])
@HURRY
@given(schedules(), st.data())
def test_torchs_runtime_posts_when_the_producer_is_placed(engine, schedule, data):
    costs = data.draw(speeds(schedule))
    second = clock(schedule, costs, one_lane=engine.endswith("one-lane"))
    same(engine, schedule, costs, second.run(torch_runtime(second.pipe)))


@pytest.mark.parametrize("engine", ["zero-bubble", "zero-bubble:batched"])
@HURRY
@given(schedules(pairs=False), st.data())
def test_zero_bubble_posts_by_its_plan_through_one_queue(engine, schedule, data):
    costs = data.draw(speeds(schedule))
    plan = simulate(lower(schedule), data.draw(speeds(schedule, taken=False)))
    ops = [schedule.op(op) for op in range(len(schedule))]
    start, end = (dict(zip(ops, times.tolist(), strict=True)) for times in (plan.start, plan.end))
    second = clock(schedule, costs, queue=True, two_ways=True)
    rows = zero_bubble(second.pipe, end, start, batched=engine.endswith("batched"))
    try:
        second.run(rows)
    except RuntimeError:
        with pytest.raises(Deadlock):
            lower(schedule, ENGINES[engine], timetable=plan.end)
        return
    same(engine, schedule, costs, second, timetable=plan.end)
