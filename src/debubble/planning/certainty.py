"""How sure a plan is: the error that is printed with it, and a choice that holds if that error is made.

A *kind* of run is what its error depends on: the device, who runs it, whether it has experts, the width of its numbers,
whether it leaves a node, and whether the host waits for each kernel. ``data/validated.toml`` holds the kinds of all
published runs, from the finest, where enough runs are of it, to a device alone. A plan prints the interval of the
finest kind that it belongs to; of a device that no published run is on, nothing like it was validated.

Layouts rank by the step to expect if the cluster may stall, those with memory to spare first. On some clusters tensor
groups in a pipeline across nodes lose milliseconds a layer for each of their members, whatever the micro-batch; the
factor ``stall`` is that loss. Of the published clusters with such layouts (vTrain, BigScience, Ultra-Scale, Selene,
NVIDIA's recipes on H100 and on GB200) two stall. Unless measured runs say otherwise, that is the chance that this one
does, and a layout that would lose by it must be ahead by more than the chance of losing.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layout
from ..config.plan import Layouts, Plan
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import GENERIC, STALLED, Calibration, Column, Factor
from .screen import screen

FILE = Path(__file__).resolve().parents[1] / "data" / "validated.toml"
SHARE = 0.68  # of the runs of a kind lie within its interval: one standard deviation, were errors normal
LEAST = 12  # runs that vouch for a kind: the error of a 68 % quantile of 12 is some 13 % of them
UNLIKE = 0.33  # error where nothing like it was validated: what 68 % of the runs of the worst kind lie within
# What kinds are told apart by, the finest first; a plan for any framework is held against the runs of all.
LEVELS = (
    ("device", "framework", "experts", "numbers", "nodes", "launches"),
    ("device", "framework", "experts", "numbers"),
    ("device", "framework", "experts"),
    ("device", "experts", "numbers"),
    ("device", "experts"),
    ("device",),
)
OWN = "own rows"  # trait of the error that calibration on a user's own rows leaves
NUMBERS = {"fp8": "8 bit", "fp4": "4 bit", "tf32": "32 bit", "fp32": "32 bit"}

Traits = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Interval:
    """The error of one kind of run.

    Args:
        kind: its traits, by name; empty if nothing like it was validated.
        rows: published runs of that kind.
        band: relative error within which ``SHARE`` of them were predicted, 0 to 1.
        bias: median of predicted over measured.
    """

    kind: Traits
    rows: int
    band: float
    bias: float

    @property
    def said(self) -> str:
        """Whose error it is, as a clause."""
        if not self.kind:
            return "nothing like it was validated: no published run on this device was predicted"
        if OWN in self.kind:
            return f"what calibration on {self.rows} rows of {self.kind[OWN]} leaves open"
        return (
            f"{100 * SHARE:.0f} % of {self.rows} published runs of {', '.join(self.kind.values())} were met within it"
        )


NOTHING_LIKE_IT = Interval({}, 0, UNLIKE, 1.0)


def traits(model: Model, cluster: Cluster, layout: Layout, framework: str = "") -> Traits:
    """What the error of a run depends on; a framework that nobody named is left out."""
    found = {"device": cluster.device.name}
    if framework:
        found["framework"] = framework.lower()
    found["experts"] = "experts" if model.experts else "dense"
    found["numbers"] = NUMBERS.get(layout.precision, "16 bit")
    found["nodes"] = "several nodes" if layout.gpus > cluster.gpus_per_node else "one node"
    found["launches"] = "blocking launches" if layout.blocking_launches else "launches ahead"
    return found


def intervals(kinds: Sequence[Traits], ratios: NDArray[np.float64]) -> list[Interval]:
    """The error of every kind of which there are enough runs, the finest level first.

    Args:
        kinds: traits of each run.
        ratios: predicted over measured step of each, float64[runs].
    """
    found = []
    for level in LEVELS:
        members: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for kind, ratio in zip(kinds, ratios.tolist(), strict=True):
            if all(name in kind for name in level):
                members[tuple(kind[name] for name in level)].append(ratio)
        for values, of_kind in sorted(members.items()):
            if len(of_kind) >= LEAST:
                found.append(_interval(dict(zip(level, values, strict=True)), np.array(of_kind)))
    return found


def _interval(kind: Traits, ratios: NDArray[np.float64]) -> Interval:
    off = np.abs(1 / ratios - 1)  # of the measured step from the predicted one, around which it is printed
    return Interval(kind, len(off), float(np.quantile(off, SHARE)), float(np.median(ratios)))


def nearest(kind: Traits, known: Iterable[Interval]) -> Interval:
    """The interval of the finest kind that a run belongs to, or ``NOTHING_LIKE_IT``."""
    # Finest first: the first that fits is the nearest.
    for interval in known:
        if interval.kind.items() <= kind.items():
            return interval
    return NOTHING_LIKE_IT


@cache
def published() -> tuple[Interval, ...]:
    """The intervals of ``data/validated.toml``, the finest level first."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["kind"]
    return tuple(Interval(row["of"], row["rows"], row["band"], row["bias"]) for row in rows)


def written(found: Sequence[Interval], source: str) -> str:
    """The text of ``data/validated.toml``."""
    lines = [f"# {source}"]
    for one in found:
        traits_of_it = ", ".join(f'{name} = "{value}"' for name, value in one.kind.items())
        lines += ["", "[[kind]]", f"of = {{ {traits_of_it} }}", f"rows = {one.rows}"]
        lines += [f"band = {one.band:.4f}", f"bias = {one.bias:.4f}"]
    return "\n".join([*lines, ""])


CHANCE = 1 / 3
SPARE = 0.9  # share of a device's memory that an estimate may fill: published peaks lie within 10 % of ours


def chance_of_stalling(calibration: Calibration | None) -> float:
    """That this cluster stalls more than is known: 0 if measured runs tell."""
    if calibration is None or not calibration.rows or "stall" in calibration.silent():
        return CHANCE
    return 0.0


def if_stalled(calibration: Calibration | None) -> Calibration:
    """The same factors on a cluster that stalls."""
    known = calibration or GENERIC
    return replace(known, stall=Factor(STALLED * known.stall.value))


def expected(steps: Column, stalled: Column, calibration: Calibration | None) -> Column:
    """The step to expect of each layout, from the one predicted and the one on a cluster that stalls."""
    chance = chance_of_stalling(calibration)
    weighed: Column = (1 - chance) * steps + chance * stalled
    return weighed


def weighed(
    plans: Sequence[Plan], layouts: Layouts, model: Model, cluster: Cluster, calibration: Calibration | None
) -> list[Plan]:
    """The plans with the step to expect: what the screen says that a stall costs, on top of what was simulated.

    Args:
        plans: simulated.
        layouts: the same, a row each.
        model: what is trained.
        cluster: on what.
        calibration: of the cost model, or None.
    """
    steps = screen(model, cluster, layouts, calibration).step
    stalled = screen(model, cluster, layouts, if_stalled(calibration)).step
    # Simulation knows one cluster; the closed form says in what proportion another would be slower.
    slower = expected(steps, stalled, calibration) / steps
    return [replace(plan, expected_step=plan.step * times) for plan, times in zip(plans, slower.tolist(), strict=True)]


def by_rank(plan: Plan, memory: float) -> tuple[bool, float, int]:
    """What plans are sorted by: memory to spare, the step to expect, the fewest devices a sequence.

    Args:
        plan: that fits.
        memory: bytes of a device.
    """
    return is_tight(plan, memory), plan.expected_step, plan.layout.context


def is_tight(plan: Plan, memory: float) -> bool:
    """Whether a plan fits only if its estimate of memory is right."""
    return max(plan.peak_bytes) > SPARE * memory
