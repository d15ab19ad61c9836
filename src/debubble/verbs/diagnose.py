"""``diagnose``: how big the bubble of a measured run is, when its ranks idle, why, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import fspath
from pathlib import Path
from typing import overload

from ..core.errors import Fault, InputError, Refusal
from ..core.observation import Observation
from ..diagnosis.diagnose import diagnose as examine
from ..diagnosis.diagnosis import Diagnosis, Examined, PartOfRun, diagnosis_of
from ..diagnosis.diagnosis import gate as gate_of
from ..frameworks.engines import engine_named
from ..readers.distilled import distil as write_distilled
from ..readers.source import Ask, gather, merge
from ..reconstruct.device_ops import Reading
from ..schedules.catalog import entry_of
from .arguments import share
from .launcher import launcher_of
from .sources import AnyPath, Steps, ask_of, paths_of
from .telling import tell

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
