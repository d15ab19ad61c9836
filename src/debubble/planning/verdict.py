"""The verdict: what a search means in sentences, and whether more devices are worth their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import erf, exp, pi, sqrt

from ..config.layout import Layout
from ..config.plan import Plan, columns
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from .certainty import CHANCE, SPARE, Interval, is_tight
from .idle import enough
from .launch import Rejected
from .screen import screen
from .splits import head_in_layers

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
