"""Calibration files: measured rows of the user's own as CSV, and fitted factors as TOML, to be used again.

A CSV has a line of names and a line for each run; names are those of a layout or their usual short forms:

    tensor,pipeline,data,micro_batch,global_batch,sequence,recompute,step_s,memory_gb
    8,4,2,1,64,8192,none,6.61,71.2
"""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.layout import RECOMPUTE, SCHEDULES, Layout
from ..core.errors import Fault, InputError
from ..estimate.constants import GENERIC, Calibration, Factor
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from .calibrate import calibrate
from .measured import Row

LARGEST = 4_000_000  # bytes
LONGEST = 200  # characters of a source that are shown
MOST = 1e6  # no factor, nor any other number here, is that large; nor any factor one over it
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
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a file of --save-calibration")) from None
    found: dict[str, Any] = {name: _factor(table[name]) for name in GENERIC.factors() if name in table}
    found |= {name: table[name] if _is_size(table[name]) else None for name in ("rows", "band") if name in table}
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
    whole = text.encode("utf-8", "replace").decode()
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


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
