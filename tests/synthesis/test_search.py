"""What the search reaches, held to published optima; budgets are counts of evaluations, so machines do not matter."""

import csv

import numpy as np
import pytest

from debubble import Shape, build
from debubble.core.laws import violations
from debubble.core.schedule import peak_activations
from debubble.synthesis.orders import Climber, stretched
from debubble.synthesis.problem import Problem
from debubble.synthesis.search import BOUND, BUDGET, INTERRUPTED, Budget, Search
from instances import instance_of_row

MS = 1_000_000
FOR_EVER = 600.0  # seconds; evaluations end the search


def searched(problem, evaluations, seeds=()):
    search = Search(problem, Budget(FOR_EVER, evaluations, solver=False))
    return search, search.run(seeds)


def table(shared, name):
    with open(shared / "data" / "synthesis" / name) as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_the_founding_instance(even):
    """p 8, m 16, 10/10/10, cap 6: zb-auto takes 1,070; 610 is optimal, proved by the bound."""
    search, best = searched(even(8, 16, cap=6), 5_000)
    assert best.value == 610 * MS == best.bound
    assert search.stopped == BOUND
    assert best.evaluations < 1_000


@pytest.mark.parametrize("row", ["L2_8", "L6_4", "L8_3", "L10_3", "L12_6", "S0", "S6", "V4", "V14", "V16"])
def test_best_known_of_ten_published_instances(shared, row):
    """Linear ones under caps, slow links, two chunks; most proved optimal by another program."""
    given = table(shared, "instances.csv")[row]
    problem = Problem(instance_of_row(given))
    _, best = searched(problem, 1_000_000)
    assert best.value <= 1.0005 * float(given["best_known_ms"]) * MS
    assert best.value >= problem.windows.bound


@pytest.mark.parametrize("row", ["0", "10", "26", "40", "52", "60", "68", "80", "90", "98"])
def test_none_is_above_the_published_ilp(shared, row):
    given = table(shared, "ilp_linear.csv")[row]
    _, best = searched(Problem(instance_of_row(given)), 100_000)
    assert best.value <= (1 + 1e-5) * float(given["ilp_makespan_ms"]) * MS


def test_what_is_found_is_legal_and_within_the_cap(even):
    problem = even(4, 12, (9, 13, 7), hop=2.5, cap=3)
    _, best = searched(problem, 20_000)
    schedule = best.schedule
    assert violations(schedule, in_order=True) == []
    assert peak_activations(schedule).max() <= 3
    assert problem.measured(schedule) == best.value


def test_the_same_budget_finds_the_same(even):
    first, second = (searched(even(4, 8, (9, 13, 7), cap=3), 8_000)[1] for _ in range(2))
    assert first.schedule.same_order(second.schedule)


def test_a_seed_is_never_lost(even):
    """One evaluation: the seed itself, a schedule of full backwards as it stands."""
    problem = even(4, 8)
    schedule = build("1f1b", Shape(4, 8))
    _, best = searched(problem, 1, [("1f1b", schedule)])
    assert best.value <= problem.measured(schedule) == 330 * MS


def test_the_end_of_the_budget_is_said(even):
    search, best = searched(even(4, 15, cap=2), 500)
    assert search.stopped == BUDGET
    assert best.value > best.bound


def test_ctrl_c_keeps_the_best(even):
    seen = []

    def interrupt(seconds, value, bound):
        seen.append(value)
        if len(seen) == 3:
            raise KeyboardInterrupt

    search = Search(even(4, 15, cap=2), Budget(FOR_EVER, 10_000, solver=False), progress=interrupt)
    best = search.run([("zb-auto", build("zb-auto", Shape(4, 15), cap=2))])
    assert search.stopped == INTERRUPTED
    assert best.value == min(seen)
    assert best.schedule is not None


def test_long_runs_are_stretched(even):
    """p 4, m 60, cap 2 (Little's law binds): a part of a short run, repeated, beats lists and zb-auto."""
    _, best = searched(even(4, 60, (10, 12, 7), hop=1, cap=2), 60_000)
    auto = build("zb-auto", Shape(4, 60), cap=2)
    problem = even(4, 60, (10, 12, 7), hop=1, cap=2)
    assert best.value < problem.measured(auto)
    assert best.value <= 1.05 * problem.windows.bound


def test_what_is_repeated_moves_in_all_copies_at_once(even):
    """A short run of 8, a part of 3 repeated 4 times more: after annealing the five copies are still alike.

    What is before the first copy, in a copy, and behind the last one stays there, whatever its order.
    """
    short, problem = (even(5, m, (9, 13, 7), hop=2, cap=3) for m in (8, 20))
    rows = searched(short, 1)[1].rows  # a list schedule as it comes
    tried = [each for each in stretched(rows, short.begins(rows), (8, 20), 15) if each[1].length == 9]
    longer, repeats = min(tried, key=lambda each: problem.value(each[0]))
    climber = Climber(problem, longer, repeats=repeats)
    for _ in range(3):
        climber.round(0.01, 2_000)
    assert climber.best < problem.value(longer)
    assert not np.array_equal(climber.best_rows, longer)
    for row, before, first in zip(climber.best_rows, longer, repeats.first, strict=True):
        end = first + repeats.length * repeats.copies
        copies = row[first:end].reshape(repeats.copies, -1)
        assert (copies == copies[0]).all()
        for piece in (slice(0, first), slice(first, end), slice(end, None)):
            assert sorted(row[piece]) == sorted(before[piece])


def test_without_numba_lists_and_local_search_answer_too(even, monkeypatch):
    """The same loops as plain Python: a slow search, and the same answer."""
    from debubble.synthesis import orders, problem

    def plain(module):
        for name, value in vars(module).items():
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)

    compiled = searched(even(3, 5, (9, 13, 7), cap=2), 300)[1]
    for module in (problem, orders):
        plain(module)
    monkeypatch.setattr("debubble.synthesis.problem.evaluate", problem.evaluate)
    interpreted = searched(even(3, 5, (9, 13, 7), cap=2), 300)[1]
    assert np.array_equal(interpreted.rows, compiled.rows)
    assert interpreted.value == compiled.value
