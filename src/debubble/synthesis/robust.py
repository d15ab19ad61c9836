"""Robust orders: of many good ones, that whose 95th percentile is least over steps in which every op varies.

Each op takes its time times a lognormal factor; a link may be slow in some steps. The order is chosen over one set of
steps and reported on another, so that the report is not of the luck by which it was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.results import HIDDEN
from ..core.schedule import Kind, Schedule
from ..core.simulate import simulate_many
from ..core.units import nanoseconds
from .problem import Problem

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
