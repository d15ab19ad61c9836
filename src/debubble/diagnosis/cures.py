"""Cures: what a step would gain if a rank that was found slow were as fast as the same stage elsewhere."""

from __future__ import annotations

from dataclasses import replace

from ..core.observation import Observation
from .causes import causes
from .edits import faster_rank
from .evidence.slow import Slow
from .replay import WhatIf, tried
from .run_sides import replay_of
from .what_if import TRUSTED
from .windows import Summary, median_window


def cure(run: Observation, summary: Summary, slow: Slow, name: str | None) -> WhatIf | None:
    """The slow rank cured in a window that shows it; None where simulating that window again misses it.

    Replicas wait for each other at the end of a step, so it gains no more than the slowest of the others leaves.

    Args:
        run: what was measured.
        summary: of its windows.
        slow: the rank.
        name: of the order in the catalog.
    """
    mine = [i for i, w in enumerate(summary.windows) if w.replica == slow.replica and _in(slow, w.step)]
    at = median_window(summary, mine)
    window = summary.windows[at]
    if abs(causes(window.timeline).resim_ratio - 1) > TRUSTED:
        return None
    replay = replay_of(run, replace(summary, middle=at), name)
    (answer,) = tried(replay, [faster_rank(replay, slow.rank, slow.factor)])
    others = [i for i, w in enumerate(summary.windows) if w.replica != slow.replica and w.step == window.step]
    left = max((summary.accounts[i].window for i in others), default=0)
    before = replay.again().window
    after = max(answer.makespan_ns, min(left, before))
    gain = (before + replay.outside) / (after + replay.outside)
    return replace(answer, step_ns=after + replay.outside, makespan_ns=after, speedup=gain)


def _in(slow: Slow, step: int) -> bool:
    return not slow.steps or step in slow.steps
