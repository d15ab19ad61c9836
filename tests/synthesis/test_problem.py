"""The three rules that are written out for the search, against the engines' own simulation."""

import numpy as np
import pytest

from debubble import Costs, Shape, build
from debubble.core.bounds import instance_of
from debubble.core.schedule import KINDS, Kind
from debubble.frameworks.engines import ENGINES
from debubble.synthesis.problem import WRONG, Problem, turns

SCHEDULES = [("1f1b", 1), ("zb-h1", 1), ("zb-h2", 1), ("gpipe", 1), ("zb-v", 2), ("interleaved", 2), ("v-half", 2)]


def drawn(schedule, seed, engine):
    """The schedule's problem with random durations and hops."""
    draw = np.random.default_rng(seed)
    durations = draw.integers(5, 15, (KINDS, schedule.stages, 1)) * 1000
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    costs = Costs(durations, draw.integers(0, 20, (KINDS, schedule.stages, 1)) * 1000)
    return Problem(instance_of(schedule, costs, engine=ENGINES[engine]))


@pytest.mark.parametrize("engine", ["ideal", "megatron", "torch"])
@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_it_finds_what_the_simulation_finds(name, chunks, engine):
    """Also of orders that nobody published: neighbours swapped at random, as long as they run."""
    for p, m in ((2, 4), (4, 8), (5, 10)):
        schedule = build(name, Shape(p, m, chunks))
        problem = drawn(schedule, p, engine)
        if problem.mode is None:  # megatron's interleaved table is asked through ``lower``
            assert (engine, chunks) == ("megatron", 2)
            continue
        rows, draw = problem.rows(schedule), np.random.default_rng(p)
        assert problem.value(rows) == problem.measured(schedule)
        for _ in range(25):
            other = rows.copy()
            rank, place = draw.integers(p), draw.integers(rows.shape[1] - 1)
            other[rank, [place, place + 1]] = other[rank, [place + 1, place]]
            if problem.value(other) != WRONG:
                rows = other
                assert problem.value(rows) == problem.measured(problem.schedule(rows))


@pytest.mark.parametrize("engine", ["ideal", "megatron", "torch"])
def test_an_order_that_cannot_run_is_wrong(even, engine):
    problem = even(3, 4, engine=ENGINES[engine])
    rows = problem.rows(build("zb-h1", Shape(3, 4)))
    late = rows.copy()
    late[0] = late[0][::-1]  # W before I before F
    assert problem.value(late) == WRONG
    swapped = rows.copy()
    swapped[2, :2] = swapped[2, 1::-1]  # the last rank's first gradient before its first forward
    assert problem.value(swapped) == WRONG


def test_an_order_that_holds_too_much_is_wrong(even):
    rows = even(4, 8).rows(build("zb-h2", Shape(4, 8)))
    assert even(4, 8, cap=7).value(rows) < WRONG  # ZB-H2 holds 2p - 1
    assert even(4, 8, cap=6).value(rows) == WRONG


def test_a_full_backward_becomes_an_input_gradient_with_its_weight_gradient_behind_it(even):
    problem = even(4, 8)
    rows = problem.rows(build("1f1b", Shape(4, 8)))
    text = " ".join("FIW"[code // 4] for code in rows[3][:6])
    assert text == "F I W F I W"
    assert problem.schedule(rows).splits


def test_rows_come_back(even):
    schedule = build("zb-h1", Shape(4, 8))
    problem = even(4, 8)
    assert problem.schedule(problem.rows(schedule)).same_order(schedule)
    assert problem.rows(build("zb-h1", Shape(4, 9))) is None
    assert problem.rows(build("zb-v", Shape(4, 8))) is None


def test_micro_batches_are_dealt_out_in_order():
    assert turns(np.array([[0, 0, 4, 0, 4, 8]], np.int32)).tolist() == [[0, 1, 0, 2, 1, 0]]


def test_the_span_is_the_longest_ranks_own_time(even):
    """ZB-H2, F = I = W = 10: the makespan keeps the way there, (p-1) F; no rank idles between its ops."""
    rows = even(4, 8).rows(build("zb-h2", Shape(4, 8)))
    problem = Problem(even(4, 8).instance, span=True)
    assert problem.value(rows) == problem.measured(problem.schedule(rows)) == 240_000_000
    assert even(4, 8).value(rows) == 270_000_000


def test_halves_of_a_backward_that_nobody_measured_are_not_free(even):
    """Costs of full backwards alone say nothing of I and W: an order that splits them has no makespan under them."""
    problem = Problem(even(4, 8).instance.but(split=False))
    assert problem.measured(build("zb-h1", Shape(4, 8))) == WRONG
    assert problem.measured(build("1f1b", Shape(4, 8))) == 330_000_000
