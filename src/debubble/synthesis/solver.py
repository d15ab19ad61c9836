"""Constraint programming: a start for every op, exact for the ideal engine, with a proof if time allows (CP-SAT).

    variables     a start in [head, target - tail] for each op; the makespan
    constraints   way of a micro-batch; first in, first out; one op at a time on a rank; memory
    objective     the makespan, no less than the propagation bound

Memory with one chunk a rank and release at one op is a precedence: F of micro-batch i + K after what frees i. Else a
literal says of each F and each op of its rank that takes or frees memory which of them comes first, and of each F

    2 (forwards before it, itself included) - what is freed before it  <=  room

The precedences that follow from the cap (see ``core.bounds``) are given as well. Activations as intervals under
one cumulative constraint say the same, and take several times as long to prove anything.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.bounds import forced
from ..core.schedule import Kind
from .problem import Problem, Rows, evaluate

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_OPS = 1_000  # beyond, the solver neither proves nor improves anything within minutes


def has_solver() -> bool:
    """Whether the extra ``solve`` is installed."""
    return find_spec("ortools") is not None


class Solver:
    """One problem as a model of CP-SAT, with a schedule that it has to beat.

    Args:
        problem: of the ideal engine, with the makespan as its objective.
        rows: the best schedule so far.
        value: its makespan, nanoseconds.
    """

    def __init__(self, problem: Problem, rows: Rows, value: int) -> None:
        from ortools.sat.python import cp_model  # a second to load: only for problems that it may prove

        self._cp = cp_model
        self.problem, self.instance = problem, problem.instance
        self.model = cp_model.CpModel()
        spent, hop = self.instance.spent, self.instance.hop
        sizes = np.concatenate([spent.ravel(), hop.ravel()])
        # In the greatest common divisor of all times: CP-SAT's domains shrink by it, and nothing is rounded.
        self.unit = int(np.gcd.reduce(sizes[sizes > 0])) if sizes.any() else 1
        self.spent, self.hop = spent // self.unit, hop // self.unit
        self.bound = -(-problem.windows.bound // self.unit)
        self.target = value // self.unit
        self._stop: Callable[[], None] | None = None
        self._order: dict[tuple[tuple[int, int, int], tuple[int, int, int]], Any] = {}  # see ``_comes_before``
        self._add_variables()
        self._add_constraints()
        self._add_objective()
        self._add_hint(rows)

    def _add_variables(self) -> None:
        self.head = -(-self.problem.windows.head // self.unit)
        tail = -(-self.problem.windows.tail // self.unit)
        # A start later than target - tail cannot lead to anything better; an empty window stays one moment wide, so
        # that the model says `infeasible` by its constraints and not by an error.
        self.latest = np.maximum(self.target - tail - self.spent, self.head)
        self.start: NDArray[Any] = np.empty(self.head.shape, object)
        self.busy: NDArray[Any] = np.empty(self.head.shape, object)
        for at in np.ndindex(self.head.shape):
            name = f"{self.instance.kinds[at[0]].name}_{at[1]}_{at[2]}"
            start = self.model.new_int_var(int(self.head[at]), int(self.latest[at]), name)
            self.start[at] = start
            self.busy[at] = self.model.new_fixed_size_interval_var(start, int(self.spent[at]), f"busy_{name}")
        self.makespan = self.model.new_int_var(int(self.bound), int(self.target), "makespan")

    def _add_constraints(self) -> None:
        self._add_way_of_each_microbatch()
        self._add_first_in_first_out()
        self._add_one_op_at_a_time()
        self._add_memory()

    def _end(self, at: tuple[int, int, int]) -> Any:
        return self.start[at] + int(self.spent[at])

    def _add_way_of_each_microbatch(self) -> None:
        """Each op starts when what makes its input has ended, and the hop."""
        stages, kinds = self.instance.stages, len(self.instance.kinds)
        for i, stage in product(range(self.instance.microbatches), range(stages)):
            self._after((1, stage, i), (0, stage, i), 0)
            if stage:
                self._after((0, stage, i), (0, stage - 1, i), int(self.hop[0, stage, i]))
                self._after((1, stage - 1, i), (1, stage, i), int(self.hop[1, stage - 1, i]))
            if kinds > Kind.W:
                self._after((2, stage, i), (1, stage, i), 0)

    def _after(self, later: tuple[int, int, int], earlier: tuple[int, int, int], lag: int) -> None:
        self.model.add(self.start[later] >= self._end(earlier) + lag)

    def _add_first_in_first_out(self) -> None:
        """Each kind and stage takes micro-batches in order, which costs nothing where they are alike."""
        kinds, stages = range(len(self.instance.kinds)), range(self.instance.stages)
        for kind, stage, i in product(kinds, stages, range(1, self.instance.microbatches)):
            self._after((kind, stage, i), (kind, stage, i - 1), 0)

    def _add_one_op_at_a_time(self) -> None:
        """Intervals of a rank do not overlap."""
        for rank in range(self.instance.ranks):
            mine = np.flatnonzero(self.instance.placement == rank)
            self.model.add_no_overlap(self.busy[:, mine].ravel().tolist())

    def _add_memory(self) -> None:
        """Each rank holds no more than fits: precedences that follow from the cap, and the cap itself."""
        instance = self.instance
        # Halves freed at I and at W need a count, for one precedence cannot say both.
        at_two_ops = instance.frees[1:].max() == instance.frees[1:].min() != -2
        for rank in range(instance.ranks):
            mine = np.flatnonzero(instance.placement == rank)
            if instance.room[rank] >= 2 * instance.microbatches * len(mine):
                continue
            before = forced(instance, rank)[0]
            for chunk, i, kind, other in np.argwhere(before > 0).tolist():
                if kind > 0 or other > chunk:  # that forwards follow their own kind and input is said already
                    last = int(before[chunk, i, kind, other]) - 1
                    self._after((0, int(mine[chunk]), i), (kind, int(mine[other]), last), 0)
            if len(mine) > 1 or at_two_ops:
                self._add_held(rank, mine.tolist())

    def _add_held(self, rank: int, mine: list[int]) -> None:
        """What a rank holds when a forward begins: counted from who comes before it."""
        m, frees = self.instance.microbatches, (-self.instance.frees).tolist()
        freeing = [(kind, stage) for stage in mine for kind, freed in enumerate(frees) if freed > 0]
        for stage, i in product(mine, range(m)):
            taken: list[Any] = [2 * (i + 1) - int(self.instance.room[rank])]
            for other in mine:
                if other != stage:
                    taken += [2 * earlier for earlier in self._earlier((0, other), (0, stage, i))]
            freed = []
            for kind, other in freeing:
                freed += [frees[kind] * earlier for earlier in self._earlier((kind, other), (0, stage, i))]
            self.model.add(sum(freed) >= sum(taken))

    def _earlier(self, kind: tuple[int, int], at: tuple[int, int, int]) -> list[Any]:
        """Whether each op of a kind and stage comes before an op of its rank: 1, 0 or a literal, one a micro-batch."""
        found = [self._comes_before((*kind, i), at) for i in range(self.instance.microbatches)]
        for first, second in pairwise(found):
            if not (isinstance(first, int) and isinstance(second, int)):
                self.model.add(second <= first)  # first in, first out; said of starts, but here it is what propagates
        return found

    def _comes_before(self, a: tuple[int, int, int], b: tuple[int, int, int]) -> Any:
        """Whether an op runs before another one of its rank; a number where their windows leave no choice."""
        if (a, b) not in self._order:
            if self.latest[a] + self.spent[a] <= self.head[b]:
                first: Any = 1
            elif self.head[a] + self.spent[a] > self.latest[b]:
                first = 0
            else:
                first = self.model.new_bool_var("")
                self.model.add(self.start[b] >= self._end(a)).only_enforce_if(first)
                self.model.add(self.start[a] >= self._end(b)).only_enforce_if(~first)
            self._order[a, b] = first
            self._order[b, a] = 1 - first if isinstance(first, int) else ~first
        return self._order[a, b]

    def _add_objective(self) -> None:
        last = len(self.instance.kinds) - 1
        for stage in range(self.instance.stages):
            for kind in (0, last):
                self.model.add(self.makespan >= self._end((kind, stage, self.instance.microbatches - 1)))
        self.model.minimize(self.makespan)

    def _add_hint(self, rows: Rows) -> None:
        columns, scratch = self.problem.tables.columns(), self.problem.tables.scratch()
        evaluate(rows, columns, scratch)
        # Every variable gets its hint, so that it is a solution, with which the solver begins.
        begins = (scratch[0] // self.unit).reshape(self.start.shape) - self.spent
        for start, begin in zip(self.start.ravel(), begins.ravel(), strict=True):
            self.model.add_hint(start, int(begin))
        self.model.add_hint(self.makespan, int(self.target))

    def solve(self, seconds: float, workers: int, found: Callable[[Rows], None]) -> tuple[int, bool]:
        """Search until a proof, the end of the time or ``stop``.

        Args:
            seconds: at most.
            workers: threads.
            found: told of each better schedule.

        Returns:
            A bound that no schedule is below, nanoseconds, and whether the best one found is optimal.
        """
        solver = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        # Off by default, since they cost time on large shops; here they prove what else takes three times as long.
        solver.parameters.use_strong_propagation_in_disjunctive = True
        solver.parameters.use_dynamic_precedence_in_disjunctive = True
        self._stop = solver.stop_search
        status = solver.solve(self.model, _told(self._cp, self, found))
        proved = status == self._cp.OPTIMAL
        # The bound comes as a float; it stands for a whole number of units.
        return int(np.ceil(solver.best_objective_bound - 1e-6)) * self.unit, proved

    def stop(self) -> None:
        """End ``solve`` soon, from another thread."""
        if self._stop is not None:
            self._stop()

    def rows(self, starts: NDArray[np.int64]) -> Rows:
        """The order of each rank, from starts; of those at the same time the one that takes no time comes first."""
        ranks, stages = self.instance.ranks, self.instance.stages
        kind, stage, turn = np.indices(starts.shape)
        code = (kind * stages + stage).ravel()
        rank = self.instance.placement[stage].ravel()
        order = np.lexsort((turn.ravel(), code, self.spent.ravel() > 0, starts.ravel(), rank))
        return code[order].reshape(ranks, -1).astype(np.int32)


def _told(cp: Any, solver: Solver, found: Callable[[Rows], None]) -> Any:
    """A callback of CP-SAT that passes each solution on as rows."""

    class Told(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            starts = np.array([self.value(start) for start in solver.start.ravel()], np.int64)
            found(solver.rows(starts.reshape(solver.start.shape)))

    return Told()
