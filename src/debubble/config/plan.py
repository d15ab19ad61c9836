"""What the planner takes and gives: a question, many layouts as columns, and a plan with its predicted cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from .config import MODULES, RECOMPUTE, Config, Layout


@dataclass(frozen=True, slots=True)
class Question:
    """What to search through.

    Args:
        config: what is fixed; its framework is the one that is to launch the answer, None for any.
        tries: values to try of a field that is not fixed; what is in neither is the search's own choice.
        schedules: names of the catalog to try; empty for the search's own choice.
        base: what all layouts share and no configuration says: what is overlapped, fused and kept.
    """

    config: Config
    tries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    schedules: tuple[str, ...] = ()
    base: Layout = field(default_factory=Layout)

    def values(self, name: str) -> tuple[int, ...]:
        """Values of a field that may be chosen: the fixed one, those to try, or none where the search is free.

        Raises:
            StillOpen: the field is open.
        """
        value = getattr(self.config, name)
        if value is None:
            return self.tries.get(name, ())
        return (value,)


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
        peak_bytes: that a framework allocates on each rank of the pipeline.
        beside: bytes that the device's own tool shows beside them.
        memory: what the fullest rank holds, by name: weights, gradients, optimizer, activations, logits, other.
        tokens_per_second_per_gpu: tokens of the global batch over step and devices.
        mfu: model FLOPs over step, devices and peak, 0 to 1.
        fits: whether every rank's peak is within the device's memory.
        engine: whose way of waiting for hops it was simulated with.
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
    engine: str = "ideal"
    beside: int = 0
    evidence: str = "estimated"
    reasons: tuple[str, ...] = field(default=())
