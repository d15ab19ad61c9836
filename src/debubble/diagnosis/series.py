"""A series of runs: each against the first, and those that no other beats in both throughput and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .remedies import Launcher
from .why import Comparable, Compared, why

FEWEST = 2  # runs with a stated memory


@dataclass(frozen=True, slots=True)
class Frontier:
    """Runs of a series by throughput and memory.

    Args:
        pareto: the runs that none beats in one without being beaten in the other, least memory first.
        best_per_byte: the run with most throughput for the memory of a device.
        fastest: the run with most throughput.
        first: the run that the others were compared with.
        implied_idle_share: what the first idles if the fastest idles not at all and both do as much work in a busy
            second: 1 - its throughput over that of the fastest. It idles more where the fastest idles too.
    """

    pareto: tuple[str, ...]
    best_per_byte: str
    fastest: str
    first: str
    implied_idle_share: float


def series(runs: Sequence[Comparable], launcher: Launcher | None = None) -> list[Compared]:
    """Each run after the first against the first; remedies of the last."""
    return [why(runs[0], run, changes=run is runs[-1], launcher=launcher) for run in runs[1:]]


def frontier(comparisons: Sequence[Compared]) -> Frontier | None:
    """The frontier of runs on as many devices; None where fewer than two state throughput and memory.

    Args:
        comparisons: of each run with the first.
    """
    first = comparisons[0].a
    speeds = {first.name: (1.0, first)}
    speeds |= {c.b.name: (c.ratio.value, c.b) for c in comparisons if c.ratio is not None and c.b.gpus == first.gpus}
    held = {name: (speed, run.job.peak_memory) for name, (speed, run) in speeds.items() if run.job.peak_memory}
    if len(held) < FEWEST:
        return None
    fastest = max(held, key=lambda name: held[name][0])
    return Frontier(
        pareto=_pareto(held),
        best_per_byte=max(held, key=lambda name: held[name][0] / held[name][1]),
        fastest=fastest,
        first=first.name,
        implied_idle_share=max(0.0, 1 - 1 / held[fastest][0]),
    )


def _pareto(held: dict[str, tuple[float, int]]) -> tuple[str, ...]:
    """Least memory first, each faster than all before it."""
    found: list[str] = []
    for name in sorted(held, key=lambda name: (held[name][1], -held[name][0])):
        if not found or held[name][0] > held[found[-1]][0]:
            found.append(name)
    return tuple(found)
