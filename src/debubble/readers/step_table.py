"""A table of settings and step times: a CSV whose header names ``batch`` or ``microbatches``, and ``seconds``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..core.errors import Fault, InputError
from ..core.step_log import StepLog

MOST_ROWS = 10_000_000
_MOST_REMARKS = 50
_SECONDS = {"seconds": 1.0, "second": 1.0, "sec": 1.0, "s": 1.0, "ms": 1e-3, "milliseconds": 1e-3}
_COLUMNS = {
    "batch": {"batch", "gbs", "global_batch", "global_batch_size", "batch_size", "samples"},
    "microbatches": {"microbatches", "micro_batches", "m", "gas", "chunks", "num_microbatches"},
    "memory": {"gb", "peak_gb", "memory_gb"},
    "step": {"step", "iteration"},
}
_READ = ("seconds", "batch", "microbatches", "memory", "step")

Header = dict[str, tuple[int, float]]  # our name of a column -> its place, and its factor to seconds or bytes


def header_of(line: str) -> Header | None:
    """The columns that a first line names; None if it is no header of such a table."""
    names = [cell.strip().strip('"').lower() for cell in line.split(_separator(line))]
    found: Header = {}
    for place, name in enumerate(names):
        unit = re.split(r"[_ (]", name.rstrip(")"))[-1]
        for ours, known in _COLUMNS.items():
            if name in known:
                found[ours] = (place, 1e9 if ours == "memory" else 1.0)
        if unit in _SECONDS and "seconds" not in found:
            found["seconds"] = (place, _SECONDS[unit])
    settings = found.keys() & {"batch", "microbatches"}
    return found if settings and found.keys() & {"seconds", "memory"} else None


def read_table(header: Header, text: Iterable[str], path: Path, remarks: list[str]) -> StepLog:
    """The rows below a header; a row that holds no numbers costs itself and is said.

    Raises:
        InputError: too much of it is no table of numbers.
    """
    rows: list[list[float]] = []
    for number, line in enumerate(text, start=2):
        if not line.strip():
            continue
        cells = line.split(_separator(line))
        try:
            rows.append([_cell(cells, *header[name]) if name in header else math.nan for name in _READ])
        except (ValueError, IndexError):
            remarks.append(f"{path}: line {number} was left out: {line[:60]!r} is no row of numbers")
        if len(remarks) > _MOST_REMARKS or len(rows) > MOST_ROWS:
            raise InputError(Fault(str(path), "it is no table of step times", "give one row a setting"))
    seconds, batch, microbatches, memory, step = np.array(rows, np.float64).reshape(-1, len(_READ)).T
    ordered = "step" in header
    return StepLog(str(path), seconds, batch, microbatches, memory, step, ordered, remarks=tuple(remarks))


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


def _cell(cells: list[str], place: int, factor: float) -> float:
    text = cells[place].strip().strip('"')
    return float(text) * factor if text else math.nan
