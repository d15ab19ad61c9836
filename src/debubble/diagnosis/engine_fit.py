"""Which engine a measured window fits: each simulates it again, with ops as they were measured and the least hops seen.

Nothing is fitted to the window. The hop of a link is the least time from the end of an op to the start of the one that
needs its output: no engine starts an op before its input is there, so no transfer lasts longer, and an activation is as
large as its gradient. What ranks waited beyond that is the engine's doing, and the engine that ran starts the ops when
they did start:

    MegatronApp, interleaved, 4 ranks     megatron-overlap  .995 of the window, ops start .6 % of it off
                                          megatron         1.084                          4.3 %
                                          ideal             .915                          4.6 %
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.engine import IDEAL, Engine
from ..core.errors import InputError, Refusal
from ..core.lower import lower
from ..core.observation import Observation
from ..core.program import Timeline
from ..core.simulate import simulate
from ..frameworks.engines import ENGINES, engine_of
from .causes import TRUSTED, Causes, causes, least_hops
from .edits import Replay, replay_of
from .windows import Summary

TELLING = 0.05  # share of the window that hops must cost before an engine makes a difference worth a model of its own
MOST_OPS = 50_000  # of a window that every engine simulates again


@dataclass(frozen=True, slots=True)
class EngineFit:
    """A window simulated again under one engine.

    Args:
        engine: by its name.
        resim_ratio: length of the window over what was measured.
        start_error_share: how far ops start from where they did start, the mean, over the window.
    """

    engine: str
    resim_ratio: float
    start_error_share: float


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """The median window of a run, simulated again by whoever ran it.

    Args:
        replay: under that engine, with its hops.
        causes: why the window is as long as it is, under the same engine.
        fits: of every engine that was asked, the best first; empty if ranks are missing.
    """

    replay: Replay
    causes: Causes
    fits: tuple[EngineFit, ...]


def replayed(run: Observation, summary: Summary, name: str | None, asked: Engine | None = None) -> Replayed:
    """Simulate the median window again, under the engine that fits it where its hops cost enough to tell.

    Args:
        run: what was measured.
        summary: of its windows.
        name: of its order in the catalog.
        asked: the engine, if somebody said; None for the one that fits.

    Raises:
        InputError: the engine that was asked for does not run such orders.
    """
    window = summary.window.timeline
    found = causes(window)
    replay = replay_of(run, summary, name)
    if run.torn:  # what missing ranks did is not known, so nothing can be held against an engine
        return Replayed(replay, found, ())
    fits = fit_engines(window, run.engine)
    replay = engine_for(replay, window, fits, found, asked)
    if replay.engine != IDEAL:
        found = causes(window, replay.engine)
    return Replayed(replay, found, fits)


def fit_engines(timeline: Timeline, family: str | None = None) -> tuple[EngineFit, ...]:
    """Simulate a measured window again under every engine that can run its order, the best first.

    Args:
        timeline: measured.
        family: the engines to ask, by the name of the framework that is known to have run it; None for all.
    """
    schedule, ops = timeline.program.schedule, len(timeline.program.schedule)
    # Each engine simulates all of it: on long windows that would take longer than reading them.
    if ops > MOST_OPS or not timeline.makespan:
        return ()
    costs = least_hops(timeline)
    # From the first op: where the window lies on the clock says nothing.
    began = timeline.start[:ops] - timeline.start[:ops].min()
    fits = []
    for name in _of_family(family):
        try:
            again = simulate(lower(schedule, engine_of(name, schedule)), costs)
        except (InputError, Refusal):
            continue
        # Starts of ops tell more than the length of the window, which several engines may meet by chance.
        away = np.abs(again.start[:ops] - again.start[:ops].min() - began).mean()
        fits.append(EngineFit(name, again.makespan / timeline.makespan, float(away) / timeline.makespan))
    return tuple(sorted(fits, key=lambda fit: fit.start_error_share))


def _of_family(family: str | None) -> list[str]:
    """The engines of one framework, as in megatron and megatron-overlap; all of them if it has none here."""
    every = list(ENGINES)
    if family is None:
        return every
    head = family.partition("-")[0]
    return [name for name in every if re.split("[:-]", name)[0] == head] or every


def engine_for(
    replay: Replay, timeline: Timeline, fits: Sequence[EngineFit], found: Causes, asked: Engine | None
) -> Replay:
    """The replay under the engine that was asked for, or that fits where hops cost enough to tell engines apart.

    It is left as it is where hops that are fitted one by one reproduce the window better.

    Args:
        replay: of the window, by hops that were fitted one by one.
        timeline: measured.
        fits: of engines, the best first.
        found: causes of the window.
        asked: by name; None if nobody said.

    Raises:
        InputError: the engine that was asked for does not run such orders.
        Deadlock: it would have got stuck in this one.
    """
    schedule = timeline.program.schedule
    if asked is not None:
        # Lowered to see whether it runs this order at all, and its refusal says why not.
        lower(schedule, engine_of(asked.name, schedule))
        return replace(replay, engine=asked, costs=least_hops(timeline))
    # Where hops cost next to nothing, every engine fits, and a name would be made up.
    hops_share = found.resim_ratio - found.resim_without_transfer_ratio
    if not fits or abs(hops_share) <= TELLING or schedule.joined is not None:
        return replay  # nobody runs overlapped pairs by these tables
    best = fits[0]
    miss = abs(best.resim_ratio - 1)
    if best.engine == IDEAL.name or miss > TRUSTED or miss > abs(found.resim_ratio - 1):
        return replay
    return replace(replay, engine=ENGINES[best.engine], costs=least_hops(timeline))
