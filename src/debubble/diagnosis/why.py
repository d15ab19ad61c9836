"""Why: the throughput of two runs as a product of factors, and how much of their ratio the bubble explains.

    throughput of b / throughput of a  =  gpus  x  window  x  busy  x  work rate
                                       =  bubble explains  x  left over

gpus: of b over of a. window: share of a step that is pipeline window, where both were measured. busy: share of it with
F, I, W, B work. work rate: what is left, the work done in a busy second of a GPU. "Bubble explains" is gpus times the
ratio of the busy shares of the two *schedules themselves*: what would have happened had only their own idle changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import PurePath

import numpy as np

from ..config.config import Config
from ..config.derive import settled
from ..core.costs import Costs, Rates, costs_of
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.observation import Observation
from ..core.schedule import KINDS, Schedule
from ..core.simulate import simulate
from ..frameworks.engines import engine_named, engine_of, executing, implied_engine
from ..schedules.catalog import build
from .causes import causes, summarise
from .compared import (
    MFU,
    MICROBATCHES,
    PER_GPU,
    SAMPLES,
    SECOND,
    STEPS,
    TFLOPS,
    TOKENS,
    TOKENS_OF_A_GPU,
    UNITS,
    Ask,
    Bounds,
    Compared,
    ComparedRun,
    Figure,
)
from .evidence import slow_ranks, work_of
from .log_run import LoggedRun
from .order import Own, own, rates, recognise, shape
from .remedies import measured_remedies, remedies
from .replay import MOST_OPS_TRIED, Launcher, Remedies, Replay, replayed


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


def remedies_of(run: ComparedRun, launcher: Launcher | None = None) -> Remedies:
    """What would make a run faster, the same as ``diagnose`` offers; nothing if no change may be tried on it.

    Args:
        run: that is to be changed.
        launcher: who will run what is advised; None if nobody knows.
    """
    if run.replay is None or not run.replay_fits:
        return Remedies()
    if run.observation is None or run.summary is None:
        return remedies(run.replay, (), launcher)
    slow = slow_ranks(work_of(run.summary))
    return measured_remedies(run.observation, run.summary, run.replay, slow, launcher)[0]


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
        if len(schedule) <= 2 * MOST_OPS_TRIED:
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
    most = MOST_OPS_TRIED
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


LONG_HOP = 10  # windows: a hop that costs more than all else together


def why(
    first: Config | Observation | LoggedRun,
    second: Config | Observation | LoggedRun,
    *,
    changes: bool = True,
    launcher: Launcher | None = None,
    engine: str | None = None,
) -> Compared:
    """Compare two runs.

    Args:
        first: what is compared with.
        second: the run in question.
        changes: also try remedies of the second.
        launcher: the framework that will run what is advised; None if nobody knows.
        engine: as ``compared_run`` takes it, for both.

    Raises:
        InputError: a side that cannot be, or too little to say anything: every key that is missing.
    """
    a, b = compared_run(first, engine), compared_run(second, engine)
    unit, ratio = _ratio(a, b)
    # Without the number of devices both are compared device by device, and it is asked for.
    gpus = b.gpus / a.gpus if a.gpus and b.gpus else None
    explains = _explains(a, b, gpus)
    asks = tuple(_asks(a, b, ratio))
    if ratio is None and explains is None:
        raise InputError(*(Fault(f"{ask.side}: {ask.key} is missing", ask.reason, f"state {ask.key}") for ask in asks))
    factors, evidence = _factors(a, b, gpus, ratio)
    return Compared(
        a=a,
        b=b,
        unit=unit,
        ratio=ratio,
        factors=factors,
        busy_evidence=evidence,
        explains=explains,
        remedies=remedies_of(b, launcher) if changes else Remedies(),
        tie_hop_ns=_tie_hop(a, b),
        asks=asks,
    )


def _ratio(a: ComparedRun, b: ComparedRun) -> tuple[str | None, Figure | None]:
    """Throughput of b over that of a in the most telling unit that both have, and the unit."""
    # What was seen of both; else what was simulated of both. Never one of each.
    for here, there in ((a.speeds, b.speeds), (a.predicted, b.predicted)):
        for unit in UNITS:
            if unit in here and unit in there:
                return unit, _of_whole_run(unit, a, b, here[unit], there[unit])
    return None, None


def _of_whole_run(unit: str, a: ComparedRun, b: ComparedRun, here: Figure, there: Figure) -> Figure:
    # Rates of one device, or a share of its peak, are brought to the whole run.
    both = b.gpus / a.gpus if unit in PER_GPU and a.gpus and b.gpus else 1.0
    evidence = here.evidence if here.evidence == there.evidence else f"{here.evidence} and {there.evidence}"
    return Figure(both * there.value / here.value, evidence)


def _explains(a: ComparedRun, b: ComparedRun, gpus: float | None) -> Bounds | None:
    if a.own is None or b.own is None:
        return None
    (low_a, high_a), (low_b, high_b) = a.own.busy, b.own.busy
    return (gpus or 1) * low_b / high_a, (gpus or 1) * high_b / low_a


def _factors(a: ComparedRun, b: ComparedRun, gpus: float | None, ratio: Figure | None) -> tuple[dict[str, float], str]:
    if ratio is None:
        return {}, ""
    factors = {} if gpus is None else {"gpus": gpus}
    here, there = _busy(a, b)
    windows = (a.window_share, b.window_share)
    if here is not None and there is not None:
        if here.evidence == there.evidence == "measured" and windows[0] and windows[1]:
            factors["window"] = windows[1] / windows[0]
        factors["busy"] = there.value / here.value
    factors["work_rate"] = ratio.value / prod(factors.values())
    return factors, here.evidence if here is not None and "busy" in factors else ""


def _busy(a: ComparedRun, b: ComparedRun) -> tuple[Figure | None, Figure | None]:
    """Busy shares of one kind for both: stated or measured where both have them, else those of their schedules."""
    if a.busy is not None and b.busy is not None:
        return a.busy, b.busy
    return _schedules_busy(a), _schedules_busy(b)


def _schedules_busy(run: ComparedRun) -> Figure | None:
    if run.causes is not None and run.summary is None:
        return Figure(run.causes.ideal / run.causes.window, "simulated")
    if run.own is not None and run.own.known:
        return Figure(run.own.busy[0], run.own.evidence)
    return None


def _asks(a: ComparedRun, b: ComparedRun, ratio: Figure | None) -> list[Ask]:
    asks = []
    for run in (a, b):
        if ratio is None:
            asks.append(Ask(run.name, "measured.tokens_per_second", "what was seen (or step, or tflops_per_gpu)"))
        if run.job.pipeline is None:
            asks.append(Ask(run.name, "pipeline", "how long a pipeline is, which bounds its bubble"))
        elif run.own is not None and not run.own.known:
            asks.append(
                Ask(run.name, "microbatches", "how many travel through a pipeline in a step: it sets the bubble")
            )
        if run.gpus is None:
            asks.append(Ask(run.name, "gpus", "how many GPUs took part; until then both are compared GPU by GPU"))
    changed = (a.job.microbatches, a.job.data) != (b.job.microbatches, b.job.data)
    for run in (a, b):
        if changed and run.job.micro_batch is None and run.job.microbatches is not None:
            asks.append(Ask(run.name, "micro_batch", "the samples it holds tell whether the global batch changed"))
    return asks


def _tie_hop(a: ComparedRun, b: ComparedRun) -> float | None:
    """The hop, equal in both, from which b is no longer faster, all else as stated; None where no hop does that."""
    unit = next((unit for unit in UNITS if unit in a.predicted and unit in b.predicted), None)
    if unit is None or a.causes is None:
        return None
    if not isinstance(a.job.transfer, float) or not isinstance(b.job.transfer, float):
        return None  # not stated, or each link has its own
    now = b.predicted[unit].value / a.predicted[unit].value
    now *= _window_at(b, b.job.transfer) / _window_at(a, a.job.transfer)

    def faster(hop: float) -> bool:
        return now * _window_at(a, hop) > _window_at(b, hop)

    low, high = 0.0, float(LONG_HOP * a.causes.window)
    if not faster(low) or faster(high):
        return None
    # To the nanosecond: windows are whole ones.
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if faster(middle) else (low, middle)
    return high


def _window_at(run: ComparedRun, hop: float) -> int:
    """The simulated window of a job with another hop, nanoseconds."""
    if run.timeline is None or run.replay is None:
        return 0
    program = run.timeline.program
    transfers = np.full((KINDS, program.schedule.stages, 1), round(hop), np.int64)
    return simulate(program, Costs(run.replay.costs.durations, transfers)).makespan
