"""Factors of a calibration outside of the planner: as results hold them, and as TOML to be used again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError
from ..estimate.constants import GENERIC, Calibration, Factor
from .calibrate import silent_factors

LARGEST = 4_000_000  # bytes
LONGEST = 200  # characters of a source that are shown
MOST = 1e6  # no factor, nor any other number here, is that large; nor any factor one over it


@dataclass(frozen=True, slots=True)
class FactorValue:
    """A factor on what the cost model estimates.

    Args:
        value: measured over estimated.
        error: one standard deviation of it.
        told: whether what was measured says anything of it.
    """

    value: float
    error: float
    told: bool


def factor_values(calibration: Calibration) -> Mapping[str, FactorValue]:
    """Every factor by name."""
    silent = silent_factors(calibration)
    return {
        name: FactorValue(float(factor.value), float(factor.error), name not in silent)
        for name, factor in calibration.factors().items()
    }


def read_calibration(path: Path) -> Calibration:
    """Factors that were saved.

    Raises:
        InputError: what cannot be read, or is no factor.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"it has less than {LARGEST:,} bytes", "give a file of --save-calibration"))
    return _saved(raw.decode("utf-8", errors="replace"), path)


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
