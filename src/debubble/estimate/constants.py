"""The generic model's few constants: what kernels, links and hosts reach of their datasheets, and where each is from.

*Fitted* means: by least squares of log step time on dgxc-benchmarking, Megatron-Bridge, llm-foundry, NeMo 24.07,
Korthikanti 2022, SimuMax's B200 rows and vTrain's single node, pulled towards the value first assumed; ``link`` and
``hidden_data`` anew with factors of their own for each set, so that no set's software stands for all. Nothing was
fitted on vTrain multi-node, BigScience or Ultra-Scale, against which the planner is tested. ``sustained`` of each
device, fitted along, stands in its file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares of datasheet rates, and times that no rate explains.

    Args:
        half_units: waves of tiles that a product wastes at its tail. Fitted, from 1/4: half a wave, half hidden.
        half_inner: width summed over at which a product reaches half of its rate: start and end of a tile's loop, one
            tile of 128 deep. Fitted, and stayed.
        core: share of its published rate that attention reaches, forward. Fitted; papers print the best length.
        core_back: what the backward reaches of that. FlashAttention-2 and 3 print 0.75 to 0.85.
        stream: share of memory bandwidth that element-wise kernels reach. Fitted.
        eager: how many times the bytes element-wise kernels move where they are not fused. Fitted.
        launch: seconds between the starts of two kernels on the device, at least: the usual figure.
        host: seconds that the host needs to issue the forward of one layer; the backward takes as long again. Fitted.
        issue: seconds that the host needs on top for each collective of the tensor group: the usual figure.
        jitter: how much longer the slowest host of a tensor group takes, for each further member. Fitted.
        blend: how sharply a layer passes from the host's time to the device's: a p-norm of the two. Assumed.
        link: share of a link's bandwidth that collectives inside a node reach beside all else. Fitted, from 0.73;
            alone A100 prints 0.78, H200 0.82.
        nic: share of a network card's bandwidth that collectives between nodes reach. Fitted, from 0.8.
        hop_latency: seconds of one step of a ring inside a node: about what NCCL's own tuning assumes for its LL128
            and Simple protocols (1.9 and 3.4 us).
        far_latency: the same between nodes: from all-reduces of 8 to 256 MiB over 4 nodes of 8 B200, which take 0.3 ms
            longer than their bytes (stas00/ml-engineering@0cc3de50 network/benchmarks/README.md).
        call: seconds that starting a collective or a send takes whatever its size: the usual figure.
        hidden_tensor: share of tensor collectives hidden where the layout overlaps them. Fitted.
        hidden_data: share of data-parallel traffic hidden at most, where the layout overlaps it. Fitted.
        microbatch: seconds of host work for each micro-batch and stage, forward and again backward. Fitted.
        step: seconds of each step outside everything else. Assumed.
        workspace: bytes that libraries of collectives and of products hold. From SimuMax's B200 rows.
    """

    half_units: float = 0.25
    half_inner: float = 128.0
    core: float = 0.63
    core_back: float = 0.8
    stream: float = 0.9
    eager: float = 1.63
    launch: float = 4e-6
    host: float = 0.93e-3
    issue: float = 50e-6
    jitter: float = 0.035
    blend: float = 6.0
    link: float = 0.65
    nic: float = 0.8
    hop_latency: float = 2e-6
    far_latency: float = 22e-6
    call: float = 15e-6
    hidden_tensor: float = 0.9
    hidden_data: float = 0.5
    microbatch: float = 0.41e-3
    step: float = 10e-3
    workspace: float = 0.5e9


CONSTANTS = Constants()
