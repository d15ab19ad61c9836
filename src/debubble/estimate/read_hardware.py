"""Reading hardware: a name among ``data/hardware``, or the user's own TOML file of the same form."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError, nearest
from .hardware import GIGA, Hardware

FOLDER = Path(__file__).resolve().parents[1] / "data" / "hardware"
# Field of a file -> what it is counted in.
_NEEDED = {
    "bf16_tflops": 1e12,
    "memory_gb": GIGA,
    "memory_tb_s": 1e12,
    "link_gb_s": GIGA,
}
_OTHERS = {
    *("fp8_tflops", "fp4_tflops", "vector_tflops", "units", "peer_gb_s", "domain", "nic_gb_s"),
    *("achievable", "sustained", "flash", "native"),
}
_TEXT = {"name", "also", "sources"}


def read_hardware(text: str) -> Hardware:
    """The device that a user means: a name, or a path to a TOML file.

    Raises:
        InputError: no such name (the nearest are given), or a field that a file lacks.
    """
    path = Path(text)
    if path.suffix == ".toml":
        return _from_table(_load(path), str(path))
    names = _names()
    if text.lower() not in names:
        raise nearest(text, names, "gpu")
    return _from_table(_load(FOLDER / f"{names[text.lower()]}.toml"), text)


def known_hardware() -> tuple[str, ...]:
    """Names of all devices that come with the package, sorted."""
    return tuple(sorted(_load(file)["name"] for file in FOLDER.glob("*.toml")))


@cache
def _names() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in FOLDER.glob("*.toml"):
        found |= dict.fromkeys([file.stem, *_load(file)["also"]], file.stem)
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a TOML file")) from None


def _from_table(table: dict[str, Any], where: str) -> Hardware:
    known = _NEEDED.keys() | _OTHERS
    faults = [Fault(f"{where}: {n}", "it is missing", f"add {n}") for n in _NEEDED if n not in table]
    faults += [
        Fault(f"{where}: {n}", "no device has such a figure", f"known: {', '.join(sorted(known))}")
        for n in sorted(table.keys() - known - _TEXT)
    ]
    faults += [
        Fault(f"{where}: {n} = {v!r}", "a figure is a number above 0", "correct it")
        for n, v in table.items()
        if n in known and (isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 < v < 1e9)
    ]
    if faults:
        raise InputError(*faults)
    link = table["link_gb_s"] * GIGA
    flops = {n: table[f"{n}_tflops"] * 1e12 for n in ("bf16", "fp8", "fp4") if f"{n}_tflops" in table}
    return Hardware(
        name=str(table.get("name", Path(where).stem)),
        flops=flops,
        memory=table["memory_gb"] * GIGA,
        memory_rate=table["memory_tb_s"] * 1e12,
        link=link,
        peer=table.get("peer_gb_s", table["link_gb_s"]) * GIGA,
        vector=table.get("vector_tflops", table["bf16_tflops"] / 16) * 1e12,
        units=int(table.get("units", 128)),
        achievable=table.get("achievable", 0.8),
        sustained=table.get("sustained", 0.85),
        flash=table.get("flash", 0.35),
        native=table.get("native", 0.7),
        domain=int(table.get("domain", 8)),
        nic=table.get("nic_gb_s", 50) * GIGA,
        sources={str(k): str(v) for k, v in dict(table.get("sources", {})).items()},
    )
