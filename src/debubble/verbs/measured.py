"""Verbs about what was measured: ``diagnose`` one run, say ``why`` one is slower than another, ``fit`` step times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import overload

from ..config.config import Config
from ..core.errors import Fault, InputError, Refusal
from ..core.observation import Observation
from ..core.units import percent
from ..diagnosis.compared import Compared
from ..diagnosis.comparison import Alone, Comparison, Series, alone, comparison_of, series, series_of
from ..diagnosis.diagnose import diagnose as examine
from ..diagnosis.diagnosis import Diagnosis, Examined, Gate, PartOfRun, diagnosis_of
from ..diagnosis.diagnosis import gate as gate_of
from ..diagnosis.fit import Fit, Sizes, fit_of
from ..diagnosis.log_run import LoggedRun
from ..diagnosis.replay import Launcher, Replay
from ..diagnosis.why import compared_run
from ..frameworks.catalog import framework_of
from ..frameworks.engines import engine_named
from ..frameworks.framework import Framework
from ..readers.distilled import distil as write_distilled
from ..readers.files import place
from ..readers.source import Ask, gather, merge
from ..readers.steplog import read_steps
from ..reconstruct.device_ops import Reading
from ..schedules.catalog import entry_of
from .arguments import Factors, Size, factors, share, size, tell
from .sources import AnyPath, Source, Steps, ask_of, config_of_log, paths_of, read_runs


def launcher_of(framework: str | None, config: Config | None = None) -> Launcher | None:
    """What a framework runs; None if nobody said which one it is.

    Args:
        framework: as ``--framework`` names it; None for what the run's own configuration says.
        config: of the run, if there is one: what it says is asked of the framework's rules together with each change.

    Raises:
        InputError: no framework has this name.
    """
    name = framework
    if name is None and config is not None:
        name = config.framework
    if name is None:
        return None
    runs = framework_of(name)
    own = None
    if config is not None and config.framework == runs.name:
        own = config  # keys of another framework would be asked of rules that do not know them
    return Launcher(runs.title, frozenset(runs.schedules), _refusal_by(runs, own))


def _refusal_by(framework: Framework, config: Config | None) -> Callable[[Replay, Replay], str]:
    """Why a framework refuses a changed run, by a rule that the run as it is does not break; empty if it takes it."""

    def refusal(run: Replay, changed: Replay) -> str:
        base = config or _sizes(run)
        try:
            # A law that the run breaks already is none of the change's: it ran all the same.
            before = framework.broken(base).laws
            asked = framework.with_schedule(_changed(base, run, changed), changed.name or "1f1b")
            breaches = [each for each in framework.broken(asked).faults if each.law not in before]
        except InputError as error:
            return f"{framework.title} cannot be told: {error.faults[0].rule}"
        if not breaches:
            return ""
        return f"{framework.title} refuses it: {framework.worded(breaches[0].rule)}"

    return refusal


def _sizes(run: Replay) -> Config:
    """A measured run as a configuration: what its ops tell."""
    return Config(
        name="run",
        pipeline=run.schedule.ranks,
        data=run.data,
        chunks=run.chunks,
        microbatches=run.schedule.microbatches,
        micro_batch=run.micro_batch,
        schedule=run.name,
    )


def _changed(config: Config, run: Replay, changed: Replay) -> Config:
    """A configuration with the sizes that a change gives it; what follows from them is worked out anew."""
    new: dict[str, int | None] = {}
    # None is absent: a split over other ranks is worked out anew, not kept.
    if changed.schedule.ranks != run.schedule.ranks:
        new |= {"pipeline": changed.schedule.ranks, "data": changed.data, "split": None, "first": None, "last": None}
    if changed.chunks != run.chunks:
        new |= {"chunks": changed.chunks, "chunk_layers": None, "split": None}
    if changed.micro_batch != run.micro_batch:
        new |= {"micro_batch": changed.micro_batch}
    if changed.schedule.microbatches != run.schedule.microbatches:
        new |= {"microbatches": changed.schedule.microbatches}
    known = config.known()
    if "local_batch" in known:  # torchtitan's and DeepSpeed's word for the micro-batches of one replica together
        grown = changed.schedule.microbatches * (changed.micro_batch or 1)
        grown_from = run.schedule.microbatches * (run.micro_batch or 1)
        new |= {"local_batch": round(config.number("local_batch") * grown / grown_from)}
    if "global_batch" in known and changed.batch != 1:
        new |= {"global_batch": round(config.number("global_batch") * changed.batch)}
    return config.changed(**new)


Runs = Observation | AnyPath | Sequence[AnyPath]


@overload
def diagnose(
    run: Runs,
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    expect: str | None = None,
    gate: str | float | None = None,
    strict: bool = False,
    framework: str | None = None,
    engine: str | None = None,
    distil: None = None,
) -> Diagnosis: ...
@overload
def diagnose(
    run: Runs,
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    expect: str | None = None,
    gate: str | float | None = None,
    strict: bool = False,
    framework: str | None = None,
    engine: str | None = None,
    distil: AnyPath,
) -> Diagnosis | PartOfRun: ...
def diagnose(
    run: Runs,
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    expect: str | None = None,
    gate: str | float | None = None,
    strict: bool = False,
    framework: str | None = None,
    engine: str | None = None,
    distil: AnyPath | None = None,
) -> Diagnosis | PartOfRun:
    """Say how big the bubble of a measured run is, when its ranks idle, why, and what would help.

        >>> found = debubble.diagnose("traces/")
        >>> found.idle_share, found.causes[1].cost_ms, found.findings[0].remedy

    Args:
        run: an observation, a recording, a trace, a table of ops, a folder of them, or several of one run.
        ranks: positions in the pipeline, if the files do not tell.
        data: data-parallel replicas, if they do not tell.
        chunks: stages on a rank, if they do not tell.
        steps: the first and the last to use, as in ``10:20``.
        columns: what a table's columns are called, ours to theirs: ``"rank=worker,.."``.
        ray: read the ranks of recordings, Kineto and Chrome traces as Ray tasks.
        expect: the schedule that was asked for; the gate fails if another one ran.
        gate: the most that the run may idle, as in ``30%``; the gate fails above.
        strict: the gate fails if ranks are missing.
        framework: who will run what is advised; what it does not run stands apart.
        engine: that executed it, as in ``megatron-overlap``; None for the one that fits, if hops cost enough to tell.
        distil: a folder for the traces as small tables; several hosts may write into one.

    Returns:
        The diagnosis; what was distilled if that is not all of a run and cannot be diagnosed alone.

    Raises:
        InputError: nothing is there, nothing of it is known, or no step is complete.
        Refusal: there is no pipeline in it.
    """
    limit = None
    if gate is not None:
        limit = share(gate, "gate")  # before anything is read: traces may take minutes
    if expect is not None:
        expect = entry_of(expect).name
    launcher = launcher_of(framework)
    executed = None
    if engine is not None:
        executed = engine_named(engine)
    asked = ask_of(ranks=ranks, data=data, chunks=chunks, steps=steps, columns=columns, ray=ray)
    measured = run if isinstance(run, Observation) else _observed(paths_of(run), asked, distil)
    if isinstance(measured, PartOfRun):
        return measured
    found = examine(measured, expect, launcher, executed)
    if limit is None and expect is None and not strict:
        return diagnosis_of(found)  # nothing was asked that could fail
    reasons = _unexpected(found, expect)
    if strict:
        reasons += _missing(found)
    return diagnosis_of(found, gate_of(reasons, limit, found.summary.idle_share))


def _observed(paths: Sequence[Path | str], asked: Ask, folder: AnyPath | None) -> Observation | PartOfRun:
    """What was measured; what was distilled if that cannot be merged alone."""
    gathered = gather(paths, asked)  # once, for both: traces of thousands of ranks are not read twice
    if folder is None:
        return merge(gathered, asked)
    distilled = _distil(gathered, fspath(folder))
    try:
        return merge(gathered, asked)
    except (InputError, Refusal) as error:
        # One host of many holds ranks of which no window is whole: that is no fault of what it gave.
        return replace(distilled, reason=f"recorded; alone these ranks cannot be diagnosed: {error}")


def _distil(gathered: Reading | Observation, folder: str) -> PartOfRun:
    if not isinstance(gathered, Reading):
        rule = "what was given is a recording already"
        raise InputError(Fault(f"--distil {folder}", rule, "leave --distil out, or give traces"))
    written = write_distilled(gathered, Path(folder))
    # Said in bytes: what hosts write is sent over a network before it is merged.
    size = sum(path.stat().st_size for path in written)
    tell(f"wrote {folder}: {len(written)} ranks, {size:,} bytes")
    return PartOfRun(folder=folder, ranks=len(written), bytes=size, reason="")


def _unexpected(found: Examined, expect: str | None) -> list[str]:
    # An order that a search found has the name of what was searched for, and that of what it is.
    if expect is None or expect in (found.order.name, found.order.searched):
        return []
    return [f"The order that ran is {found.order}, not {expect}."]


def _missing(found: Examined) -> list[str]:
    """Ranks that were not measured."""
    run = found.run
    if run.missing:
        return [f"Ranks are missing: {', '.join(map(str, run.missing))}."]
    if run.torn:  # they talk to ranks of which there is no file
        return [f"Ranks are missing beside rank {', '.join(map(str, run.torn))}."]
    return []


@overload
def why(
    a: Source,
    b: Source,
    /,
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    micro_batch: int | None = None,
    gate: str | float | None = None,
    framework: str | None = None,
    engine: str | None = None,
) -> Comparison: ...
@overload
def why(
    *runs: Source,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    micro_batch: int | None = None,
    gate: str | float | None = None,
    framework: str | None = None,
    engine: str | None = None,
) -> Comparison | Series | Alone: ...
def why(
    *runs: Source,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
    micro_batch: int | None = None,
    gate: str | float | None = None,
    framework: str | None = None,
    engine: str | None = None,
) -> Comparison | Series | Alone:
    """Say why run b is slower (or faster) than run a, and what to change; of one run alone, what its bubble costs it.

        >>> debubble.why("four.toml", "eight.toml").bubble_explains_ratio

    Args:
        runs: one or more, each an observation, a job TOML, a launch script or configuration, a recording, traces, or a
            log of steps; one TOML with ``[[run]]`` tables is a series.
        ranks: positions in the pipeline, if traces and logs do not tell.
        data: data-parallel replicas, likewise.
        chunks: stages on a rank, likewise.
        steps: the first and the last to use, as in ``10:20``.
        columns: what a table's columns are called, ours to theirs.
        ray: read the ranks of recordings, Kineto and Chrome traces as Ray tasks.
        micro_batch: samples in one micro-batch, which logs do not tell.
        gate: the gate fails if b is slower by more than this, as in ``3%``.
        framework: who will run what is advised.
        engine: who executed the runs that do not say it themselves; of a recording, None for the one that fits.

    Returns:
        The comparison; a series if there are more than two runs; what can be said of one alone.

    Raises:
        InputError: a run that cannot be, or too little to say anything: every key that is missing.
    """
    limit = None
    if gate is not None:
        limit = share(gate, "gate")  # before anything is read: traces may take minutes
    if engine is not None:
        engine_named(engine)  # a name that nobody has, before anything is read
    asked = ask_of(ranks=ranks, data=data, chunks=chunks, steps=steps, columns=columns, ray=ray)
    read = read_runs(runs, asked, micro_batch)
    # The last is the run in question: what is advised is advised for it.
    last = read[-1].what
    launcher = launcher_of(framework, _launched(last))
    if len(read) == 1:
        if limit is not None:
            rule = "one run alone is neither slower nor faster"
            raise InputError(Fault("--gate", rule, "give a second run, or debubble diagnose --gate"))
        return alone(compared_run(last, engine), read[0].fit, launcher)
    compared = series([run.what for run in read], launcher, engine)
    passes = None
    if limit is not None:
        passes = _gate(compared, limit)
    fits = [run.fit for run in read if run.fit is not None]
    if len(compared) == 1:  # two runs; of more, each is compared with the first
        return comparison_of(compared[0], fits, passes)
    return series_of(compared, fits, passes)


def _launched(run: Config | Observation | LoggedRun) -> Config | None:
    """The configuration of a run, if there is one: a trace has none."""
    if isinstance(run, LoggedRun):
        return run.job
    return run if isinstance(run, Config) else None


def _gate(compared: Sequence[Compared], limit: float) -> Gate:
    """Whether no run is slower than the first by more than a limit.

    Raises:
        InputError: there is no throughput to hold against it.
    """
    # A gate that cannot be judged must not pass: CI would take silence for a yes.
    blind = [each.b.name for each in compared if each.ratio is None]
    if blind:
        rule = "there is no throughput to hold against it"
        raise InputError(Fault(f"gate, {', '.join(blind)}", rule, "state measured.tokens_per_second of both runs"))
    reasons = []
    for each in compared:
        if each.ratio is not None and 1 - each.ratio.value > limit:
            lost = percent(1 - each.ratio.value)
            reasons.append(f"{each.b.name} is slower by {lost}, more than {percent(limit)}.")
    return Gate(limit_share=limit, idle_share=None, passed=not reasons, reasons=tuple(reasons))


def fit(
    file: str | PathLike[str],
    *,
    ranks: int | None = None,
    data: int | None = None,
    micro_batch: int | None = None,
    constant_batch: bool = False,
    forecast: Factors = (),
    capacity: Size | None = None,
) -> Fit:
    """Fit step times to micro-batches, and say what of a step is bubble and what is fixed.

        >>> found = debubble.fit("train.log", ranks=4, data=8, micro_batch=1)
        >>> found.phases, found.slot_ms, found.bubble_ms, found.verdict[0]

    step = fixed + (m + p - 1) x slot. No number is given if no line holds: a run that has phases or a trend, a slope
    below zero, settings that the line misses by more than a tenth; the verdict says which.

    Args:
        file: a training log, or a CSV with the columns ``batch`` or ``microbatches``, and ``seconds`` (or ``gb``).
        ranks: of the pipeline, if the log does not begin with them.
        data: data-parallel replicas; with ``micro_batch`` they turn batches into micro-batches.
        micro_batch: samples in one micro-batch.
        constant_batch: all rows share one batch; micro-batches cut it finer.
        forecast: settings to foretell, in the unit of the file.
        capacity: memory of a device, as in ``80GB``: says which settings fit.

    Raises:
        InputError: no step time is in the file, or sizes are missing, contradict the file or do not divide its batches.
    """
    path = place(file if isinstance(file, str) else Path(file))  # text may be an address, as s3://bucket/train.log
    # A log that begins with its arguments needs no options, and must not be contradicted by them.
    head = config_of_log(path)
    sizes = _agreed(
        path,
        {"ranks": head.pipeline, "data": head.replicas, "micro_batch": head.micro_batch},
        {"ranks": ranks, "data": data, "micro_batch": micro_batch},
    )
    limit = None
    if capacity is not None:
        limit = size(capacity, "--capacity")
    foretold = factors(forecast, "--forecast")
    return fit_of(read_steps(path), Sizes(**sizes, constant_batch=constant_batch), forecast=foretold, capacity=limit)


def _agreed(path: Path, own: dict[str, int | None], given: dict[str, int | None]) -> dict[str, int | None]:
    """Ranks, replicas and samples of a micro-batch, as the log begins with them or as the options say.

    Raises:
        InputError: nothing says how many ranks there are, or an option contradicts the log.
    """
    faults = []
    for name, value in own.items():
        said = given[name]
        # Not overruled: either the option or the file is of another run, and nobody here knows which.
        if value and said and value != said:
            option = f"--{name.replace('_', '-')} {said}"
            faults.append(Fault(option, f"{path} says {value} of itself", "leave it out"))
    if not own["ranks"] and not given["ranks"]:
        rule = "nothing says how many ranks its pipeline has"
        faults.append(Fault(str(path), rule, "give --ranks, or a log from its first line on"))
    if faults:
        raise InputError(*faults)
    return {name: given[name] or value for name, value in own.items()}
