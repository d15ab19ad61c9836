"""``why``: the throughput of two or more runs, factored, with what the bubble explains and what it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from ..config.config import Config
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..core.units import percent
from ..diagnosis.compared import Compared
from ..diagnosis.comparison import Alone, Comparison, Series, alone, comparison_of, series, series_of
from ..diagnosis.diagnosis import Gate
from ..diagnosis.log_run import LoggedRun
from ..diagnosis.why import compared_run
from ..frameworks.engines import engine_named
from .arguments import share
from .launcher import launcher_of
from .sources import Source, Steps, ask_of, read_runs


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
