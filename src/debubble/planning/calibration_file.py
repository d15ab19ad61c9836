"""Calibration files: measured rows of the user's own as CSV, and fitted factors as TOML, to be used again.

A CSV has a line of names and a line for each run; names are those of a layout or their usual short forms:

    tensor,pipeline,data,micro_batch,global_batch,sequence,recompute,step_s,memory_gb
    8,4,2,1,64,8192,none,6.61,71.2
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..errors import Fault, InputError
from ..estimate.factors import GENERIC, Calibration, Factor
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..plan import RECOMPUTE, SCHEDULES, Layout
from .calibrate import calibrate
from .measured import Row

LARGEST = 4_000_000  # bytes
_SHORT = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "cp": "context",
    "ep": "expert",
    "vp": "chunks",
    "mbs": "micro_batch",
    "gbs": "global_batch",
    "m": "microbatches",
    "seq_len": "sequence",
    "zero_stage": "zero",
    "step_time_s": "step_s",
    "seconds": "step_s",
    "mem_gb": "memory_gb",
}
_NUMBERS = (
    "tensor",
    "pipeline",
    "data",
    "context",
    "expert",
    "chunks",
    "micro_batch",
    "microbatches",
    "sequence",
    "zero",
)
_FACTORS = tuple(f.name for f in fields(Calibration) if f.type == "Factor")


def read_calibration(path: Path, model: Model, cluster: Cluster, base: Layout) -> Calibration:
    """Factors that were saved (``.toml``), or a fit to measured rows (anything else).

    Args:
        path: the file.
        model: of which the rows are.
        cluster: on which they ran; each row's own number of devices replaces its.
        base: what rows do not say of their layout.

    Raises:
        InputError: what cannot be read; all faults of all rows at once.
    """
    if path.suffix.lower() == ".toml":
        return _saved(_text(path), path)
    return calibrate(measured_rows(path, model, cluster, base), str(path))


def measured_rows(path: Path, model: Model, cluster: Cluster, base: Layout) -> list[Row]:
    """The measured runs of a CSV; see ``read_calibration``.

    Raises:
        InputError: what cannot be read; all faults of all rows at once.
    """
    return _rows(_text(path), path, model, cluster, base)


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"it has less than {LARGEST:,} bytes", "give a few measured rows"))
    return raw.decode("utf-8", errors="replace")


def _saved(text: str, path: Path) -> Calibration:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a file of --save-calibration")) from None
    numbers = {"rows": 0, "band": GENERIC.band}
    faults, values = [], dict[str, Any]()
    for name in (*_FACTORS, *numbers):
        entry = table.get(name, numbers.get(name, {}))
        parts = list(entry.values()) if isinstance(entry, dict) else [entry]
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e6 for n in parts):
            faults.append(Fault(f"{path}: {name}", "it is a number from 0 on", "calibrate again"))
        elif name in _FACTORS:
            values[name] = Factor(float(entry.get("value", 1.0)), float(entry.get("error", 0.0)))
        else:
            values[name] = entry
    if faults:
        raise InputError(*faults)
    return replace(GENERIC, **values, source=str(table.get("source", path)))


def written(calibration: Calibration) -> str:
    """A calibration as TOML, each factor with its standard error."""
    lines = [
        f"{name} = {{ value = {float(factor.value):.12g}, error = {float(factor.error):.6g} }}"
        for name in _FACTORS
        if (factor := getattr(calibration, name))
    ]
    source = calibration.source.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(
        [f'source = "{source}"', f"rows = {calibration.rows}", f"band = {calibration.band:.6g}", *lines, ""]
    )


def _rows(text: str, path: Path, model: Model, cluster: Cluster, base: Layout) -> list[Row]:
    rows, faults = [], list[Fault]()
    for number, cells in enumerate(csv.DictReader(text.splitlines()), start=2):
        named = {
            _SHORT.get(key := (name or "").strip().lower(), key): (value or "")
            for name, value in cells.items()
            if isinstance(value, str)
        }
        try:
            rows.append(_row(named, f"{path.name} line {number}", model, cluster, base))
        except InputError as error:
            faults += error.faults
    if not rows and not faults:
        faults.append(Fault(str(path), "it holds no rows", "give a line of names and a line for each measured run"))
    if faults:
        raise InputError(*faults[:20])
    return rows


def _row(cells: dict[str, str], where: str, model: Model, cluster: Cluster, base: Layout) -> Row:
    given: dict[str, Any] = {
        name: _whole(cells[name], f"{where}: {name}") for name in _NUMBERS if cells.get(name, "").strip()
    }
    for name, words in (("recompute", RECOMPUTE), ("schedule", SCHEDULES)):
        word = cells.get(name, "").strip()
        if word and word not in words:
            raise InputError(Fault(f"{where}: {name} = {word[:40]}", f"known: {', '.join(words)}", "correct it"))
        given |= {name: word} if word else {}
    layout = replace(base, **given)
    if layout.chunks > 1 and "schedule" not in given:
        layout = replace(layout, schedule="interleaved")
    if "microbatches" not in given and cells.get("global_batch", "").strip():
        batch, unit = _whole(cells["global_batch"], f"{where}: global_batch"), layout.data * layout.micro_batch
        if batch % unit:
            rule = f"data {layout.data} x micro-batch {layout.micro_batch} = {unit} does not divide it"
            raise InputError(Fault(f"{where}: global_batch = {batch}", rule, "correct the row"))
        layout = replace(layout, microbatches=batch // unit)
    seconds, memory = (_positive(cells.get(name, ""), f"{where}: {name}") for name in ("step_s", "memory_gb"))
    size = replace(cluster, gpus=layout.gpus)
    return Row(model, size, layout, (), where, seconds=seconds, memory=memory * 1e9)


def _whole(text: str, name: str) -> int:
    if not text.strip().isdecimal() or len(text) > 12:
        raise InputError(Fault(f"{name} = {text[:40]}", "it is a whole number", "correct it"))
    return int(text)


def _positive(text: str, name: str) -> float:
    """A number above 0, or 0 where the cell is empty."""
    try:
        number = float(text or 0)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9 or (text.strip() and not number):
        raise InputError(
            Fault(f"{name} = {text[:40]}", "it is a number above 0", "correct it, or leave the cell empty")
        )
    return number
