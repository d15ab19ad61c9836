"""A plan: one layout of a training job over its devices, and what it is predicted to cost in time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from ..schedules.catalog import TRAINING
from .fields import GRADIENT_BYTES, MODULES, MOMENT_BYTES, PRECISIONS, RECOMPUTE
from .splits import even_split

SCHEDULES = TRAINING


@dataclass(frozen=True, slots=True)
class Layout:
    """How one job lies on its devices: ``gpus = tensor x pipeline x data x context``.

    Args:
        tensor: devices that share each layer, t.
        pipeline: ranks of one pipeline, p.
        data: data-parallel replicas, d.
        context: devices that share each sequence, c.
        expert: devices over which the experts of a layer are spread, e.
        chunks: stages per rank, v.
        micro_batch: samples in a micro-batch, b.
        microbatches: per pipeline and step, m.
        sequence: tokens in a sample, s.
        recompute: ``none``, ``selective`` (parts of a layer) or ``full``.
        recompute_modules: the parts, of ``MODULES``; empty for the attention core alone.
        recompute_layers: layers of each stage to which ``full`` applies; None for all of them.
        schedule: a name of the catalog.
        layers: transformer layers of each stage, ``pipeline x chunks`` of them; empty for as even as can be, where the
            first stages take what does not divide.
        zero: what data-parallel ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too.
        precision: of the matrix products: ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``tf32`` or ``fp32``.
        gradient_precision: of gradients as they are kept and reduced: ``fp32``, ``bf16`` or ``fp16``; empty for fp16 in
            fp16, else fp32 (Megatron-LM's default for bf16).
        optimizer_precision: of Adam's moments: ``fp32``, ``bf16``, ``fp16`` or ``fp8`` (Megatron-LM's
            precision-aware optimizer, which then reads gradients as they are).
        gradient_copies: bytes a parameter of further copies of the gradients that a framework keeps.
        weights_are_master: whether the fp32 weights are the only ones, cast for each product (FSDP).
        fused_loss: whether the loss works on the logits in place (fused cross-entropy).
        offload_optimizer: whether the optimizer's state and its update are on the host.
        offload_layers: layers of each stage whose activations wait on the host.
        sequence_parallel: whether norms and dropout are split over the tensor group too.
        overlap: whether gradients are reduced beside the last backward (Megatron's ``--overlap-grad-reduce``).
        overlap_gather: whether weights are gathered beside the first forward (``--overlap-param-gather``).
        gather_by_tensor: whether gradients are reduced for all replicas though they share out the update, and weights
            gathered afterwards in a call for each tensor (nanotron's ZeRO-1).
        fused_attention: whether the scores of attention stay on the chip (flash attention).
        bucket: bytes of gradients that data-parallel ranks reduce in one call (PyTorch's DDP: 25 MB); 0 is what
            Megatron-LM takes where nothing is said, 40 million gradients or one million for each replica.
        fused_kernels: whether element-wise work is fused (Transformer Engine, Megatron's kernels, ``torch.compile``).
        keep_gathered: whether what sequence parallelism gathers is kept for the backward; Megatron-LM gathers again.
        blocking_sends: whether a rank sends and receives in turn and waits for each (DeepSpeed's pipeline engine).
        tensor_overlap: whether tensor collectives run beside matrix products (Megatron's ``--tp-comm-overlap``).
        scattered_sends: whether each member of a tensor group sends its share of a hop, and the receivers gather it
            (DeepSpeed's pipeline engine).
        blocking_launches: whether the host waits for each kernel (``CUDA_LAUNCH_BLOCKING=1``).
        graphs: whether the device replays a recorded graph of its kernels, so that no host issues them (CUDA graphs of
            whole iterations).
        flex_dispatch: whether a token crosses to each node once, however many of its experts are there (DeepEP,
            HybridEP: Megatron-Core's ``flex`` dispatcher).
        expert_overlap: whether tokens travel to experts beside the products of another micro-batch (Megatron-Core's
            ``--overlap-moe-expert-parallel-comm``, DualPipe).
        expert_tensor: devices that share each expert, et; 0 for the whole tensor group, as Megatron-LM takes it where
            nothing is said. e x et divides the tensor x data x context devices of a stage.
        pieces: products into which each product beside a tensor collective is cut, so that a part of it may run
            beside the collective (nanotron's asynchronous linear layers: 3).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    micro_batch: int = 1
    microbatches: int = 1
    sequence: int = 4096
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int | None = None
    schedule: str = "1f1b"
    layers: tuple[int, ...] = ()
    zero: int = 1
    precision: str = "bf16"
    gradient_precision: str = ""
    optimizer_precision: str = "fp32"
    gradient_copies: float = 0.0
    weights_are_master: bool = False
    fused_loss: bool = False
    offload_optimizer: bool = False
    offload_layers: int = 0
    sequence_parallel: bool = True
    overlap: bool = True
    overlap_gather: bool = False
    gather_by_tensor: bool = False
    fused_attention: bool = True
    fused_kernels: bool = True
    keep_gathered: bool = False
    blocking_sends: bool = False
    tensor_overlap: bool = False
    scattered_sends: bool = False
    blocking_launches: bool = False
    graphs: bool = False
    flex_dispatch: bool = False
    expert_overlap: bool = False
    pieces: int = 1
    bucket: float = 0.0
    expert_tensor: int = 0

    @property
    def gpus(self) -> int:
        """Devices of the whole job."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def is_full_precision(self) -> bool:
        """Whether numbers have 4 bytes: products in tf32 or fp32."""
        return self.precision in ("tf32", "fp32")

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight as it lies on a device: 2, or the 4 of fp32 weights."""
        return 4.0 if self.is_full_precision or self.weights_are_master else 2.0

    @property
    def reduced_bytes(self) -> float:
        """Bytes of a gradient as it is reduced."""
        if self.gradient_precision:
            return GRADIENT_BYTES[self.gradient_precision]
        return 2.0 if self.precision == "fp16" else 4.0

    @property
    def state_bytes(self) -> float:
        """Bytes of a parameter's optimizer: an fp32 weight unless the weight is one, two moments.

        Gradients of 2 bytes are copied to fp32 for the update, unless the optimizer reads them as they are: 4 + 16/d
        bytes in fp16 (README of Megatron-LM's distributed optimizer).
        """
        master = 0.0 if self.weight_bytes == 4 else 4.0
        copied = 4.0 if self.reduced_bytes == 2 and self.optimizer_precision == "fp32" else 0.0
        return master + copied + MOMENT_BYTES[self.optimizer_precision]

    @property
    def expert_shards(self) -> int:
        """Devices that share each expert: ``expert_tensor``, or the tensor group where that is 0."""
        return self.expert_tensor or self.tensor

    @property
    def stages(self) -> int:
        """Slices of the model: pipeline x chunks."""
        return self.pipeline * self.chunks

    @property
    def global_batch(self) -> int:
        """Samples of all replicas in one step."""
        return self.data * self.micro_batch * self.microbatches

    def split(self, layers: int) -> tuple[int, ...]:
        """Transformer layers of each stage for a model of so many."""
        return self.layers or even_split(layers, self.stages)


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """Many layouts as columns of one length, for arithmetic on all at once; see ``Layout`` for the words.

    Numbers are float64[n] so that no product overflows; ``recompute``, ``schedule`` and ``precision`` are positions in
    ``RECOMPUTE``, ``SCHEDULES`` and ``PRECISIONS``.

    Args:
        expert_tensor: devices that share each expert, the tensor group's where a layout says nothing else.
        recompute_modules: a bit for each of ``MODULES``.
        weight_bytes: of a weight; likewise ``reduced_bytes``, ``gradient_bytes`` (all copies) and ``state_bytes``.
        first: layers of the first stage; likewise ``last``, and ``most`` of any stage in between.
    """

    tensor: NDArray[np.float64]
    pipeline: NDArray[np.float64]
    data: NDArray[np.float64]
    context: NDArray[np.float64]
    expert: NDArray[np.float64]
    expert_tensor: NDArray[np.float64]
    chunks: NDArray[np.float64]
    micro_batch: NDArray[np.float64]
    microbatches: NDArray[np.float64]
    sequence: NDArray[np.float64]
    recompute: NDArray[np.float64]
    recompute_modules: NDArray[np.float64]
    recompute_layers: NDArray[np.float64]
    schedule: NDArray[np.float64]
    zero: NDArray[np.float64]
    precision: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]
    reduced_bytes: NDArray[np.float64]
    gradient_bytes: NDArray[np.float64]
    state_bytes: NDArray[np.float64]
    fused_loss: NDArray[np.float64]
    offload_optimizer: NDArray[np.float64]
    offload_layers: NDArray[np.float64]
    sequence_parallel: NDArray[np.float64]
    overlap: NDArray[np.float64]
    overlap_gather: NDArray[np.float64]
    gather_by_tensor: NDArray[np.float64]
    fused_attention: NDArray[np.float64]
    fused_kernels: NDArray[np.float64]
    keep_gathered: NDArray[np.float64]
    blocking_sends: NDArray[np.float64]
    tensor_overlap: NDArray[np.float64]
    scattered_sends: NDArray[np.float64]
    blocking_launches: NDArray[np.float64]
    graphs: NDArray[np.float64]
    flex_dispatch: NDArray[np.float64]
    expert_overlap: NDArray[np.float64]
    pieces: NDArray[np.float64]
    bucket: NDArray[np.float64]
    first: NDArray[np.float64]
    most: NDArray[np.float64]
    last: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def gpus(self) -> NDArray[np.float64]:
        """Devices of the whole job."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def replicas(self) -> NDArray[np.float64]:
        """Devices of a stage that hold the same share of its layers: data x context."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> NDArray[np.float64]:
        """Devices of a stage that hold the same share of the same experts: t d c / (e et), 1 or more."""
        return np.maximum(self.replicas / self.expert * (self.tensor / self.expert_tensor), 1.0)

    def recomputes(self, module: str) -> NDArray[np.bool_]:
        """Which layouts run a part of a layer again, by itself."""
        bits = self.recompute_modules.astype(np.int64) >> MODULES.index(module) & 1
        chosen: NDArray[np.bool_] = (self.recompute == RECOMPUTE.index("selective")) & (bits > 0)
        return chosen


_CODES = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "precision": PRECISIONS}
_WORKED_OUT = (*_CODES, "first", "most", "last", "recompute_layers", "recompute_modules", "expert_tensor")


def columns(layouts: Sequence[Layout], layers: int) -> Layouts:
    """The columns of a list of layouts of a model with so many layers.

    Where ``recompute_layers`` is None, every layer is recomputed: infinity in the column.
    """
    table: dict[str, NDArray[np.float64]] = {}
    for column in fields(Layouts):
        if column.name not in (*_WORKED_OUT, "gradient_bytes"):
            table[column.name] = np.array([getattr(layout, column.name) for layout in layouts], np.float64)
    for name, words in _CODES.items():
        table[name] = np.array([words.index(getattr(layout, name)) for layout in layouts], np.float64)
    table["expert_tensor"] = np.array([layout.expert_shards for layout in layouts], np.float64)
    table["gradient_bytes"] = np.array([layout.reduced_bytes + layout.gradient_copies for layout in layouts])
    table["recompute_modules"] = np.array([_bits(layout.recompute_modules) for layout in layouts], np.float64)
    limits = [np.inf if layout.recompute_layers is None else layout.recompute_layers for layout in layouts]
    table["recompute_layers"] = np.array(limits, np.float64)
    splits = [layout.split(layers) for layout in layouts]
    ends = np.array([(s[0], max(s[1:-1], default=0), s[-1]) for s in splits], np.float64).reshape(-1, 3)
    return Layouts(**table, first=ends[:, 0], most=ends[:, 1], last=ends[:, 2])


def _bits(modules: Sequence[str]) -> int:
    """A bit for each part that is run again; the attention core if none is named."""
    return sum(1 << MODULES.index(module) for module in set(modules or MODULES[:1]))


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a step goes, nanoseconds; the parts sum to the step.

    Args:
        ideal: model FLOPs at the peak of the precision, spread over all devices.
        kernels: what matrix products, attention and memory-bound operations take beyond that.
        recompute: forwards that are run again.
        tensor: collectives of the tensor group; likewise ``context`` and ``expert``.
        bubble: idle time of even stages of this schedule with free transfers.
        imbalance: what unequal stages add to it.
        transfer: what hops between ranks add to it.
        data: data-parallel traffic that nothing hides.
        optimizer: the update of the weights.
        fixed: what each step costs whatever its size.
    """

    ideal: float = 0.0
    kernels: float = 0.0
    recompute: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    bubble: float = 0.0
    imbalance: float = 0.0
    transfer: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0
    fixed: float = 0.0

    @property
    def step(self) -> float:
        """Their sum."""
        return float(sum(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout and what is predicted of it.

    Args:
        layout: what to launch.
        step: nanoseconds from one update to the next.
        expected_step: the same weighed with what it would be on a cluster that stalls; plans are ranked by it.
        parts: where they go; they sum to ``step``.
        idle_share: idle over ranks x pipeline window.
        peak_bytes: of each rank of the pipeline.
        memory: what the fullest rank holds, by name: weights, gradients, optimizer, activations, logits, other.
        tokens_per_second_per_gpu: tokens of the global batch over step and devices.
        mfu: model FLOPs over step, devices and peak, 0 to 1.
        fits: whether every rank's peak is within the device's memory.
        evidence: ``estimated`` (closed form or replay of estimated times).
        reasons: sentences: what was assumed, what to look at.
    """

    layout: Layout
    step: float
    expected_step: float
    parts: Parts
    idle_share: float
    peak_bytes: tuple[int, ...]
    memory: dict[str, int]
    tokens_per_second_per_gpu: float
    mfu: float
    fits: bool
    evidence: str = "estimated"
    reasons: tuple[str, ...] = field(default=())
