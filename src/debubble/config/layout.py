"""A plan: one layout of a training job over its devices, and what it is predicted to cost in time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from ..schedules.catalog import TRAINING
from .splits import even_split

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = TRAINING
PRECISIONS = ("bf16", "fp16", "fp8", "fp4")


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
        recompute: ``none``, ``selective`` (the attention core alone) or ``full``.
        recompute_layers: layers of each stage to which ``recompute`` applies; None for all of them.
        schedule: a name of the catalog.
        layers: transformer layers of each stage, ``pipeline x chunks`` of them; empty for as even as can be, where the
            first stages take what does not divide.
        zero: what data-parallel ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too.
        precision: of the matrix products: ``bf16``, ``fp16``, ``fp8`` or ``fp4``.
        sequence_parallel: whether norms and dropout are split over the tensor group too.
        overlap: whether gradients are reduced beside the last backward (Megatron's ``--overlap-grad-reduce``).
        overlap_gather: whether weights are gathered beside the first forward (``--overlap-param-gather``).
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
    recompute_layers: int | None = None
    schedule: str = "1f1b"
    layers: tuple[int, ...] = ()
    zero: int = 1
    precision: str = "bf16"
    sequence_parallel: bool = True
    overlap: bool = True
    overlap_gather: bool = False
    fused_attention: bool = True
    fused_kernels: bool = True
    keep_gathered: bool = False
    blocking_sends: bool = False
    tensor_overlap: bool = False
    scattered_sends: bool = False
    blocking_launches: bool = False
    pieces: int = 1
    bucket: float = 0.0
    expert_tensor: int = 0

    @property
    def gpus(self) -> int:
        """Devices of the whole job."""
        return self.tensor * self.pipeline * self.data * self.context

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
    recompute_layers: NDArray[np.float64]
    schedule: NDArray[np.float64]
    zero: NDArray[np.float64]
    precision: NDArray[np.float64]
    sequence_parallel: NDArray[np.float64]
    overlap: NDArray[np.float64]
    overlap_gather: NDArray[np.float64]
    fused_attention: NDArray[np.float64]
    fused_kernels: NDArray[np.float64]
    keep_gathered: NDArray[np.float64]
    blocking_sends: NDArray[np.float64]
    tensor_overlap: NDArray[np.float64]
    scattered_sends: NDArray[np.float64]
    blocking_launches: NDArray[np.float64]
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


_CODES = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "precision": PRECISIONS}


def columns(layouts: Sequence[Layout], layers: int) -> Layouts:
    """The columns of a list of layouts of a model with so many layers.

    Where ``recompute_layers`` is None, every layer is recomputed: infinity in the column.
    """
    worked_out = (*_CODES, "first", "most", "last", "recompute_layers", "expert_tensor")
    plain = [f.name for f in fields(Layouts) if f.name not in worked_out]
    table = {name: np.array([getattr(a, name) for a in layouts], np.float64) for name in plain}
    table["expert_tensor"] = np.array([a.expert_shards for a in layouts], np.float64)
    for name, words in _CODES.items():
        table[name] = np.array([words.index(getattr(a, name)) for a in layouts], np.float64)
    limits = [np.inf if a.recompute_layers is None else a.recompute_layers for a in layouts]
    splits = [a.split(layers) for a in layouts]
    ends = np.array([(s[0], max(s[1:-1], default=0), s[-1]) for s in splits], np.float64).reshape(-1, 3)
    return Layouts(
        **table, recompute_layers=np.array(limits, np.float64), first=ends[:, 0], most=ends[:, 1], last=ends[:, 2]
    )


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
    parts: Parts
    idle_share: float
    peak_bytes: tuple[int, ...]
    memory: dict[str, int]
    tokens_per_second_per_gpu: float
    mfu: float
    fits: bool
    evidence: str = "estimated"
    reasons: tuple[str, ...] = field(default=())
