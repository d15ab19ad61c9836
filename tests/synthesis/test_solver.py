"""The model of CP-SAT against every order of tiny instances, and against optima that others have proved."""

import csv

import pytest

from debubble.synthesis.problem import Problem
from debubble.synthesis.search import Budget, Search
from instances import drawn, instance_of_row, shortest

pytest.importorskip("ortools")
from debubble.synthesis.solver import Solver

MS = 1_000_000
LONG = 300.0  # seconds; a proof takes a second or ten


def proved(problem, evaluations=200):
    """The optimum as the solver proves it, from the best of a few evaluations; and whether a found order has it."""
    best = Search(problem, Budget(LONG, evaluations, solver=False)).run([])
    found = [best.value]
    solver = Solver(problem, best.rows, best.value)
    bound, optimal = solver.solve(LONG, 8, lambda rows: found.append(problem.value(rows)))
    assert optimal
    assert bound == min(found)
    return bound


def test_optima_of_tiny_instances_are_those_of_all_their_orders():
    """One and two chunks, memory for little, freed at I, at W or by halves; a cap too loose or too tight shows."""
    for seed in range(0, 40, 2):
        inst = drawn(seed)
        assert proved(Problem(inst)) == shortest(inst), seed


@pytest.mark.parametrize("row", ["V16", "V18"])
def test_two_chunks_under_a_cap(shared, row):
    """Proved optimal by another program: a loop, 4 and 6 chunks held, F I W = 10 12 6."""
    with (shared / "data" / "synthesis" / "instances.csv").open() as file:
        given = {each["id"]: each for each in csv.DictReader(file)}[row]
    assert given["proved"] == "1"
    assert proved(Problem(instance_of_row(given)), 200_000) == float(given["best_known_ms"]) * MS
