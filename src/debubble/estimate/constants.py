"""The generic model's few constants: what kernels, links and hosts reach of their datasheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares of datasheet rates, and times that no rate explains.

    Args:
        half_units: waves that a product wastes on average at its tail, in waves of the device.
        half_inner: width summed over at which a product reaches half of its rate (start and end of a tile).
        core: share of its published rate that fused attention reaches, forward; backward reaches ``core_back`` of that.
        core_back: see ``core``.
        stream: share of memory bandwidth that element-wise kernels reach.
        eager: how many times the bytes element-wise kernels move where they are not fused.
        launch: seconds between the starts of two kernels on the device, at least.
        host: seconds that the host needs to issue the forward of one layer; the backward takes as long again.
        issue: seconds that the host needs on top for each collective of the tensor group.
        jitter: how much longer the slowest of a tensor group's hosts takes, for each e-fold of its size.
        blend: how sharply a layer passes from the host's time to the device's: the exponent of a p-norm of the two.
        link: share of a link's bandwidth that collectives inside a node reach.
        nic: share of a network card's bandwidth that collectives between nodes reach.
        hop_latency: seconds of one step of a ring inside a node; ``far_latency`` between nodes.
        far_latency: see ``hop_latency``.
        call: seconds that starting a collective or a send takes whatever its size.
        hidden_tensor: share of tensor collectives hidden where the layout overlaps them.
        hidden_data: share of data-parallel traffic hidden at most, where the layout overlaps it.
        microbatch: seconds of host work for each micro-batch and stage.
        step: seconds of each step outside everything else.
        workspace: bytes that the driver, the libraries of collectives and of products, and the allocator hold.
    """

    half_units: float = 0.25
    half_inner: float = 128.0
    core: float = 0.63
    core_back: float = 0.8
    stream: float = 0.9
    eager: float = 1.63
    launch: float = 4e-6
    host: float = 0.00093
    issue: float = 50e-6
    jitter: float = 0.05
    blend: float = 6.0
    link: float = 0.73
    nic: float = 0.8
    hop_latency: float = 2e-6
    far_latency: float = 10e-6
    call: float = 15e-6
    hidden_tensor: float = 0.9
    hidden_data: float = 0.6
    microbatch: float = 0.00041
    step: float = 10e-3
    workspace: float = 0.5e9


CONSTANTS = Constants()
