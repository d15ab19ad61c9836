"""Hardware: one device and the cluster it stands in, every figure with its source."""

from __future__ import annotations

from dataclasses import dataclass, field

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, as its vendor describes it.

    Args:
        name: as in ``data/hardware``.
        flops: peak FLOP/s of dense matrix products by precision: ``bf16``, ``fp8``, ``fp4``.
        memory: bytes.
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
        sources: where each figure comes from, by its name here.
    """

    name: str
    flops: dict[str, float]
    memory: float
    memory_rate: float
    link: float
    peer: float
    vector: float
    units: int
    achievable: float
    sustained: float = 0.85
    flash: float = 0.35
    native: float = 0.7
    domain: int = 8
    nic: float = 50 * GIGA
    sources: dict[str, str] = field(default_factory=dict)

    def peak(self, precision: str) -> float:
        """FLOP/s of a precision; fp16 runs as bf16, and what a device lacks runs at the next wider one."""
        for name in {"fp4": ("fp4", "fp8"), "fp8": ("fp8",)}.get(precision, ()):
            if name in self.flops:
                return self.flops[name]
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
    """

    device: Hardware
    gpus: int
    gpus_per_node: int
    nic: float
    price: float = 0.0


def cluster_of(device: Hardware, gpus: int, *, gpus_per_node: int | None = None, nic: float | None = None) -> Cluster:
    """A cluster of a device, with the node and the network that its vendor sells it with where none are given."""
    return Cluster(device, gpus, gpus_per_node or device.domain, nic or device.nic)
