"""Calibration: measured steps, stages or one layer correct the generic model through few factors, each with its error.

The logs x of the factors are those that minimise

    sum over measurements   (log predicted(x) - log measured)^2 / noise^2   (as Student's t, 1 degree of freedom)
  + sum over factors        x^2 / prior^2                                   (as Student's t, where it has tails)

so that one run gone wrong does not bend the rest, and a machine may be far from what is usual where all say so. Found
by Gauss-Newton on finite differences; errors are those of the curvature at the end. So three rows cannot bend what they
say nothing about: a factor that no row depends on stays at 1 with the uncertainty of its prior.

*By layer*: timed on one device, it becomes ``kernels`` and ``floor``.
Two sizes tell the two apart, by forward and backward together: the layer as it is, which the device's kernels take up,
and one so narrow that only the host's issuing of it takes time. A layer timed alone says nothing of links: the other
factors keep their priors.

*By stage*: a run is held against the costs with which `plan` simulates its layout, part by part:

    slot     F + B (or F + I + W) of a micro-batch on each stage      kernels, tensor, floor
    share    F over B on each stage                                   kernels from floor
    hop      delay from one stage to the next                         transfer
    outside  step less pipeline window                                data

Stages of one run share what the model gets wrong, so all of them together count as one measurement of a part. What no
part depends on keeps its prior.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..config.config import Layout
from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.results import SPARSE, Result
from ..core.schedule import Kind as OpKind
from ..estimate.hardware import Cluster
from ..estimate.layer import embedding_time, head_time, layer_time
from ..estimate.model import Attention, Experts, FeedForward, Kind, LatentAttention, Mixer, Model
from ..estimate.setting import GENERIC, MEMORY_PRIOR, PRIOR, STALLED, Calibration, Factor, Setting
from .idle import columns
from .judge import SECOND, judge, screen, simulated
from .runs import Run

Column = NDArray[np.float64]

FREEDOM = 1  # of Student's t for measurements: so heavy a tail that a run gone wrong counts as one more good one
NORMAL = 1e9  # degrees of freedom, as good as infinite: Student's t is the normal distribution there
STEPS = 12  # of Gauss-Newton at most, for fits that swing between two kinks
LONGEST_STEP = 0.5  # of a step, in e-folds
CLOSE = 1e-3  # step at which it stops: far below the noise of any measurement
NUDGE = 0.02  # of a finite difference: above the rounding to nanoseconds, below the distance of kinks


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What measurements and priors say together.

    Args:
        at: logs of the factors, float64[factors].
        covariance: of them, float64[factors, factors].
        off: log of predicted over measured, float64[measurements].
        slope: change of the log of each prediction with the log of each factor, float64[measurements, factors].
        lost: the sum that they minimise.
    """

    at: Column
    covariance: Column
    off: Column
    slope: Column
    lost: float

    @property
    def errors(self) -> Column:
        """One standard error of each log factor, float64[factors]."""
        found: Column = np.sqrt(np.diag(self.covariance))
        return found


def posterior(
    predict: Callable[[Column], Column],
    measured: tuple[Column, Column],
    prior: Column,
    start: Column | None = None,
    *,
    robust: bool = True,
    tails: Column | float = NORMAL,
) -> Posterior:
    """Fit log factors.

    Args:
        predict: logs of the predictions, float64[n, measurements], from logs of the factors, float64[n, factors]: many
            at once, since each call costs as much as many; see ``one_by_one``.
        measured: logs of the measurements, and the noise of each, in e-folds; float64[measurements] both.
        prior: how far each factor is expected from 1, in e-folds, float64[factors].
        start: logs of the factors where most measurements lie, so that what is off alike is not taken for outliers;
            None for 0.
        robust: whether one measurement may have gone wrong; else all are believed, as with infinite freedom.
        tails: degrees of freedom of each prior, or of all: few where a factor may lie far off, ``NORMAL`` where not.
    """
    target, noise = measured
    at = np.zeros(len(prior))
    if start is not None:
        at = start

    # Student's t by reweighting: each measurement weighs (freedom + 1) / (freedom + its misfit^2) as much as if normal.
    def pull(off: Column) -> Column:
        believed = np.ones_like(off)
        if robust:
            believed = (FREEDOM + 1) / (FREEDOM + (off / noise) ** 2)
        weights: Column = believed / noise**2
        return weights

    def hold(at: Column) -> Column:
        weights: Column = 1 / (1 + (at / prior) ** 2 / tails) / prior**2
        return weights

    for _ in range(STEPS):
        here, slope = linear(predict, at)
        off = here - target
        weights, held = pull(off), hold(at)
        # Gauss-Newton: the slopes' products stand for the second derivatives, which are never negative then.
        step = np.linalg.solve(_curve(slope, weights, held), -(slope.T @ (weights * off) + held * at))
        # The host's floor and the device's time trade places at a kink: a long step would leap over it.
        at = at + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        if np.abs(step).max() < CLOSE:
            break
    here, slope = linear(predict, at)
    off = here - target
    misfit = (off / noise) ** 2
    if robust:
        misfit = (FREEDOM + 1) * np.log1p(misfit / FREEDOM)
    odd = tails * np.log1p((at / prior) ** 2 / tails)
    lost = float(misfit.sum() + odd.sum())
    return Posterior(at, np.linalg.inv(_curve(slope, pull(off), hold(at))).astype(np.float64), off, slope, lost)


def one_by_one(predict: Callable[[Column], Column]) -> Callable[[Column], Column]:
    """A prediction of one set of factors, as one of many."""
    return lambda several: np.stack([predict(at) for at in several])


def linear(predict: Callable[[Column], Column], at: Column) -> tuple[Column, Column]:
    """Predictions at some log factors, float64[measurements], and their slopes, float64[measurements, factors]."""
    here, *moved = predict(at + NUDGE * np.eye(len(at) + 1, len(at), -1))  # as it is, then each factor moved
    return here, (np.stack(moved, axis=1) - here[:, None]) / NUDGE


def _curve(slope: Column, weights: Column, held: Column) -> Column:
    """Curvature of the sum."""
    found: Column = slope.T @ (weights[:, None] * slope) + np.diag(held)
    return found


# A device may be throttled, or its file wrong, by far more, and few clusters stall, but those much: degrees of freedom
# of each prior.
TAILS = np.array([4.0 if name in ("kernels", "stall") else NORMAL for name in PRIOR])
NOISE = 0.06  # of a step, in e-folds: successive releases of one recipe differ by up to as much
LEAST_SCATTER = 0.03  # of printed peaks, in e-folds, however few there are
MEDIAN_ERROR = 1.25  # standard error of a median over that of a mean, if errors are normal


def calibrate(runs: Sequence[Run], source: str = "") -> Calibration:
    """Fit the factors to measured steps, and one factor to measured memory if runs have it.

    Args:
        runs: measured; three to five of different layouts are enough.
        source: what they are, for reports.

    Raises:
        InputError: no run has a step time.
    """
    timed = [run for run in runs if run.seconds > 0]
    if not timed:
        raise InputError(Fault(source or "calibration", "no row has a step time", "add a column step_seconds"))
    seconds = np.log([run.seconds for run in timed])
    # Steps differ by factors, so all is in logarithms: an error of 10 % weighs the same in a short step and a long one.
    steps = steps_of(timed)
    alike = np.zeros(len(PRIOR))
    alike[0] = np.median(seconds - steps(alike[None])[0])  # a machine that is slower throughout is no row of outliers
    noise = np.full(len(timed), NOISE)
    fit = likeliest(steps, (seconds, noise), np.array(list(PRIOR.values())), alike, tails=TAILS)
    fitted, band = corrected(fit.at, fit.errors), band_of(fit, fit.off, fit.slope)
    return replace(fitted, memory=memory_of(runs), rows=len(timed), source=source, band=band)


def predict(runs: Sequence[Run], calibration: Calibration | None = None) -> tuple[Column, Column]:
    """Seconds of a step and peak bytes of a device, float64[runs] each; factors may differ from run to run.

    Runs of one model on one kind of cluster are screened at once.
    """
    alike = defaultdict(list)
    for position, run in enumerate(runs):
        alike[run.model, run.cluster.device.name, run.cluster.gpus_per_node, run.cluster.nic].append(position)
    seconds, memory = np.zeros(len(runs)), np.zeros(len(runs))
    for positions in alike.values():
        first = runs[positions[0]]
        layouts = columns([runs[i].layout for i in positions], first.model.layers)
        factors = calibration.rows_of(positions) if calibration else None
        screened = screen(first.model, first.cluster, layouts, factors)
        seconds[positions], memory[positions] = screened.step / 1e9, screened.peak_bytes
    return seconds, memory


def corrected(at: Column, errors: Column | None = None, names: Iterable[str] = PRIOR) -> Calibration:
    """The generic model under some factors.

    Args:
        at: logs of the factors, float64[factors], or for each of several layouts, float64[factors, layouts].
        errors: one standard error of each log; None for 0.
        names: of the factors.
    """
    spread = np.zeros_like(at) if errors is None else errors
    factors = {}
    for name, log, error in zip(names, at, spread, strict=True):
        factors[name] = Factor(np.exp(log), np.exp(log) * error)
    return replace(GENERIC, **factors)  # type: ignore[arg-type]


def likeliest(
    predicted: Callable[[Column], Column],
    measured: tuple[Column, Column],
    prior: Column,
    start: Column,
    *,
    tails: Column | float = NORMAL,
) -> Posterior:
    """The better of two fits: from a start, and from there with hosts that stall, of which the slope at 1 says nothing.

    Args:
        predicted: see ``posterior``, as all others.
        measured: logs and their noise.
        prior: of the factors in the order of ``PRIOR``.
        start: logs of the factors.
        tails: of the priors.
    """
    stalled = start + np.log(STALLED) * (np.array(list(PRIOR)) == "stall")
    # Where the host hides behind the device, its factor has no slope: a fit from 1 would never find a stalled one.
    fits = [posterior(predicted, measured, prior, each, tails=tails) for each in (start, stalled)]
    return min(fits, key=lambda fit: fit.lost)


def steps_of(runs: Sequence[Run]) -> Callable[[Column], Column]:
    """What predicts the logs of the steps of some runs, float64[n, runs], from logs of factors, float64[n, factors]."""

    def logs(several: Column) -> Column:
        factors = corrected(np.tile(several, (len(runs), 1)).T)
        repeated = [run for run in runs for _ in several]
        steps: Column = np.log(predict(repeated, factors)[0])
        return steps.reshape(len(runs), len(several)).T

    return logs


def band_of(fit: Posterior, off: Column, slope: Column) -> float:
    """Relative error of a step like those measured: noise, and what the model gets wrong or the factors leave open.

    Args:
        fit: the factors.
        off: log of predicted over measured, float64[measurements].
        slope: change of the logs of steps with the logs of the factors, float64[steps, factors].
    """
    # What the factors leave open of a step, by the covariance of the factors and the slopes of the step.
    unsure = float(np.mean(np.einsum("ij,jk,ik->i", slope, fit.covariance, slope)))
    return float(np.sqrt(NOISE**2 + max(float(np.median(off**2)), unsure)))


def memory_of(runs: Sequence[Run]) -> Factor:
    """One factor on peak bytes: the median of the runs that print it, with the error of a median."""
    sized = [run for run in runs if run.memory > 0]
    if not sized:
        return Factor(1.0, MEMORY_PRIOR)
    ratio = np.log([run.memory for run in sized]) - np.log(predict(sized)[1])
    error = float(MEDIAN_ERROR * max(ratio.std(), LEAST_SCATTER) / np.sqrt(len(sized)))
    middle = float(np.exp(np.median(ratio)))
    return Factor(middle, middle * error)


LARGEST = 4_000_000  # bytes
LONGEST = 200  # characters of a source that are shown
MOST = 1e6  # no factor, nor any other number here, is that large; nor any factor one over it


@dataclass(frozen=True, slots=True)
class FactorValue:
    """A factor on what the cost model estimates.

    Args:
        value: measured over estimated.
        error: one standard deviation of it.
        told: whether what was measured says anything of it.
    """

    value: float
    error: float
    told: bool


def factor_values(calibration: Calibration) -> Mapping[str, FactorValue]:
    """Every factor by name."""
    silent = calibration.silent()
    return {
        name: FactorValue(float(factor.value), float(factor.error), name not in silent)
        for name, factor in calibration.factors().items()
    }


def read_calibration(path: Path) -> Calibration:
    """Factors that were saved.

    Raises:
        InputError: what cannot be read, or is no factor.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"it has less than {LARGEST:,} bytes", "give a file of --save-calibration"))
    return _saved(raw.decode("utf-8", errors="replace"), path)


def _saved(text: str, path: Path) -> Calibration:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a file of --save-calibration")) from None
    found: dict[str, Any] = {name: _factor(table[name]) for name in GENERIC.factors() if name in table}
    for name in ("rows", "band"):
        if name in table:
            found[name] = table[name] if _is_size(table[name]) else None
    rule = "a factor is a table of a value above 0 and its error, rows and band are numbers from 0 on"
    faults = [Fault(f"{path}: {name}", rule, "calibrate again") for name, one in found.items() if one is None]
    if faults:
        raise InputError(*faults)
    source = " ".join(str(table.get("source", path))[:LONGEST].split())
    return replace(GENERIC, **found, source=source)


def _factor(entry: object) -> Factor | None:
    """A factor as ``written`` has it; None where it is none."""
    if not isinstance(entry, dict):
        return None
    value, error = entry.get("value", 1.0), entry.get("error", 0.0)
    known = _is_size(value) and value > 1 / MOST and _is_size(error)
    return Factor(float(value), float(error)) if known else None


def _is_size(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < MOST


def written(calibration: Calibration) -> str:
    """A calibration as TOML, each factor with its standard error."""
    lines = [
        f"{name} = {{ value = {float(factor.value):.12g}, error = {float(factor.error):.6g} }}"
        for name, factor in calibration.factors().items()
    ]
    source = f"source = {_quoted(calibration.source)}"
    return "\n".join([source, f"rows = {calibration.rows}", f"band = {calibration.band:.6g}", *lines, ""])


def _quoted(text: str) -> str:
    """A TOML string, whatever the bytes of a file's name: JSON escapes all that TOML does but for DEL."""
    # Names of files may hold bytes that are no text; TOML takes none of them.
    whole = text.encode("utf-8", "replace").decode()
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


FITTED = ("kernels", "floor")
SURE = 0.02  # noise of a layer's time beside its own spread, in e-folds: clocks, temperature. Assumed
WIDE = 2.0  # prior of both, in e-folds: what a user's own file says of a device may be any guess
TINY = 64  # width and tokens of the narrow layer


@dataclass(frozen=True, slots=True, eq=False)
class LayerRun:
    """One layer as it was timed.

    Args:
        model: of which it is.
        cluster: one device of it.
        layout: tensor degree, micro-batch, sequence and so on of the layer.
        forward: seconds, without collectives; ``backward`` likewise.
        backward: see ``forward``.
        spread: relative standard error of their sum.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    forward: float
    backward: float
    spread: float = 0.0


def tiny(model: Model) -> Model:
    """A model of the same kind of layer, so narrow that a device is done with it before its host has issued it."""
    last = model.whole_kind
    mixer: Mixer = Attention(1, 1, TINY)
    if isinstance(last.mixer, LatentAttention):
        query = TINY if last.mixer.query else 0
        mixer = LatentAttention(1, TINY, query, TINY, TINY // 2, TINY)
    feed_forward: FeedForward | Experts = FeedForward(4 * TINY, last.is_gated)
    if last.experts:
        feed_forward = replace(last.experts, width=TINY, shared=TINY if last.experts.shared else 0)
    narrow = Kind(mixer, feed_forward)
    return replace(model, hidden=TINY, vocab=TINY, kinds=(narrow,), pattern=(0,) * model.layers)


def calibrate_layer(runs: tuple[LayerRun, ...], source: str = "") -> Calibration:
    """Fit ``kernels`` and ``floor`` to the layer, and to a narrow one beside it.

    Args:
        runs: what was timed.
        source: for reports.

    Returns:
        A calibration whose band is that of the generic model: one layer does not vouch for a whole step.
    """
    measured = np.log([run.forward + run.backward for run in runs])
    noise = np.array([np.hypot(SURE, run.spread) for run in runs])

    def predicted(at: Column) -> Column:
        return np.log([sum(layer_pass(run, corrected(at, names=FITTED))) for run in runs])

    found = posterior(one_by_one(predicted), (measured, noise), np.full(len(FITTED), WIDE), robust=False)
    silent = {name: Factor(1.0, error) for name, error in (PRIOR | {"memory": MEMORY_PRIOR}).items()}
    fitted = corrected(found.at, found.errors, FITTED).factors()
    told = {name: fitted[name] for name in FITTED}
    return replace(GENERIC, **silent | told, source=source)  # type: ignore[arg-type]


def layer_pass(run: LayerRun, factors: Calibration) -> tuple[float, float]:
    """Seconds that the model gives the forward and the backward of a layer whose collectives are left out."""
    total = layer_time(_setting(run, factors), run.model.whole_kind).total
    return float(total.forward[0]), float(total.backward[0])


def ends_pass(run: LayerRun, factors: Calibration) -> dict[str, tuple[float, float]]:
    """Seconds that the model gives the embedding, and the head with the loss."""
    setting, scale = _setting(run, factors), float(factors.kernels.value)
    times = {}
    for name, end in (("embedding", embedding_time(setting)), ("head", head_time(setting)[0])):
        times[name] = scale * float(end.forward[0]), scale * float(end.backward[0])
    return times


def _setting(run: LayerRun, factors: Calibration) -> Setting:
    # One device sends nothing: collectives of the tensor group are left out of what it is held against.
    alone = replace(factors, tensor=Factor(0.0))
    return Setting(run.model, run.cluster, columns([run.layout], run.model.layers), factors=alone)


PER_MS = 1e3  # milliseconds in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Forward and backward of one part of a model.

    Args:
        forward_ms: as timed; so too ``backward_ms``.
        error_share: relative standard error of their sum.
        estimated_forward_ms: by the generic cost model; so too ``estimated_backward_ms``.
        calibrated_forward_ms: with the factors that were fitted; so too ``calibrated_backward_ms``.
    """

    forward_ms: float
    backward_ms: float
    error_share: float
    estimated_forward_ms: float
    estimated_backward_ms: float
    calibrated_forward_ms: float
    calibrated_backward_ms: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class LayerProfile(Result):
    """A layer that was timed.

    Args:
        model: of which it is.
        gpu: against which device it is held.
        device: as the device here calls itself.
        tensor: devices that share it.
        expert: devices over which its experts are spread.
        micro_batch: samples.
        sequence: tokens in each.
        layer: as it is.
        narrow_layer: so narrow that only its launches take time.
        embedding: None if there was no room for logits; so too ``head``.
        source: what was timed.
        rows: measured rows, none.
        factors: of the calibration.
        calibration: the file that holds them.
        evidence: ``measured``.
    """

    schema: ClassVar[str] = "profile/1"

    model: str
    gpu: str
    device: str
    tensor: int
    expert: int
    micro_batch: int
    sequence: int
    layer: PassTimes
    narrow_layer: PassTimes
    embedding: PassTimes | None = field(metadata=SPARSE)
    head: PassTimes | None = field(metadata=SPARSE)
    source: str
    rows: int
    factors: Mapping[str, FactorValue]
    calibration: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a forward and a backward, and the relative standard error of their sum."""

    forward: float
    backward: float
    spread: float


def layer_profile(
    calibration: Calibration,
    runs: tuple[LayerRun, LayerRun],
    ends: Mapping[str, Timed],
    *,
    device: str,
    out: str,
) -> LayerProfile:
    """What was timed, beside the estimates.

    Args:
        calibration: that was fitted.
        runs: the layer, and the narrow one.
        ends: embedding and head, if they were timed; they are held against the factors and are no part of them.
        device: its name.
        out: where the factors were written.
    """
    whole, narrow = runs
    layout = whole.layout

    def row(timed: LayerRun | Timed, before: tuple[float, float], after: tuple[float, float]) -> PassTimes:
        return PassTimes(
            forward_ms=PER_MS * timed.forward,
            backward_ms=PER_MS * timed.backward,
            error_share=timed.spread,
            estimated_forward_ms=PER_MS * before[0],
            estimated_backward_ms=PER_MS * before[1],
            calibrated_forward_ms=PER_MS * after[0],
            calibrated_backward_ms=PER_MS * after[1],
        )

    before, after = ends_pass(whole, GENERIC), ends_pass(whole, calibration)
    timed_ends = {name: row(timed, before[name], after[name]) for name, timed in ends.items()}
    return LayerProfile(
        model=whole.model.name,
        gpu=whole.cluster.device.name,
        device=device,
        tensor=layout.tensor,
        expert=layout.expert,
        micro_batch=layout.micro_batch,
        sequence=layout.sequence,
        layer=row(whole, layer_pass(whole, GENERIC), layer_pass(whole, calibration)),
        narrow_layer=row(narrow, layer_pass(narrow, GENERIC), layer_pass(narrow, calibration)),
        embedding=timed_ends.get("embedding"),
        head=timed_ends.get("head"),
        source=calibration.source,
        rows=calibration.rows,
        factors=factor_values(calibration),
        calibration=out,
        evidence="measured",
    )


# How far the generic model is off in each part, in e-folds. A stage's time holds neither schedule nor traffic of
# replicas: half the noise of a step. Its F and B err in opposite directions. Hops hold what the host takes, and outside
# lie loading of data and logging too. Assumed; on eight A100 (https://arxiv.org/abs/2411.05288) slots are off by 4 %
# and shares by 12 %.
PARTS = {"slot": NOISE / 2, "share": 2 * NOISE, "hop": 0.3, "outside": 0.3}
NAMES = tuple(PRIOR)
USUAL = 1.48  # standard deviation over the median distance from the median


@dataclass(frozen=True, slots=True, eq=False)
class StageRun:
    """A run as its stages were measured.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        costs: measured durations of each kind and stage, and delays until their input has come from another rank,
            int64[kinds, stages, 1], nanoseconds; 0 for what was not measured.
        outside: seconds of a step beside its pipeline window; 0 where not known.
        overlapped: whether F and B ran together, so that what each takes alone is not known.
        source: for reports.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    costs: Costs
    outside: float = 0.0
    overlapped: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A run held against the model: which values are known to both, of which part, as measured, and how far off."""

    run: StageRun
    known: NDArray[np.bool_]
    part: NDArray[np.int64]
    target: Column  # logs
    off: Column  # of the generic model

    @property
    def noise(self) -> Column:
        """Of each value, so that a part has that of the model and of the mean of its values, however many there are."""
        # Values of a part are off together, so their mean is as uncertain as one of them; their scatter is not.
        noise = np.zeros(len(self.off))
        for number, own in enumerate(PARTS.values()):
            mine = self.part == number
            scatter = USUAL * _median(np.abs(self.off[mine] - _median(self.off[mine])))
            noise[mine] = np.sqrt(mine.sum() * own**2 + scatter**2)
        return noise

    def predicted(self, factors: Calibration) -> Column:
        """Logs of what the model says to the same values."""
        found: Column = np.log(_values(*_costs(self.run, factors), self.run.overlapped)[self.known])
        return found


def calibrate_stages(runs: Sequence[StageRun], rows: Sequence[Run] = (), source: str = "") -> Calibration:
    """Fit the factors to measured stages, and to measured steps beside them.

    Args:
        runs: measured stages; one run is enough for ``kernels``.
        rows: measured steps of other layouts, if any.
        source: what they are, for reports.

    Raises:
        InputError: a run has other stages than its layout, or no stage of it has F and B.
    """
    held = [_held(run) for run in runs]
    timed = [row for row in rows if row.seconds > 0]
    target = np.concatenate([*(one.target for one in held), np.log([row.seconds for row in timed])])
    noise = np.concatenate([*(one.noise for one in held), np.full(len(timed), NOISE)])

    def predicted(at: Column) -> Column:
        factors = corrected(at)
        return np.concatenate([*(one.predicted(factors) for one in held), np.log(predict(timed, factors)[0])])

    start, prior, kernels = _start(held), np.array(list(PRIOR.values())), NAMES.index("kernels")
    prior[kernels] = max(prior[kernels], abs(start[kernels]))  # a device that is off as a whole is so in them first
    found = likeliest(one_by_one(predicted), (target, noise), prior, start)
    whole = np.concatenate([*(one.part == 0 for one in held), np.ones(len(timed), np.bool_)])  # slots, and steps
    like = [*timed, *(Run(run.model, run.cluster, run.layout, (), run.source) for run in runs)]
    band = band_of(found, found.off[whole], linear(steps_of(like), found.at)[1])
    fitted = corrected(found.at, found.errors)
    return replace(fitted, memory=memory_of(rows), rows=len(timed), source=source, band=band)


def _held(run: StageRun) -> _Held:
    if run.costs.durations.shape[1] != run.layout.stages:
        rule = f"its layout has {run.layout.stages} stages and {run.costs.durations.shape[1]} were measured"
        raise InputError(Fault(run.source or "stages", rule, "give the pipeline and chunks with which it ran"))
    measured = _values(run.costs, run.outside, run.overlapped)
    generic = _values(*_costs(run, GENERIC), run.overlapped)
    known = (measured > 0) & (generic > 0)
    if not known[: run.layout.stages].any():
        raise InputError(Fault(run.source or "stages", "no stage has both a forward and a backward", "measure a step"))
    stages, target = run.layout.stages, np.log(measured[known])
    # In the order of ``_values``: a stage each for slots and shares, a boundary each for both ways of hops.
    part = np.repeat(np.arange(len(PARTS)), [stages, stages, 2 * stages - 2, 1])[known]
    return _Held(run, known, part, target, target - np.log(generic[known]))


def _start(held: Sequence[_Held]) -> Column:
    """What slots are made of, and hops, there where those of most stages lie."""
    at = np.zeros(len(NAMES))
    for name, number in (("kernels", 0), ("tensor", 0), ("floor", 0), ("transfer", 2)):
        at[NAMES.index(name)] = _median(np.concatenate([one.off[one.part == number] for one in held]))
    return at


def _median(values: Column) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _values(costs: Costs, outside: float, overlapped: bool) -> Column:
    """Every part one after the other: slots, shares, hops forward, hops backward, outside; 0 for what is not known."""
    forward, inputs, weight, whole = costs.durations[:, :, 0].astype(float)  # F, I, W, B
    # A trace has B, or I and W where the backward is split.
    backward = np.where(whole > 0, whole, inputs + weight)
    both = (forward > 0) & (backward > 0)
    share = np.where(both & (not overlapped), forward / np.maximum(backward, 1), 0.0)
    hops = costs.transfers[:, :, 0].astype(float)
    back = np.maximum(hops[OpKind.B], hops[OpKind.I])[:-1]
    return np.concatenate([np.where(both, forward + backward, 0.0), share, hops[OpKind.F, 1:], back, [outside]])


def _costs(run: StageRun, factors: Calibration) -> tuple[Costs, float]:
    """What the model says to a run; what lies outside only where no weights are gathered inside (ZeRO-3)."""
    costs = simulated(run.model, run.cluster, run.layout, factors)[1]
    parts = judge(run.model, run.cluster, run.layout, factors).parts
    outside = (parts.data + parts.optimizer + parts.fixed) / SECOND
    if run.layout.zero == 3:  # what is gathered inside the window cannot be told from the stages' own time
        return costs, 0.0
    return costs, outside
