"""Calibration from what users have: rows as CSV, logs of Megatron-LM, recordings and traces, or saved factors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..config.layout import Layout
from ..core.errors import Fault, InputError
from ..diagnosis.causes import stage_costs
from ..diagnosis.windows import summarise
from ..estimate.constants import Calibration
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..frameworks.megatron import MEGATRON
from ..planning.calibrate import calibrate
from ..planning.calibrate_stages import StageRun, calibrate_stages
from ..planning.calibration_file import read_calibration
from ..planning.runs import Planned, Run, read_runs
from ..readers.source import Ask, is_log, read, recognised
from ..readers.steplog import is_log as is_step_log
from ..readers.steplog import read_steps
from ..readers.stream import first_bytes
from .launched_layout import layout_of_run, refuse_other_model
from .log_head import HEAD, config_of_log
from .plan_options import PlanOptions
from .telling import tell

WARM_UP = 1  # first steps that are left out
FAR = 2.0  # times the estimate; beyond it a run is hardly of this model, layout and device


def calibration_of(asked: PlanOptions, model: Model, cluster: Cluster, base: Layout) -> Calibration:
    """One calibration from all files together.

    Args:
        asked: ``calibrate``, the files; ``launched`` and the degrees that traces do not tell.
        model: of which the files are.
        cluster: on which they ran.
        base: what neither files nor options say of a layout.

    Raises:
        InputError: what cannot be read, or saved factors beside other files.
    """
    paths: tuple[str, ...] = asked.calibrate
    saved = [path for path in paths if path.lower().endswith(".toml")]
    if saved and len(paths) > 1:
        raise InputError(Fault(saved[0], "factors that were saved stand alone", "give it alone, or rows and logs"))
    if saved:
        return read_calibration(Path(saved[0]))
    traces = [path for path in map(Path, paths) if _is_trace(path)]
    if asked.launched and not traces:
        raise InputError(Fault("--launched", "it says how recordings and traces were launched", "leave it out"))
    rows: list[Run] = []
    for path in map(Path, paths):
        if path not in traces and _is_log(path):
            rows.append(_of_log(path, model, cluster, base))
        elif path not in traces:
            rows += _of_table(path, model, cluster, base)
    if not traces:
        return calibrate(rows, ", ".join(paths))
    return _with_stages([_of_trace(path, asked, model, cluster, base) for path in traces], rows, ", ".join(paths))


def _with_stages(runs: list[StageRun], rows: list[Run], source: str) -> Calibration:
    found = calibrate_stages(runs, rows, source)
    kernels = float(found.kernels.value)
    if not 1 / FAR < kernels < FAR:
        tell(f"{source}: kernels take {kernels:.2g} times the estimate: were they of this model, layout and device?")
    return found


def _is_trace(path: Path) -> bool:
    """Whether it holds ops with their times: a folder, or a file of any format that ``diagnose`` reads."""
    return path.is_dir() or (path.is_file() and recognised(path) is not None and not is_log(path))


def _of_trace(path: Path, asked: PlanOptions, model: Model, cluster: Cluster, base: Layout) -> StageRun:
    """The stages of a run as ``diagnose`` measures them, and the layout with which it was launched."""
    run = read([path], Ask())
    if run.paced:
        rule = "its ops were stretched to given durations"
        raise InputError(Fault(str(path), rule, "give a run without --pace"))
    summary = summarise(run)
    layout = layout_of_run(run, summary, asked, model, base)
    schedule = summary.window.timeline.program.schedule
    return StageRun(
        model,
        replace(cluster, gpus=layout.gpus),
        layout,
        stage_costs(summary),
        outside=(summary.outside_ns or 0.0) / 1e9,
        overlapped=schedule.joined is not None,
        source=str(path),
    )


def _of_table(path: Path, model: Model, cluster: Cluster, base: Layout) -> tuple[Run, ...]:
    """The runs of a CSV; those that cannot be used are told."""
    table = read_runs(path, Planned(model, cluster, base))
    if not table.runs:
        raise InputError(*(Fault(f"{path.name}: {rows} rows", why, "correct them") for why, rows in table.left_out))
    for why, rows in table.left_out:
        tell(f"{path.name}: {rows} rows left out: {why}")
    return table.runs


def _is_log(path: Path) -> bool:
    return path.suffix.lower() != ".csv" and is_step_log(first_bytes(path, HEAD))


def _of_log(path: Path, model: Model, cluster: Cluster, base: Layout) -> Run:
    """The layout from the arguments that a log begins with, the step from the median of its steps."""
    steps, head = read_steps(path).seconds, config_of_log(path)
    missing = [MEGATRON.key(name) for name in ("pipeline", "tensor", "micro_batch") if getattr(head, name) is None]
    missing += [] if missing or head.flush else [MEGATRON.key("global_batch")]
    if missing:
        rule = f"its head does not print {', '.join(missing)}"
        raise InputError(Fault(str(path), rule, "give a log from its first line on, or rows as CSV"))
    refuse_other_model(MEGATRON, head, model, str(path))
    layout = MEGATRON.layout(head, base)
    seconds = float(np.median(steps[WARM_UP:] if len(steps) > 2 * WARM_UP else steps))
    return Run(model, replace(cluster, gpus=layout.gpus), layout, (), str(path), seconds=seconds)
