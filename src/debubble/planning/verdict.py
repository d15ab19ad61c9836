"""The verdict: how sure a plan is, what a search means in sentences, and whether more devices are worth their price.

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
from itertools import pairwise
from math import erf, exp, pi, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config.config import Layout
from ..config.plan import Layouts, Plan
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import GENERIC, STALLED, Calibration, Column, Factor
from .batch import Rejected
from .idle import columns, enough
from .judge import screen
from .splits import head_in_layers

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


SAME = 0.002  # of a step: less than any difference that could be measured
CLOSE = 0.05  # error that no sentence is lost on: software releases differ by as much
ENOUGH = 0.10  # idle share that a batch should stay under
SECOND = 1e9  # nanoseconds
BILLION = 1e9


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Args:
        plans: that fit, best first: see ``by_rank``.
        legal: layouts that the screen looked at.
        simulated: of them, how many were simulated.
        rejected: why others were ruled out, and how many; those of legal layouts and ``plans`` sum to ``legal``.
        interval: the error of the first plan: that of published runs of the nearest kind, or what calibration leaves.
        memory: bytes of a device.
        closest: bytes that the fullest rank of the smallest layout needs; what to say where nothing fits.
    """

    plans: tuple[Plan, ...]
    legal: int
    simulated: int
    rejected: tuple[Rejected, ...]
    interval: Interval
    memory: float
    closest: float

    @property
    def band(self) -> float:
        """Relative error of a prediction, one standard deviation, 0 to 1."""
        return self.interval.band


@dataclass(frozen=True, slots=True)
class Scaled:
    """The best layout at one number of devices.

    Args:
        gpus: devices.
        plan: the best layout, or None where none fits.
        closest: bytes that the fullest rank of the smallest layout needs, for where none fits.
        tokens_per_second: of the whole job; 0 where none fits.
        speedup: over the first number of devices at which a layout fits.
        efficiency: speed-up over the growth in devices.
        cost: of a billion tokens, in the currency of the price; None without a price.
        efficient_batch: least global batch that keeps this pipeline's idle share at 10 % or below.
    """

    gpus: int
    plan: Plan | None
    closest: float
    tokens_per_second: float
    speedup: float
    efficiency: float
    cost: float | None
    efficient_batch: int


def scaled(found: dict[int, Found], price: float | None) -> list[Scaled]:
    """Hold the best layouts at several numbers of devices against each other.

    Args:
        found: by number of devices.
        price: of one device for an hour, or None.
    """
    rows: list[Scaled] = []
    first: Plan | None = None
    for gpus, one in sorted(found.items()):
        plan = one.plans[0] if one.plans else None
        first = first or plan
        rows.append(_scaled(gpus, plan, one.closest, first, price))
    return rows


def _scaled(gpus: int, plan: Plan | None, closest: float, first: Plan | None, price: float | None) -> Scaled:
    if plan is None or first is None:
        return Scaled(gpus, None, closest, 0.0, 0.0, 0.0, None, 0)
    rate = plan.tokens_per_second_per_gpu * gpus
    growth = gpus / first.layout.gpus  # an ideal job speeds up by as much
    speedup = rate / (first.tokens_per_second_per_gpu * first.layout.gpus)
    cost = None
    if price is not None:
        cost = price * gpus / 3600 / rate * BILLION
    return Scaled(gpus, plan, closest, rate, speedup, speedup / growth, cost, efficient_batch(plan))


def efficient_batch(plan: Plan) -> int:
    """Least global batch at which the idle share of this schedule with even stages is 10 % or less.

    Where it takes more than can be simulated, that of 1F1B.
    """
    layout = plan.layout
    many = enough(layout.schedule, layout.pipeline, ENOUGH, layout.chunks) or enough("1f1b", layout.pipeline, ENOUGH)
    return (many or 1) * layout.micro_batch * layout.data


def more_devices(rows: Sequence[Scaled]) -> list[str]:
    """Sentences: what each step up in devices brings."""
    sentences = []
    fitting = [row for row in rows if row.plan is not None]
    sentences += [
        f"{row.gpus} GPUs: no layout fits; the smallest needs {row.closest / 1e9:.0f} GB on its fullest rank"
        for row in rows
        if row.plan is None
    ]
    for less, more in pairwise(fitting):
        gain = more.tokens_per_second / less.tokens_per_second
        times = more.gpus / less.gpus
        word = "slower" if gain < 1 else f"{gain:.2f} times the throughput"
        text = f"{less.gpus} -> {more.gpus} GPUs ({times:g}x): {word}, {100 * gain / times:.0f} % of what was added"
        if less.cost and more.cost:
            text += f"; a billion tokens cost {100 * (more.cost / less.cost - 1):+.0f} %"
        sentences.append(text)
    worst = [row for row in fitting if row.plan and row.plan.layout.global_batch < row.efficient_batch]
    sentences += [
        f"{row.gpus} GPUs idle {100 * row.plan.idle_share:.0f} % of the pipeline window at this batch; "
        f"a global batch of {row.efficient_batch} keeps them at {100 * ENOUGH:.0f} % or less"
        for row in worst
        if row.plan and row.plan.idle_share > ENOUGH
    ]
    return sentences


def about(model: Model, found: Found) -> list[str]:
    """Sentences about a search: the error band, ties, the head, what was assumed."""
    if not found.plans:
        return []
    best, band = found.plans[0], found.band
    sentences = [*_ties(found), *_stalls(found), *_tight(found), *best.reasons]
    if best.layout.pipeline > 1:
        head = head_in_layers(model, best.layout.sequence)
        if head >= 0.5:  # a lighter head than half a layer changes no split of whole layers
            last = best.layout.split(model.layers)
            sentences.append(
                f"the loss head weighs {head:.1f} layers; the last stage has {last[-1]} layers, the fullest {max(last)}"
            )
    if not found.interval.kind:
        sentences.append(f"{found.interval.said}; measure a few steps and give them to --calibrate")
    elif band >= CLOSE:
        sentences.append(f"estimates are off by ±{100 * band:.0f} %: {found.interval.said}; --calibrate narrows it")
    return sentences


def _ties(found: Found) -> list[str]:
    """Whether the first can be told from the runner-up, and what picking the first may cost."""
    best = found.plans[0]
    rivals = [plan for plan in found.plans if is_tight(plan, found.memory) == is_tight(best, found.memory)]
    if len(rivals) < 2:
        return []
    behind = rivals[1].expected_step / best.expected_step - 1
    alike = sum(plan.expected_step <= best.expected_step * (1 + found.band) for plan in rivals)
    if behind > found.band:
        return [f"the first layout is {100 * behind:.0f} % ahead, more than the error of ±{100 * found.band:.0f} %"]
    # Within the error no winner is claimed; what a coin would cost is.
    regret = expected_regret(behind, found.band)
    return [
        f"{alike} layouts lie within ±{100 * found.band:.0f} % of the first: no winner among them; picking the first "
        f"costs {100 * regret:.1f} % on average against the second, so measure both"
    ]


def _stalls(found: Found) -> list[str]:
    """The layout that would be first on a cluster that does not stall, if that is another."""
    best = found.plans[0]
    rivals = [plan for plan in found.plans if is_tight(plan, found.memory) == is_tight(best, found.memory)]
    fastest = min(rivals, key=lambda plan: plan.step)
    ahead = best.step / fastest.step - 1
    if ahead <= SAME:
        return []
    return [
        f"{_told(fastest.layout)} would be {100 * ahead:.1f} % faster where tensor groups in a pipeline lose no time "
        f"across nodes, which one cluster in {1 / CHANCE:.0f} does: --calibrate with measured steps tells"
    ]


def _tight(found: Found) -> list[str]:
    """Whether the first may run out of memory, or was put before a faster one that may."""
    best = found.plans[0]
    doubt = "estimates of memory are off by some 10 %"
    if is_tight(best, found.memory):
        filled = max(best.peak_bytes) / found.memory
        return [f"the first fills {100 * filled:.0f} % of its fullest device, and {doubt}; none that fits leaves more"]
    fullest = min(found.plans, key=lambda plan: plan.expected_step)
    ahead = best.expected_step / fullest.expected_step - 1
    if not is_tight(fullest, found.memory) or ahead <= SAME:
        return []
    filled = max(fullest.peak_bytes) / found.memory
    return [
        f"{_told(fullest.layout)} would be {100 * ahead:.1f} % faster but fills {100 * filled:.0f} % of its fullest "
        f"device, and {doubt}: those that stay below {100 * SPARE:.0f} % go first"
    ]


def _told(layout: Layout) -> str:
    """``tensor 2, pipeline 8, data 4 with micro-batches of 2 on 1f1b``."""
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data, "context": layout.context}
    said = ", ".join(f"{name} {many}" for name, many in degrees.items() if many > 1) or "one device"
    again = "" if layout.recompute == "none" else f", {layout.recompute} recomputation"
    return f"{said} with micro-batches of {layout.micro_batch} on {layout.schedule}{again}"


def expected_regret(behind: float, band: float) -> float:
    """Mean loss from picking the first of two, as a share of its step.

    The true difference is normal with mean ``behind`` and standard deviation ``band`` (two estimates of one model share
    half of their variance): s phi(d/s) - d (1 - Phi(d/s)).
    """
    if band <= 0:  # nothing is uncertain, and the first is the best
        return 0.0
    at = behind / band
    return band * exp(-at * at / 2) / sqrt(2 * pi) - behind * (1 - (1 + erf(at / sqrt(2))) / 2)


def room_without_recompute(model: Model, cluster: Cluster, layout: Layout) -> str:
    """A sentence if less recomputation would fit into the device too; empty if it would not."""
    ways = [replace(layout, recompute=mode) for mode in ("none", "selective", "full")]
    peaks = screen(model, cluster, columns(ways, model.layers)).peak_bytes.tolist()
    for way, peak in zip(ways[:2], peaks, strict=False):
        if peak <= SPARE * cluster.device.usable:
            return (
                f"full recomputation with room to spare: with {way.recompute} the fullest rank needs about "
                f"{peak / 1e9:.0f} of {cluster.device.usable / 1e9:.0f} GB (estimated)"
            )
    return ""
