"""Hardware: one device and its cluster, read by name from ``data/hardware`` or from the user's own TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError, nearest
from ..core.units import byte_rate, count_bytes

GIGA = 1e9
TERA = 1e12
MEBI = 2.0**20
CONTEXT = 0.7e9  # bytes that a process's CUDA context and the kernels it loads take: the usual figure
FOLDER = Path(__file__).resolve().parents[1] / "data" / "hardware"

# Words of a file that every device needs, and those that it may leave out. See ``_from_table`` for what stands in then.
NEEDED = ("bf16_tflops", "memory_gb", "memory_tb_s", "link_gb_s")
OPTIONAL = (
    *("fp8_tflops", "fp4_tflops", "tf32_tflops", "vector_tflops", "units", "memory_mib"),
    *("peer_gb_s", "domain", "nic_gb_s", "host_gb_s", "achievable", "sustained", "flash", "native"),
)
_TEXT = ("name", "also", "sources")
_LARGEST = 1e9  # no figure of a device, in the unit of its word, comes near it


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, as its vendor describes it.

    Args:
        name: as in ``data/hardware``.
        flops: peak FLOP/s of dense matrix products by precision: ``bf16``, ``fp8``, ``fp4``, ``tf32``.
        memory: bytes, as the vendor prints them.
        usable: bytes that a process can use: what the driver shows, less what a process's context takes.
        memory_rate: bytes per second to and from memory.
        link: bytes per second to all peers of its node together, one way.
        peer: bytes per second to one peer, one way; equal to ``link`` behind a switch.
        vector: FLOP/s of fp32 outside the matrix units: what products of odd widths fall back to.
        units: multiprocessors (compute units) of the device.
        achievable: the best share of ``flops`` that a large matrix product reaches.
        sustained: share of ``achievable`` that the products of whole training steps reach.
        flash: share of ``flops`` that attention reaches forward in portable kernels (FlashAttention-2).
        native: the same in kernels written for this device (FlashAttention-3, cuDNN).
        domain: devices that ``link`` joins.
        nic: bytes per second to other nodes, a device, one way.
        host_link: bytes per second to the host's memory, one way.
        sources: where each figure comes from, by its word in the file.
    """

    name: str
    flops: dict[str, float]
    memory: float
    usable: float
    memory_rate: float
    link: float
    peer: float
    vector: float
    units: int
    achievable: float
    sustained: float
    flash: float
    native: float
    domain: int
    nic: float
    host_link: float
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """FLOP/s that the products of whole steps reach in bf16."""
        return self.peak("bf16") * self.achievable * self.sustained

    def peak(self, precision: str) -> float:
        """FLOP/s of a precision; fp16 runs as bf16, fp32 outside the matrix units, as tf32 does if a device lacks it.

        fp4 and fp8 run at the next wider one that there is.
        """
        if precision == "fp4" and "fp4" in self.flops:
            return self.flops["fp4"]
        if precision in ("fp4", "fp8") and "fp8" in self.flops:
            return self.flops["fp8"]
        if precision in ("tf32", "fp32"):
            return self.flops.get(precision, self.vector)
        return self.flops["bf16"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Many of one device, and what joins them.

    Args:
        device: which.
        gpus: how many.
        gpus_per_node: how many are joined by the device's link.
        nic: bytes per second to other nodes, a device, one way.
        price: of one device for one hour, or 0.
        parts: the devices of each kind, if they are of several, in the order in which a pipeline's ranks lie on them;
            ``device`` stands for all of them then (see ``mixed_cluster``).
    """

    device: Hardware
    gpus: int
    gpus_per_node: int
    nic: float
    price: float = 0.0
    parts: tuple[Cluster, ...] = ()

    def kinds_of_ranks(self, ranks: int) -> tuple[int, ...] | None:
        """Which of ``parts`` each rank of a pipeline lies on; None if a rank would lie on two of them."""
        kinds: list[int] = []
        for kind, part in enumerate(self.parts or (self,)):
            of_kind, over = divmod(part.gpus * ranks, self.gpus)
            if over:
                return None
            kinds += of_kind * [kind]
        return tuple(kinds)


def cluster_of(device: Hardware, gpus: int, *, gpus_per_node: int | None = None, nic: float | None = None) -> Cluster:
    """A cluster of a device, by default with the node and the network that its vendor sells it with."""
    return Cluster(device, gpus, gpus_per_node or device.domain, nic or device.nic)


def mixed_cluster(parts: tuple[Cluster, ...]) -> Cluster:
    """Devices of several kinds as one cluster.

    Who looks at it as a whole sees the slowest of them, with the most memory, the smallest node and the slowest card:
    a screen that goes by it is late with some layouts and rules none out that fits.
    """
    slowest = min((part.device for part in parts), key=lambda device: device.speed)
    names = " + ".join(f"{part.gpus} x {part.device.name}" for part in parts)
    usable = max(part.device.usable for part in parts)
    memory = max(part.device.memory for part in parts)
    return Cluster(
        device=replace(slowest, name=names, usable=usable, memory=memory),
        gpus=sum(part.gpus for part in parts),
        gpus_per_node=min(part.gpus_per_node for part in parts),
        nic=min(part.nic for part in parts),
        parts=parts,
    )


def read_hardware(text: str) -> Hardware:
    """The device that a user means: a name, or a path to a TOML file.

    Raises:
        InputError: no such name (the nearest are given), or a figure that a file lacks.
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
    """Every name of a device, with the file that describes it."""
    names: dict[str, str] = {}
    for file in FOLDER.glob("*.toml"):
        names[file.stem] = file.stem
        names.update(dict.fromkeys(_load(file)["also"], file.stem))
    return names


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a TOML file")) from None


def _from_table(table: dict[str, Any], where: str) -> Hardware:
    """A device from the words of a file.

    The figures that stand in for what a file leaves out are those of today's usual data-centre devices: a peak outside
    the matrix units of 1/16 (H100: 1/15), some 128 units, the shares of A100 and H100, hosts of 8 with a card of
    400 Gb/s for each, PCIe 5 x16 to the host (63 GB/s, of which copies reach some 50).
    """
    # Vendors and resellers print bits and bytes, GB and GiB: whoever copies a figure copies its unit.
    table = {word: _in_unit(word, value) for word, value in table.items()}
    faults = _faults(table, where)
    if faults:
        raise InputError(*faults)
    flops = {}
    for precision in ("bf16", "fp8", "fp4", "tf32"):
        if f"{precision}_tflops" in table:
            flops[precision] = table[f"{precision}_tflops"] * TERA
    sources = dict(table.get("sources", {}))
    return Hardware(
        name=str(table.get("name", Path(where).stem)),
        flops=flops,
        memory=table["memory_gb"] * GIGA,
        usable=_usable(table),
        memory_rate=table["memory_tb_s"] * TERA,
        link=table["link_gb_s"] * GIGA,
        peer=table.get("peer_gb_s", table["link_gb_s"]) * GIGA,
        vector=table.get("vector_tflops", table["bf16_tflops"] / 16) * TERA,
        units=int(table.get("units", 128)),
        achievable=table.get("achievable", 0.8),
        sustained=table.get("sustained", 0.85),
        flash=table.get("flash", 0.35),
        native=table.get("native", 0.7),
        domain=int(table.get("domain", 8)),
        nic=table.get("nic_gb_s", 50) * GIGA,
        host_link=table.get("host_gb_s", 50) * GIGA,
        sources={str(word): str(source) for word, source in sources.items()},
    )


def _in_unit(word: str, value: Any) -> Any:
    """A figure in the unit of its word, where it was written with a unit of its own: ``400Gb/s``, ``96GB``.

    What cannot be read stays as it is: no figure, which is told with all other faults of the file.
    """
    if not isinstance(value, str) or word not in (*NEEDED, *OPTIONAL):
        return value
    try:
        if word.endswith("_s"):
            return byte_rate(value, word) / (TERA if word.endswith("tb_s") else GIGA)
        if word == "memory_gb":
            return count_bytes(value, word) / GIGA
        return value
    except InputError:
        return value


def _usable(table: dict[str, Any]) -> float:
    """Bytes that a process can use.

    Vendors print 80 GB for a device of which the driver shows 81,559 MiB, that is 85.5e9 bytes.
    """
    shown = table["memory_gb"] * GIGA
    if "memory_mib" in table:
        shown = table["memory_mib"] * MEBI
    return float(shown - CONTEXT)


def _faults(table: dict[str, Any], where: str) -> list[Fault]:
    """What is missing, unknown or no figure."""
    known = sorted((*NEEDED, *OPTIONAL))
    faults = [Fault(f"{where}: {word}", "it is missing", f"add {word}") for word in NEEDED if word not in table]
    for word in sorted(table.keys() - {*known, *_TEXT}):
        faults.append(Fault(f"{where}: {word}", "no device has such a figure", f"known: {', '.join(known)}"))
    for word, value in table.items():
        if word in known and not _is_figure(value):
            faults.append(Fault(f"{where}: {word} = {value!r}", "a figure is a number above 0", "correct it"))
    return faults


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
