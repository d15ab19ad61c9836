"""The search: an anytime loop over all that finds schedules, cheapest first, until a proof or the end of the budget.

    catalog     every named schedule of the placement, zb-auto with this cap among them
    list        event by event, many rules and draws
    local       annealing on re-simulation, from the best of these, hot and cold in turn
    stretch     long runs from short ones
    solver      CP-SAT beside the local search, on the ideal engine, with a proof

The best order so far is always there: Ctrl-C and the end of the budget keep it.

*Robust orders* are those, of many good ones, whose 95th percentile is least over steps in which every op varies.
Each op takes its time times a lognormal factor; a link may be slow in some steps. The order is chosen over one set of
steps and reported on another, so that the report is not of the luck by which it was chosen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from threading import Lock, Thread

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.results import HIDDEN
from ..core.schedule import Kind, Schedule
from ..core.simulate import simulate_many
from ..core.units import nanoseconds
from .orders import ROUND, Climber, Repeats, portfolio, profiles, short_runs, stretched
from .problem import LATENCY, WRONG, Problem, Rows
from .solver import MOST_OPS, Solver, has_solver

PROVED, BOUND, BUDGET, INTERRUPTED = "proved", "bound reached", "budget", "interrupted"
# Temperatures as shares of the objective, in turn: orders of one chunk a rank are smooth, those of several are not.
_HEATS = {False: (1e-3, 1e-2, 3e-3, 3e-4, 3e-2), True: (2e-2, 1e-2, 5e-3, 3e-2)}
_MANY_RANKS = 12  # from here on a tenth of that: one move in a long step changes it by less
_COOLING = 20  # rounds of a run of annealing
_LISTS = 150
_WORKERS = 8  # fewer leave out the searches that prove optimality, even if cores are fewer
_RESTART = 0.25  # share of the time left that the solver keeps a target which local search has beaten
_STRETCHING = 0.8  # share of the time of a long run; single ops of it are moved in what is left, and gain little
_BESIDE = 0.3  # the same where the solver is at work: it proves many such steps in seconds, given the processors
_PARTS = 2  # lengths of the part that are tried
_SOLVED = 0.6  # share of that for the short run, before its part is repeated and moved in all copies at once
_PATIENCE = 3.0  # seconds for the solver to end once it was told


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to search.

    Args:
        seconds: of search, start and compilation apart.
        evaluations: simulations at most; None for no limit. The answer is then the same on every machine, if
            ``solver`` is off.
        solver: whether CP-SAT may be asked.
    """

    seconds: float = 30.0
    evaluations: int | None = None
    solver: bool = True


class Best:
    """The best so far, and where it came from; it changes as the search goes on.

    Args:
        bound: that no order is below, nanoseconds.
    """

    def __init__(self, bound: int) -> None:
        self.value, self.bound = int(WRONG), bound
        self.schedule: Schedule | None = None
        self.rows: Rows | None = None
        self.method = ""
        self.proved = False
        self.evaluations = 0


class Search:
    """One search.

    Args:
        problem: what for.
        budget: how long.
        bound: nanoseconds that no order is below, by bounds beside the propagation bound.
        progress: told of the seconds so far, the best objective and the bound, some times a second.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        *,
        bound: int = 0,
        progress: Callable[[float, int, int], None] | None = None,
    ) -> None:
        self.problem, self.budget, self.progress = problem, budget, progress
        self.best = Best(bound=max(bound, problem.bound))
        self.stopped = BUDGET
        self.elite: list[Schedule] = []  # every schedule that was the best for a while, the last one last
        self._solver: Solver | None = None
        self._lock = Lock()  # the solver finds schedules in a thread of its own
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._began

    def run(self, seeds: Iterable[tuple[str, Schedule]]) -> Best:
        """Search until a proof, the bound, the end of the budget or Ctrl-C; ``stopped`` says which.

        Args:
            seeds: schedules to begin with, and the names of what made them.
        """
        self._compile()
        self._began = time.monotonic()  # a budget is of search: what numba takes is the same for every search
        try:
            self._offer_seeds(seeds)
            self._lists()
            self._profiles(0.25)  # before single ops are moved, which an engine that waits punishes
            if not self._over():
                self._improve()
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED
        finally:
            if self._solver is not None:
                self._solver.stop()
        if self.best.proved:
            self.stopped = PROVED
        elif self.best.value <= self.best.bound:
            self.stopped = BOUND
        return self.best

    def _compile(self) -> None:
        """Let numba compile, or load what it compiled, before the clock starts."""
        rows = next(islice(portfolio(self.problem), 1), None)
        if rows is not None and self.problem.mode is not None:
            Climber(self.problem, rows).round(0.0, 2)

    def _over(self, share: float = 1.0) -> bool:
        """Whether there is nothing left to gain or no time left, or only this share of it is used up."""
        best, budget = self.best, self.budget
        if best.value <= best.bound or best.proved:
            return True
        if budget.evaluations is not None and best.evaluations >= share * budget.evaluations:
            return True
        return self.seconds >= share * budget.seconds

    @property
    def _used(self) -> float:
        """Share of the budget that is used up: of evaluations where they are limited, which is the same everywhere."""
        if self.budget.evaluations is not None:
            return self.best.evaluations / self.budget.evaluations
        return self.seconds / self.budget.seconds

    def offer(self, rows: Rows, method: str) -> int:
        """Take rows if they are better than the best; each is simulated by the engine's own simulation first."""
        self.best.evaluations += 1
        value = self.problem.value(rows)
        if value < self.best.value:
            self._take(self.problem.schedule(rows), rows, method)
        return value

    def _take(self, schedule: Schedule, rows: Rows | None, method: str) -> None:
        # Compiled rules find, core's simulation decides: an error in a rule can cost time, never give a wrong answer.
        value = self.problem.measured(schedule)
        with self._lock:
            if value < self.best.value:
                self.best.value, self.best.schedule, self.best.method = value, schedule, method
                self.best.rows = None if rows is None else rows.copy()
                self.elite.append(schedule)

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.seconds, self.best.value, self.best.bound)

    def _offer_seeds(self, seeds: Iterable[tuple[str, Schedule]]) -> None:
        """Named schedules as they are, and as rows, with each full backward as an I with its W behind it."""
        for name, schedule in seeds:
            self.best.evaluations += 1
            rows = self.problem.rows(schedule)
            self._take(schedule, rows, name)
            if rows is not None:  # split into I and W a fused order may be better, or worse under an engine that waits
                self.offer(rows, name)

    def _lists(self) -> None:
        for turn, rows in enumerate(portfolio(self.problem)):
            self.offer(rows, "list")
            self._tell()
            if turn >= _LISTS or self._over(0.1):
                break

    def _profiles(self, share: float) -> None:
        """Warm-up profiles: what finds orders for engines that wait."""
        instance = self.problem.instance
        if not instance.engine.meets or (instance.chunks != 1).any() or self._over(share):
            return
        tried = profiles(self.problem)
        rows = next(tried)
        while not self._over(share):
            rows = tried.send(self.offer(rows, "warm-up profile"))
            self._tell()

    def _improve(self) -> None:
        """Annealing, with the solver beside it from early on; long runs by stretching first."""
        start = self._start()
        if start is None:
            return
        self._anneal(start, 0.12)
        helper = None if self._over() else self._start_solver()
        if self._stretches():
            self._stretch(_STRETCHING if helper is None else _BESIDE)
        turn = 0
        while not self._over():
            turn += 1
            if (start := self._start(turn)) is not None:
                self._anneal(start, 1.0, turn)
            if self._outdated(helper):
                helper = self._start_solver()
        if helper is not None and self._solver is not None:
            self._solver.stop()
            helper.join(_PATIENCE)

    def _start(self, turn: int = 0) -> Rows | None:
        """The best, or now and then a list schedule of its own, so that not every run climbs the same hill."""
        if self.best.rows is not None and turn % 3 != 2:
            return self.best.rows
        return next(islice(portfolio(self.problem, seed=turn), turn % 7, None), None)

    def _anneal(self, start: Rows, share: float, turn: int = 0, repeats: Repeats | None = None) -> Rows:
        """One run of annealing; the best rows that it has met."""
        heats = _HEATS[bool((self.problem.instance.chunks > 1).any())]
        heat = heats[turn % len(heats)]
        # One move changes a long step by less, unless all copies of a part move at once.
        if self.problem.instance.ranks >= _MANY_RANKS and repeats is None:
            heat /= 10
        rounds = _COOLING * (1 + turn // len(heats))
        climber = Climber(self.problem, start, seed=turn, repeats=repeats)
        if climber.value == WRONG:
            return start
        for step in range(rounds):
            self.best.evaluations += climber.round(heat * (1 - step / rounds), self._moves())
            if climber.best < self.best.value:
                self._take(self.problem.schedule(climber.best_rows), climber.best_rows, "local search")
            self._tell()
            if self._over(share):
                break
        return climber.best_rows

    def _moves(self) -> int:
        """Moves of a round: what the budget of evaluations leaves, and no longer than a tenth of a second or so."""
        left = ROUND
        if self.budget.evaluations is not None:
            left = max(1, self.budget.evaluations - self.best.evaluations)
        return min(ROUND, left)

    def _stretches(self) -> bool:
        instance = self.problem.instance
        return instance.alike and bool(short_runs(instance)) and not self.problem.span

    def _stretch(self, share: float) -> None:
        """Solve short runs by list and annealing, repeat parts of them, and anneal what is repeated in all copies."""
        lengths = short_runs(self.problem.instance)
        begun = self._used
        for turn, short in enumerate(lengths):
            since = begun + (share - begun) * turn / len(lengths)
            limit = begun + (share - begun) * (turn + 1) / len(lengths)
            found: list[tuple[int, Rows, Repeats]] = []
            for rows in self._short(short, since + _SOLVED * (limit - since)):
                found += self._fill(rows, short, limit)
            self._anneal_copies(found, limit)
        if self.best.rows is not None:
            self._anneal(self.best.rows, min(1.0, share + 0.1))

    def _anneal_copies(self, found: list[tuple[int, Rows, Repeats]], limit: float) -> None:
        """The best of the long runs for each length of the part, in turn, until the time is over."""
        best: dict[int, tuple[Rows, Repeats]] = {}
        for _, rows, repeats in sorted(found, key=lambda each: each[0]):
            best.setdefault(repeats.length, (rows, repeats))
        tried = list(best.values())[:_PARTS]
        turn = 0
        while tried and not self._over(limit):
            for place, (rows, repeats) in enumerate(tried):
                # Cut short by the end of the time, a run has met at least what it began with.
                tried[place] = self._anneal(rows, limit, turn, repeats), repeats
            turn += 1

    def _fill(self, rows: Rows, short: int, limit: float) -> list[tuple[int, Rows, Repeats]]:
        """Repeat each part of a short run that can be repeated; those that run, and their objectives."""
        instance = self.problem.instance
        classes = len(instance.kinds) * instance.stages
        begin = Problem(instance.but(microbatches=short)).begins(rows)
        found = []
        for longer, repeats in stretched(rows, begin, (short, instance.microbatches), classes):
            value = self.offer(longer, "stretch")
            if value < WRONG:
                found.append((value, longer, repeats))
            if self._over(limit):
                break
        return found

    def _short(self, microbatches: int, limit: float) -> list[Rows]:
        """The last few best rows of a short run: the best of it is not always the best to repeat."""
        seconds, evaluations = limit * self.budget.seconds - self.seconds, None
        if self.budget.evaluations is not None:
            evaluations = max(1, int(0.1 * self.budget.evaluations))
        budget = Budget(max(0.05, seconds), evaluations, solver=False)
        inner = Search(Problem(self.problem.instance.but(microbatches=microbatches)), budget)
        kept = inner.climb()
        self.best.evaluations += inner.best.evaluations
        return kept[-3:]

    def climb(self) -> list[Rows]:
        """Lists and annealing alone, until the budget ends: the best after each run of annealing."""
        self._lists()
        kept: list[Rows] = []
        while self.best.rows is not None and (not self._over() or not kept):
            self._anneal(self.best.rows, 1.0, len(kept))
            kept.append(self.best.rows)
        return kept

    def _start_solver(self) -> Thread | None:
        """Ask the solver, in a thread, to beat the best; None if it cannot be asked for this."""
        instance, best = self.problem.instance, self.best
        asked = self.budget.solver and has_solver() and instance.ops <= MOST_OPS
        exact = self.problem.mode == LATENCY and not self.problem.span and instance.alike
        if not (asked and exact) or best.rows is None:
            return None
        solver = Solver(self.problem, best.rows, best.value)
        self._solver = solver
        self._asked_at, self._target = self.seconds, best.value

        def solve() -> None:
            bound, proved = solver.solve(max(0.1, self.budget.seconds - self.seconds), _WORKERS, self._told)
            best.bound = max(best.bound, min(bound, best.value))
            best.proved = best.proved or (proved and best.value <= bound)

        thread = Thread(target=solve, daemon=True)
        thread.start()
        return thread

    def _told(self, rows: Rows) -> None:
        """A schedule of the solver's; evaluated with scratch of its own, for local search uses the problem's."""
        schedule = self.problem.schedule(rows)
        self._take(schedule, rows, "solver")

    def _outdated(self, helper: Thread | None) -> bool:
        """Whether local search has beaten what the solver was asked to beat, a while ago: then it is asked anew."""
        if helper is None or self._solver is None or not helper.is_alive() or self.best.value >= self._target:
            return False
        since, left = self.seconds - self._asked_at, self.budget.seconds - self._asked_at
        if since < max(2.0, _RESTART * left) or self.best.method == "solver":
            return False
        self._solver.stop()
        helper.join(_PATIENCE)
        return not self._over()


STEPS = 1_000  # of a normal spread the 95th percentile is then known to 7 % of that spread
SEED = 16  # any; fixed, so that the same question has the same answer
PERCENTILE = 95.0
MEASURED = "measured"  # instead of a share: as much as the ops of a measurement vary
MOST_ORDERS = 12  # each is simulated over all steps
_LINK = re.compile(r"(\d+)-(\d+)=([^@]+)@(\d+\.?\d*)%")


@dataclass(frozen=True, slots=True, eq=False)
class Jitter:
    """How much steps vary.

    Args:
        sigma: of the logarithm of each op's factor; or one for each kind and stage, float64[kinds, stages], as they
            were measured.
        link: two ranks between which transfers are sometimes slow; None for none.
        delay: what that adds, nanoseconds.
        share: of the steps in which it does.
    """

    sigma: float | NDArray[np.float64]
    link: tuple[int, int] | None = None
    delay: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Robustness:
    """How an order does if ops vary.

    Args:
        sigma: of the logarithm of each op's factor; its mean over the kinds and stages that vary, if it was measured.
        steps: in each of the two sets.
        seed: of their draws.
        mean_ms: of the step, over the set by which nothing was chosen.
        p95_ms: the 95th percentile, likewise.
        best_nominal_p95_ms: that of the order with the least makespan without jitter.
        orders: how many were compared.
    """

    sigma: float
    steps: int
    seed: int
    mean_ms: float
    p95_ms: float
    best_nominal_p95_ms: float
    orders: int
    schedule: Schedule = field(metadata=HIDDEN)


def read_jitter(text: str, measured: NDArray[np.float64] | None = None) -> Jitter:
    """Read ``5%`` or ``measured``, and ``5%,6-7=30ms@10%`` with a link that is slow by so much in so many steps.

    Args:
        text: as typed.
        measured: what ``measured`` stands for: sigma of each kind and stage; None without a measurement.

    Raises:
        InputError: it is neither, or nothing was measured.
    """
    share, _, link = text.replace(" ", "").partition(",")
    match = _LINK.fullmatch(link) if link else None
    number = re.fullmatch(r"(\d+\.?\d*)%", share)
    sigma: float | NDArray[np.float64]
    if share == MEASURED and measured is None:
        raise InputError(Fault(f"jitter = {text}", "nothing was measured", "give --from, or a share as in 5%"))
    if share == MEASURED and measured is not None and (match is not None or not link):
        sigma = measured
    elif number is None or (link and match is None) or not 0 <= float(number[1]) < 100:
        rule = "it is a share (or `measured`), and if wanted a link that is slow in a share of the steps"
        raise InputError(Fault(f"jitter = {text}", rule, "write it as in 5% or 5%,6-7=30ms@10%"))
    else:
        sigma = float(number[1]) / 100
    if match is None:
        return Jitter(sigma)
    delay = round(nanoseconds(match[3], "jitter"))
    return Jitter(sigma, (int(match[1]), int(match[2])), delay, float(match[4]) / 100)


def most_robust(problem: Problem, orders: Sequence[Schedule], jitter: Jitter) -> Robustness:
    """Choose one of some orders by its 95th percentile.

    Args:
        problem: what they answer.
        orders: legal ones, the best last; only the last few are asked.
        jitter: how much steps vary.
    """
    asked = list(orders)[-MOST_ORDERS:]
    chosen_by, reported_on = (drawn(problem, jitter, seed) for seed in (SEED, SEED + 1))
    engine = problem.instance.engine
    # All orders meet the same steps: what differs between them is the order alone (common random numbers).
    programs = [lower(order, engine) for order in asked]
    tails = [float(np.percentile(simulate_many(program, chosen_by), PERCENTILE)) for program in programs]
    best = int(np.argmin(tails))
    steps, nominal = simulate_many(programs[best], reported_on), simulate_many(programs[-1], reported_on)
    return Robustness(
        sigma=_mean(jitter.sigma),
        steps=STEPS,
        seed=SEED,
        mean_ms=float(steps.mean()) / 1e6,
        p95_ms=float(np.percentile(steps, PERCENTILE)) / 1e6,
        best_nominal_p95_ms=float(np.percentile(nominal, PERCENTILE)) / 1e6,
        orders=len(asked),
        schedule=asked[best],
    )


def _mean(sigma: float | NDArray[np.float64]) -> float:
    """One figure for the report: a kind that does not occur has no spread, and does not count."""
    spread = np.atleast_1d(np.asarray(sigma, np.float64))
    if not spread.any():
        return 0.0
    return float(spread[spread > 0].mean())


def drawn(problem: Problem, jitter: Jitter, seed: int) -> list[Costs]:
    """Costs of each of ``STEPS`` steps, every op and transfer with a column for each micro-batch."""
    instance, costs = problem.instance, problem.instance.costs
    draw = np.random.default_rng(seed)
    shape = (*costs.durations.shape[:2], instance.microbatches)
    slow = _slow(problem, jitter, shape)
    sigma = np.atleast_3d(np.asarray(jitter.sigma, np.float64))  # of a kind and stage, for all micro-batches
    nominal = costs.durations
    if sigma.size > 1:  # what differs between micro-batches is part of the variation that was measured
        nominal = nominal.mean(axis=2, keepdims=True)
    steps = []
    for _ in range(STEPS):
        factors = np.exp(sigma * draw.standard_normal(shape))
        durations = np.rint(nominal * factors).astype(np.int64)
        transfers = np.broadcast_to(costs.transfers, shape) + slow * int(draw.random() < jitter.share)
        steps.append(Costs(durations, transfers))
    return steps


def _slow(problem: Problem, jitter: Jitter, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """What a slow link adds to each transfer, int64 of the shape of durations.

    Raises:
        InputError: nothing goes between its two ranks.
    """
    found = np.zeros(shape, np.int64)
    if jitter.link is None:
        return found
    home = problem.instance.placement
    crossing = [{int(one), int(other)} == set(jitter.link) for one, other in pairwise(home)]
    if not any(crossing):
        value = f"jitter link = {jitter.link[0]}-{jitter.link[1]}"
        raise InputError(Fault(value, "no stage hands anything to the next there", "name two neighbouring ranks"))
    below = np.flatnonzero(crossing)
    found[Kind.F, below + 1] = jitter.delay
    for kind in (Kind.I, Kind.B):
        found[kind, below] = jitter.delay
    return found
