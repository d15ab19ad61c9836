"""A run that is compared: what ``why`` needs to know of it, the same for stated, logged and measured ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from ..config.config import Config
from ..config.derive import settled
from ..core.bounds import lower_bound
from ..core.costs import Rates, costs_of
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.observation import Observation
from ..core.program import Timeline
from ..core.schedule import Kind, Schedule, peak_activations
from ..core.simulate import simulate
from ..frameworks.engines import engine_named, engine_of, executing, implied_engine
from ..schedules.catalog import build
from .causes import Causes, causes, fitted
from .edits import MOST_OPS, Replay
from .engine_fit import replayed
from .evidence import slow_ranks, work_of
from .log_run import History, LoggedRun
from .order import Own, halved, own, rates, recognise, shape
from .remedies import Launcher, Remedies, measured_remedies, remedies
from .windows import Summary, summarise

SECOND = 1e9  # nanoseconds

# Units in which two runs can be compared, the most telling first.
TOKENS, SAMPLES = "tokens per second", "samples per second"
TOKENS_OF_A_GPU = "tokens per second of a GPU"
TFLOPS, MFU = "model TFLOP/s", "model FLOP utilisation"
MICROBATCHES, STEPS = "micro-batches per second", "steps per second"
UNITS = (TOKENS, SAMPLES, TOKENS_OF_A_GPU, TFLOPS, MFU, MICROBATCHES, STEPS)
PER_GPU = (TOKENS_OF_A_GPU, TFLOPS, MFU)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from.

    Args:
        value: in the unit that its place says.
        evidence: ``exact``, ``simulated``, ``measured``, ``estimated`` or ``stated``.
    """

    value: float
    evidence: str


def stated_speeds(job: Config) -> dict[str, Figure]:
    """Throughput as stated or logged, and what follows: of the whole run, or per GPU for the units in ``PER_GPU``."""
    return {unit: Figure(value, job.evidence) for unit, value in _stated(job)}


def speeds_of_step(job: Config, step_ns: float, evidence: str, tokens: float | None = None) -> dict[str, Figure]:
    """Throughput that follows from the length of a step.

    Args:
        job: sizes of the batch, where known.
        step_ns: nanoseconds.
        evidence: of the length.
        tokens: in a step; None for samples x sequence.
    """
    return {unit: Figure(value, evidence) for unit, value in _of_step(job, step_ns / SECOND, tokens)}


def _stated(job: Config) -> Iterator[tuple[str, float]]:
    if job.step:
        yield from _of_step(job, job.step / SECOND, None)
    samples = job.samples_per_second
    if samples is None and job.tokens_per_second is not None and job.sequence is not None:
        samples = job.tokens_per_second / job.sequence
    if samples is not None:
        yield SAMPLES, samples
        if job.micro_batch is not None:
            yield MICROBATCHES, samples / job.micro_batch
        if job.sequence is not None:
            yield TOKENS, samples * job.sequence
    as_said = (
        (TOKENS, job.tokens_per_second),
        (TOKENS_OF_A_GPU, job.tokens_per_second_per_gpu),
        (TFLOPS, job.tflops_per_gpu),
        (MFU, job.mfu),
    )
    for unit, value in as_said:
        if value is not None:
            yield unit, value


def _of_step(job: Config, seconds: float, tokens: float | None) -> Iterator[tuple[str, float]]:
    # Steps are no measure of work, and come last among the units: they serve if nothing else is known.
    yield STEPS, 1 / seconds
    if job.microbatches is not None and job.data is not None:
        yield MICROBATCHES, job.microbatches * job.data / seconds
    if job.global_batch is not None:
        yield SAMPLES, job.global_batch / seconds
        if tokens is None and job.sequence is not None:
            tokens = job.global_batch * job.sequence
    if tokens is not None:
        yield TOKENS, tokens / seconds


MOST_SIMULATED = 1_000_000  # ops of a job whose durations are stated
ROUNDED = 0.001  # people state a utilisation to a tenth of a per cent


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One of the runs that are compared.

    Args:
        name: what reports call it.
        job: its sizes, and what was stated of it.
        own: the schedule's own idle time; None where the pipeline is not known.
        speeds: throughput by unit, stated or measured.
        predicted: throughput by unit, simulated from stated durations.
        busy: share of GPU time with F, I, W, B work, stated or measured; None where neither.
        window_share: share of the step that is pipeline window; None where it was not measured.
        timeline: measured (the median window), or simulated from stated durations; None where neither.
        causes: of that timeline.
        replay: what changes are tried on; None where the order is not known.
        outside_ns: what a step holds beside its pipeline window.
        observation: what was measured; None for a stated job.
        summary: of all its windows.
        history: of its steps, if a log tells of it.
        remarks: what was left out of a measurement or repaired, a sentence each.
    """

    name: str
    job: Config
    own: Own | None
    speeds: dict[str, Figure] = field(default_factory=dict)
    predicted: dict[str, Figure] = field(default_factory=dict)
    busy: Figure | None = None
    window_share: float | None = None
    timeline: Timeline | None = None
    causes: Causes | None = None
    replay: Replay | None = None
    outside_ns: float = 0
    observation: Observation | None = None
    summary: Summary | None = None
    history: History | None = None
    remarks: tuple[str, ...] = ()

    @property
    def gpus(self) -> int | None:
        """Devices of the whole run."""
        return self.job.gpus

    @property
    def measured(self) -> bool:
        """Whether it was measured op by op, not stated."""
        return self.summary is not None

    @property
    def replay_fits(self) -> bool:
        """Whether changes may be tried on it: simulated again, its window is as long as it was, but for a tenth."""
        return self.replay is not None and (self.causes is None or self.causes.trusted)

    def remedies(self, launcher: Launcher | None = None) -> Remedies:
        """What would make it faster, the same as ``diagnose`` offers; nothing if no change may be tried on it."""
        if self.replay is None or not self.replay_fits:
            return Remedies()
        if self.observation is None or self.summary is None:
            return remedies(self.replay, (), launcher)
        slow = slow_ranks(work_of(self.summary))
        return measured_remedies(self.observation, self.summary, self.replay, slow, launcher)[0]

    @property
    def peak_activations(self) -> float | None:
        """Most activations that any rank holds, in micro-batches; None where the order is not known."""
        if self.replay is None:
            return None
        return float(peak_activations(self.replay.schedule).max())

    @property
    def overstated(self) -> bool:
        """Whether its stated utilisation is more than its schedule can reach."""
        if self.busy is None or self.busy.evidence != "stated" or self.own is None:
            return False
        return self.own.known and self.busy.value > self.own.busy[1] + ROUNDED

    @property
    def ceiling_ratio(self) -> float | None:
        """Throughput without any idle time over throughput as it is; None where only bounds are known."""
        if self.causes is not None:
            return (self.outside_ns + self.causes.window) / (self.outside_ns + self.causes.ideal)
        if self.own is None or not self.own.known:
            return None
        return 1 / (1 - self.own.most)

    @property
    def ceiling_barrier_ratio(self) -> float | None:
        """Throughput of the best order that ends in a barrier, for the same placement and costs, over what it is."""
        if self.timeline is None or self.causes is None:
            return None if self.own is None else self.own.barrier_ratio
        schedule = self.timeline.program.schedule
        # Of an order that splits backwards: it can be shorter, so the bound holds for those that do not as well.
        costs = fitted(self.timeline)
        split = halved(schedule)
        if split is not schedule:
            costs = replace(costs, durations=_halve_backwards(costs.durations))
        return (self.outside_ns + self.causes.window) / (self.outside_ns + lower_bound(split, costs))


def compared_run(run: Config | Observation | LoggedRun, engine: str | None = None) -> ComparedRun:
    """What is known of a run.

    Args:
        run: what was stated or measured of it.
        engine: that executed it, by name, unless a job says it itself; None for what it implies, or what fits.

    Raises:
        InputError: a job whose schedule does not exist or does not take its sizes; a measurement without a step; an
            engine that cannot run its order.
    """
    if isinstance(run, Observation):
        return _of_observation(run, engine)
    if isinstance(run, Config):
        return _of_job(settled(run), engine)
    return replace(_of_job(settled(run.job), engine), history=run.history)


def _of_job(job: Config, asked: str | None) -> ComparedRun:
    if job.transfer is not None and job.forward is None:
        rule = "a hop is long or short only beside the work of a micro-batch"
        raise InputError(Fault(f"{job.name}: transfer", rule, 'state it too, as in forward = "10ms"'))
    idle = own(job)
    schedule = _order(job)
    timeline = found = replay = None
    if schedule is not None:
        engine = _engine(job, schedule, asked)
        costs = costs_of(_all_rates(job), schedule)
        if len(schedule) <= 2 * MOST_OPS:
            replay = Replay(schedule, costs, job.schedule, micro_batch=job.micro_batch, data=job.data, engine=engine)
        if job.forward is not None or job.stage_scale:
            timeline = simulate(lower(schedule, engine), costs)
            found = causes(timeline)
    step = timeline.makespan if timeline is not None and job.forward is not None else 0
    stated = job.utilisation
    return ComparedRun(
        name=job.name,
        job=job,
        own=idle,
        speeds=stated_speeds(job),
        predicted=speeds_of_step(job, step, "simulated") if step else {},
        busy=None if stated is None else Figure(stated, "stated"),
        timeline=timeline,
        causes=found,
        replay=replay,
    )


def _engine(job: Config, schedule: Schedule, asked: str | None) -> Engine:
    """Who executes a job: as it says, else as was asked, or, where it has hops, as its configuration implies."""
    name = job.engine or asked
    if name is not None:
        return engine_of(name, schedule)
    # Without hops engines do not differ.
    implied = implied_engine(job) if job.transfer else None
    return IDEAL if implied is None else executing(schedule, implied).engine


def _order(job: Config) -> Schedule | None:
    """The order of a job's ops; None where its sizes are not known, or too large to be tried at once."""
    if job.pipeline is None or job.microbatches is None:
        return None
    size = shape(job, job.microbatches)
    most = MOST_OPS
    if job.forward is not None:  # with durations its window is the answer; without, it is only there for remedies
        most = MOST_SIMULATED
    # Counted before it is built: a job of thousands of ranks is compared by its closed form.
    if 2 * size.stages * size.units > most:
        return None
    return build(str(job.schedule), size)


def _all_rates(job: Config) -> Rates:
    return replace(rates(job), transfer=job.transfer or 0, stage_scale=job.stage_scale or ())


def _of_observation(run: Observation, engine: str | None) -> ComparedRun:
    summary = summarise(run)
    timeline = summary.window.timeline
    schedule = timeline.program.schedule
    # As diagnose has it: under the engine that fits, so that both verbs give one answer for one recording.
    asked = None if engine is None else engine_named(engine)
    again = replayed(run, summary, recognise(schedule).name, asked)
    found = None if run.torn else again.causes  # what missing ranks did is not known, nor what the order costs
    job = _sizes(run, again.replay)
    # A trace of ops alone has no step: its window is the best that is known.
    step = summary.makespan_ns if summary.step_ns is None else summary.step_ns
    return ComparedRun(
        name=job.name,
        job=job,
        own=None if found is None else Own(1 - found.most_busy, 1 - found.most_busy, "simulated"),
        speeds=speeds_of_step(job, step, "measured", run.tokens),
        busy=Figure(1 - summary.idle_share, "measured"),
        window_share=summary.makespan_ns / step if summary.step_ns is not None else None,
        timeline=timeline,
        causes=found,
        replay=None if run.torn else again.replay,
        outside_ns=summary.outside_ns or 0,
        observation=run,
        summary=summary,
        remarks=run.remarks,
    )


def _sizes(run: Observation, replay: Replay) -> Config:
    schedule, replicas = replay.schedule, replay.data or 1
    return Config(
        name=PurePath(run.source).name or run.source,
        gpus=run.gpus or schedule.ranks * replicas,
        pipeline=schedule.ranks,
        data=replicas,
        microbatches=schedule.microbatches,
        micro_batch=replay.micro_batch,
        global_batch=run.samples,
        chunks=schedule.stages // schedule.ranks,
        schedule=replay.name or "no known schedule",
    )


def _halve_backwards(durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each full backward as two halves, in the lines of I and W."""
    table = durations.copy()
    table[Kind.I] += durations[Kind.B] // 2
    # The rest, not another half: the sum stays what it was, to the nanosecond.
    table[Kind.W] += durations[Kind.B] - durations[Kind.B] // 2
    table[Kind.B] = 0
    return table
