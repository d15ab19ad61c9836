"""The setting: a model, where it runs, how it is laid out; what is assumed of kernels, links, hosts; and corrections.

*Fitted* means: by least squares of log step time on dgxc-benchmarking, Megatron-Bridge, llm-foundry, NeMo 24.07,
Korthikanti 2022, SimuMax's B200 rows and vTrain's single node, pulled towards the value first assumed; ``link`` and
``hidden_data`` anew with factors of their own for each set, so that no set's software stands for all. Nothing was
fitted on vTrain multi-node, BigScience or Ultra-Scale, against which the planner is tested. ``sustained`` of each
device, fitted along, stands in its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ..config.config import PRECISIONS
from ..config.plan import Layouts
from .hardware import Cluster
from .model import Model

Column = NDArray[np.float64]  # one number for each layout


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares of datasheet rates, and times that no rate explains.

    Args:
        half_units: waves of tiles that a product wastes at its tail. Fitted, from 1/4: half a wave, half hidden.
        half_inner: width summed over at which a product reaches half of its rate: start and end of a tile's loop, one
            tile of 128 deep. Fitted, and stayed.
        grouped: share of a product's rate that the products of experts reach, which are unequal in a batch. Fitted.
        core: share of its published rate that attention reaches, forward. Fitted; papers print the best length.
        core_back: what the backward reaches of that. FlashAttention-2 and 3 print 0.75 to 0.85.
        stream: share of memory bandwidth that element-wise kernels reach. Fitted.
        eager: how many times the bytes element-wise kernels move if they are not fused. Fitted.
        launch: seconds between the starts of two kernels on the device, at least: the usual figure.
        host: seconds that the host needs to issue the forward of one layer; the backward takes as long again. Fitted.
        host_experts: seconds that it needs on top for a mixture of experts, to route and sort tokens and for a kernel
            each. Fitted.
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
        hidden_tensor: share of tensor collectives hidden if the layout overlaps them. Fitted.
        hidden_data: share of data-parallel traffic hidden at most, if the layout overlaps it. Fitted.
        microbatch: seconds of host work for each micro-batch and stage, forward and again backward. Fitted.
        step: seconds of each step outside everything else. Fitted on vTrain single node, from 10 ms.
        host_memory: bytes a second of host memory that one device has to itself for an update there: an eighth of a
            server of two sockets with twelve channels of DDR5-4800 each (vendors' figure: 461 GB/s a socket). Assumed.
        workspace: bytes that libraries of collectives and of products hold. From SimuMax's B200 rows.
    """

    half_units: float = 0.25
    half_inner: float = 128.0
    grouped: float = 0.84
    core: float = 0.63
    core_back: float = 0.8
    stream: float = 0.9
    eager: float = 1.63
    launch: float = 4e-6
    host: float = 0.93e-3
    host_experts: float = 3.7e-3
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
    step: float = 8.5e-3
    host_memory: float = 115e9
    workspace: float = 0.5e9


CONSTANTS = Constants()


# How far each factor is expected from 1 before anything is measured, in e-folds: about as far as it lies in the five
# published sets that the generic model was made from. The three that it is tested on are not among them.
PRIOR = {"kernels": 0.08, "tensor": 0.45, "data": 0.7, "transfer": 0.5, "floor": 0.3, "stall": 0.8}
MEMORY_PRIOR = 0.3
NOTHING = 0.95  # of a prior's error that is left if a source says next to nothing
STALLED = 4.0  # times longer that the host takes, where any do: what is feared, and where a second fit starts


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """One correction.

    Args:
        value: what a predicted part is multiplied by: one number, or one for each layout, float64[n].
        error: one standard error of it.
    """

    value: float | NDArray[np.float64] = 1.0
    error: float | NDArray[np.float64] = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What was learned from measured rows.

    Args:
        kernels: on time spent in matrix products, attention and memory-bound operations.
        tensor: on collectives of tensor, context and expert groups.
        data: on data-parallel traffic.
        transfer: on hops between ranks.
        floor: on the shortest time that a layer takes.
        stall: on that time where tensor groups of 8 wait for a pipeline that spans nodes; of others in proportion.
        memory: on peak bytes.
        rows: how many rows it was fitted on.
        source: what they were.
        band: relative error of a prediction, one standard deviation, 0 to 1.
    """

    kernels: Factor = Factor()
    tensor: Factor = Factor()
    data: Factor = Factor()
    transfer: Factor = Factor()
    floor: Factor = Factor()
    stall: Factor = Factor()
    memory: Factor = Factor()
    rows: int = 0
    source: str = ""
    band: float = 0.15

    def factors(self) -> dict[str, Factor]:
        """All factors by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Factor)}

    def silent(self) -> tuple[str, ...]:
        """Factors of which what was measured says next to nothing: they lie about as before, as uncertain."""
        factors = self.factors()
        silent = []
        for name, prior in (PRIOR | {"memory": MEMORY_PRIOR}).items():
            factor = factors[name]
            error = float(np.mean(factor.error / factor.value))
            shift = abs(float(np.mean(np.log(factor.value))))
            if error > NOTHING * prior and shift < error:
                silent.append(name)
        return tuple(silent)

    def rows_of(self, positions: Sequence[int]) -> Calibration:
        """The factors of some layouts, if they differ from layout to layout."""
        chosen = {}
        for name, factor in self.factors().items():
            if isinstance(factor.value, np.ndarray):  # as in a fit, which predicts under many factors at once
                chosen[name] = Factor(factor.value[positions])
        return replace(self, **chosen) if chosen else self  # type: ignore[arg-type]


GENERIC = Calibration()


NUMBER_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 2.0, "fp4": 2.0, "tf32": 4.0, "fp32": 4.0}
# Activations stay in 16 bits where products take 8 or 4: what goes into a product is cast for it.
# Blocks of fp4 share a scale: 16 numbers one of 8 bits, as in NVFP4.
OPERAND_BYTES = NUMBER_BYTES | {"fp8": 1.0, "fp4": 0.5 + 1 / 16}


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Seconds of the forward, the backward and the forward that is run again, float64[n] each."""

    forward: Column
    backward: Column
    again: Column

    def __getitem__(self, rows: slice) -> Pass:
        return Pass(self.forward[rows], self.backward[rows], self.again[rows])

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def scaled(self, factor: Column | float) -> Pass:
        """All three times a factor."""
        return Pass(self.forward * factor, self.backward * factor, self.again * factor)

    @property
    def both(self) -> Column:
        """Forward and backward, without what is run again."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Devices that reduce, gather or exchange together.

    Args:
        members: devices in it, float64[n].
        near: of them, how many share a node: their cards carry its traffic together.
    """

    members: Column
    near: Column

    @property
    def crossings(self) -> Column:
        """Steps of a ring over it that leave a node."""
        return np.where(self.members > self.near, self.members / self.near, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What every function of this room needs: the model, where it runs, its layouts, and the constants."""

    model: Model
    cluster: Cluster
    layouts: Layouts
    constants: Constants = CONSTANTS
    factors: Calibration = GENERIC

    @property
    def tokens(self) -> Column:
        """Tokens of a micro-batch on one tensor group."""
        return self.layouts.micro_batch * self.layouts.sequence / self.layouts.context

    @property
    def peak(self) -> Column:
        """Peak FLOP/s of the precision of each layout."""
        return self._by_precision({name: self.cluster.device.peak(name) for name in PRECISIONS})

    @property
    def peak_16bit(self) -> Column:
        """Peak FLOP/s at 16 bits, where attention and the head stay in fp8 and fp4; full precision stays full."""
        bf16 = self.cluster.device.peak("bf16")
        return np.where(self.number_bytes > 2, self.peak, bf16)

    @property
    def residual_shards(self) -> Column:
        """Devices among which the residual is split between products: the tensor group with sequence parallelism."""
        return np.where(self.layouts.sequence_parallel > 0, self.layouts.tensor, 1.0)

    @property
    def number_bytes(self) -> Column:
        """Bytes of a number of an activation: 2, or 4 in full precision."""
        return self._by_precision(NUMBER_BYTES)

    @property
    def operand_bytes(self) -> Column:
        """Bytes of a number that a product takes in, and keeps for its backward."""
        return self._by_precision(OPERAND_BYTES)

    def _by_precision(self, table: dict[str, float]) -> Column:
        chosen: Column = np.array([table[name] for name in PRECISIONS])[self.layouts.precision.astype(np.int64)]
        return chosen

    def group(self, members: Column, stride: Column | float = 1.0) -> Group:
        """A group whose members are ``stride`` devices apart."""
        return Group(members, np.clip(np.floor(self.cluster.gpus_per_node / stride), 1, members))
