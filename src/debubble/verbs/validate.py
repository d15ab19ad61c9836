"""``validate``: the planner held against measured runs of one's own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path

from ..core.errors import Fault, InputError
from ..core.safe_output import replacing
from ..planning.runs import GIB, RunTable, read_runs
from ..planning.validate import ScoredRun, Validation
from ..planning.validate import validate as score_tables
from .arguments import together

# Columns as a table of runs has them, so that what is written can be read again; ours are last.
_HEAD = (
    *("set", "source", "model", "gpu", "gpus", "framework", "precision", "tensor", "pipeline", "data", "context"),
    *("expert", "chunks", "schedule", "micro_batch", "microbatches", "sequence", "recompute", "zero", "status"),
    *("step_seconds", "predicted_step_seconds", "error_percent", "peak_gib", "predicted_peak_gib", "time_doubt"),
)


def validate(*tables: str | PathLike[str], rows: str | PathLike[str] | None = None) -> Validation:
    """Hold the planner against tables of measured runs; each is a set by itself.

        >>> debubble.validate("runs.csv").sets[0].mape_percent

    Nothing is fitted on rows that are tested: calibrated errors are means over 20 draws of 5 rows, tested on the rest.

    Args:
        tables: CSV files, or folders of them, in the form that the documentation of ``validate`` gives.
        rows: where to write every run, predicted beside measured, as CSV.

    Raises:
        InputError: what cannot be read; all faults of all tables at once.
    """
    paths = list(_files(tables))
    readable: list[RunTable] = together(*(partial(read_runs, path) for path in paths))
    found, runs = score_tables(readable)
    if rows is not None:
        with replacing(Path(rows)) as stream:
            stream.write(rows_as_csv(runs).encode())
    return found


def _files(tables: Sequence[str | PathLike[str]]) -> Iterator[Path]:
    """Every CSV that is named, or lies in a folder that is."""
    if not tables:
        raise InputError(Fault("RUNS.csv", "it is required", "give tables of measured runs"))
    for path in map(Path, tables):
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.glob("*.csv"))  # so that sets come in one order on every file system
        if not inside:
            raise InputError(Fault(str(path), "it holds no CSV file", "give tables of measured runs"))
        yield from inside


def rows_as_csv(runs: Sequence[ScoredRun]) -> str:
    """Predicted beside measured, one line a run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for scored_run in runs:
        run, layout = scored_run.run, scored_run.run.layout
        error = ""
        if run.seconds:  # a run that did not fit has no step to be off
            error = f"{100 * (scored_run.step_seconds / run.seconds - 1):.2f}"
        cells = {
            **{name: getattr(layout, name) for name in _HEAD if hasattr(layout, name)},
            "set": scored_run.set,
            "source": run.source,
            "model": run.model.name,
            "gpu": run.cluster.device.name,
            "framework": run.framework,
            "status": run.status,
            "step_seconds": _figure(run.seconds),
            "predicted_step_seconds": _figure(scored_run.step_seconds),
            "error_percent": error,
            "peak_gib": _figure(run.memory / GIB),
            "predicted_peak_gib": _figure(scored_run.peak_bytes / GIB),
            "time_doubt": run.time_doubt,
        }
        writer.writerow([cells[name] for name in _HEAD])
    return text.getvalue()


def _figure(value: float) -> str:
    """Empty for what was not measured: a table has no other word for it."""
    return f"{value:.6g}" if value else ""
