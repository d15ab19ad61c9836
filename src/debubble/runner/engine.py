"""The engine: PyTorch's pipeline runtime with our program, our losses and our watch.

    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 .. 0REDUCE_GRAD            what ``actions`` makes of a program

Four things are laid over ``_PipelineScheduleRuntime``:

* its actions are ours, sends and receives included. Its own lowering receives early and, where told to receive late,
  swaps tensors of one direction without an error; our order is proved free of deadlock and meets each send with its
  receive, first in, first out;
* losses are kept by micro-batch: the engine appends them in order of execution and looks them up by number, which
  gives wrong gradients, without an error, as soon as the last stage takes its micro-batches in another order;
* the dictionaries of pending receives hand out waits that the watch times, and delays by the ``Stamps`` of senders;
* stages tell the watch when they compute. The loss counts as a part of the last stage's forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from ..core.posting_rules import exchange
from ..core.posts import Act
from ..core.program import Program
from ..core.schedule import Kind
from .communication import FORWARD, GRADIENT, Line, Stamps
from .watch import Watch

_COMPUTE = {
    Kind.F: _ComputationType.FORWARD,
    Kind.I: _ComputationType.BACKWARD_INPUT,
    Kind.W: _ComputationType.BACKWARD_WEIGHT,
    Kind.B: _ComputationType.FULL_BACKWARD,
}
_SEND = {Kind.F: _ComputationType.SEND_F, Kind.I: _ComputationType.SEND_B, Kind.B: _ComputationType.SEND_B}
_RECEIVE = {Kind.F: _ComputationType.RECV_F, Kind.I: _ComputationType.RECV_B, Kind.B: _ComputationType.RECV_B}
_NAMES = {Act.COMPUTE: _COMPUTE, Act.SEND: _SEND, Act.RECEIVE: _RECEIVE}


def actions(program: Program) -> dict[int, list[_Action]]:
    """What each rank does in one step, in order; pairs that run together as OVERLAP_F_B."""
    order = exchange(program)
    rows: dict[int, list[_Action]] = {}
    for rank, (first, last) in enumerate(zip(order.offsets[:-1], order.offsets[1:], strict=True)):
        rows[rank] = _row(program, order.act[first:last].tolist(), order.op[first:last].tolist())
        if not program.schedule.forward_only:
            # Ours to add as well: without it the engine leaves gradients m times too large.
            rows[rank] += _reductions(program, rank)
    return rows


def without_transfers(rows: dict[int, list[_Action]]) -> dict[int, list[_Action]]:
    """The computations alone, in their order."""
    carried = {*_SEND.values(), *_RECEIVE.values()}
    return {rank: [each for each in row if each.computation_type not in carried] for rank, row in rows.items()}


def _row(program: Program, acts: list[int], ops: list[int]) -> list[_Action]:
    schedule = program.schedule
    row: list[_Action] = []
    for act, op in zip(acts, ops, strict=True):
        name = _NAMES[Act(act)][Kind(schedule.kind[op])]
        action = _Action(int(schedule.stage[op]), name, int(schedule.unit[op]))
        if act == Act.COMPUTE and schedule.joined is not None and schedule.joined[op]:
            action = _Action(-1, _ComputationType.OVERLAP_F_B, None, (row.pop(), action))
        row.append(action)
    return row


def _reductions(program: Program, rank: int) -> list[_Action]:
    stages = (program.schedule.placement[0] == rank).nonzero()[0]
    return [_Action(int(stage), _ComputationType.REDUCE_GRAD, None) for stage in stages]


Loss = Callable[[Tensor, Tensor], Tensor]


class _Stage(PipelineStage):
    """A stage that tells the watch when it computes and notes when its outputs were made."""

    watch: Watch
    line: Line | None = None  # what stands between ops, if it is not the runtime's actions that say so
    stamps: Stamps | None = None
    splits = False  # whether backwards come in two halves
    scales: Sequence[nn.Parameter] = ()  # no parameter is in this list of two stages of a rank

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward; a split backward detaches its output in place, which torch refuses for a view."""
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.splits and isinstance(output, Tensor) and output._is_view():
            return output.clone()
        return output

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Mean over micro-batches; a parameter that two stages of this rank share is divided once."""
        for parameter in self.scales:
            if parameter.grad is not None:
                parameter.grad.div_(grad_scale_factor)

    def _begin(self, kind: Kind, unit: int) -> None:
        if self.line is not None:
            self.line.advance((kind, self.stage_index, unit))
        self.watch.begin()

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._begin(Kind.F, fwd_chunk_id)  # the end is told behind the loss
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        self._begin(Kind.B if full_backward else Kind.I, bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, *args, **kwargs)
        self.watch.end()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self._begin(Kind.W, bwd_chunk_id)
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.watch.end()

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        if self.stamps:
            self.stamps.note(FORWARD, self.stage_index, fwd_chunk_id, self.watch.last_end())
        return super().get_fwd_send_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if self.stamps:
            self.stamps.note(GRADIENT, self.stage_index, bwd_chunk_id, self.watch.last_end())
        return super().get_bwd_send_ops(bwd_chunk_id)


# In the engine the line ``fwd_recv_ops.pop(key)`` is the one place at which an input is asked for. So the dictionary is
# ours, and what it hands out has the one method that the engine calls.


class _Arrival:
    """Pending receives of one input, in the place of the engine's list of works."""

    def __init__(self, works: Sequence[dist.Work], watch: Watch, sent: Callable[[], int]) -> None:
        self._works, self._watch, self._sent = works, watch, sent

    def wait(self) -> None:
        """Wait for all of them by the watch."""
        self._watch.receive(self._works, self._sent)


class _Arrivals(dict[tuple[int, int], Any]):
    """The engine's pending receives by stage and micro-batch; what it takes out waits by the watch."""

    def __init__(self, watch: Watch, stamps: Stamps | None, line: int) -> None:
        super().__init__()
        self._watch, self._stamps, self._line = watch, stamps, line

    def pop(self, key: tuple[int, int]) -> list[_Arrival]:  # type: ignore[override]
        stage, microbatch = key
        sent: Callable[[], int] = int  # nought: when it was made is not known
        if self._stamps is not None:
            maker = stage + 1
            if self._line == FORWARD:
                maker = stage - 1
            sent = partial(self._stamps.read, self._line, maker, microbatch)
        return [_Arrival(super().pop(key), self._watch, sent)]


class _Given(dict[tuple[int, int], Any]):
    """Pending receives where a ``Line`` waits for them, just before the op: here every input is there already."""

    def __contains__(self, key: object) -> bool:
        return True

    def pop(self, key: tuple[int, int]) -> list[dist.Work]:  # type: ignore[override]  # noqa: ARG002
        return []


class _Runtime(_PipelineScheduleRuntime):
    """The runtime with our actions and with losses by micro-batch."""

    def __init__(
        self,
        program: Program,
        stages: list[_Stage],
        loss: Loss,
        watch: Watch,
        *,
        stamps: Stamps | None = None,
        line: Line | None = None,
    ) -> None:
        schedule = program.schedule
        trained_on = None if schedule.forward_only else loss  # the engine takes a loss for the wish to train
        super().__init__(stages, schedule.microbatches, loss_fn=trained_on)  # type: ignore[no-untyped-call]
        self._loss, self._watch = loss, watch
        self._graphs: dict[int, Tensor] = {}  # losses whose backward is to come
        self._values: dict[int, Tensor] = {}
        self._line = line
        self.fwd_recv_ops = _Arrivals(watch, stamps, FORWARD)
        self.bwd_recv_ops = _Arrivals(watch, stamps, GRADIENT)
        # Set as the engine's own loader would, but for its proof: `lower` has given one, and theirs refuses inference.
        self.pipeline_order_with_comms = actions(program)
        if line is not None:
            self.fwd_recv_ops, self.bwd_recv_ops = _Given(), _Given()
            self.pipeline_order_with_comms = without_transfers(self.pipeline_order_with_comms)
            line.stages.update((stage.stage_index, stage) for stage in stages)
        self.stage_index_to_group_rank = dict(enumerate(schedule.placement[0].tolist()))
        for stage in stages:
            # Each stage has made its own guess, a loop; under a V the peer of a send would be the wrong rank.
            stage.stage_index_to_group_rank = self.stage_index_to_group_rank

    # The next three take the place of methods that keep losses in a list. There the n-th is the n-th that was computed,
    # and the engine asks for it as that of the n-th micro-batch.

    def _maybe_compute_loss(
        self, stage: _Stage, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: Any = None
    ) -> None:
        if stage.is_last:
            loss = self._loss(output, target_mbs[mb_index], **(loss_kwargs or {}))
            self._values[mb_index] = loss.detach()
            if self._has_backward:
                self._graphs[mb_index] = loss
        self._watch.end()

    def _maybe_get_loss(self, stage: _Stage, mb_index: int) -> Tensor | None:
        return self._graphs.pop(mb_index) if stage.is_last else None

    def _update_losses(self, stages: Any, losses: list[Tensor] | None) -> None:  # noqa: ARG002
        if self._line is not None:
            self._line.finish()  # the engine calls this last of all
        if losses is not None:
            losses[:] = [self._values[microbatch] for microbatch in sorted(self._values)]
        self._values.clear()


class Engine:
    """One rank of a pipeline that trains.

    Args:
        program: what all ranks do.
        modules: the stages of this rank by their number; they are on ``device``.
        loss: mean loss of a micro-batch from the last stage's output and the targets.
        watch: what to tell.
        stamps: where to note when outputs were made, or None where arrivals are not delayed.
        line: what stands between the ops of this rank; None for our own order of sends and receives.
        group: processes of this pipeline, by rank.
        device: of this process.
    """

    def __init__(
        self,
        program: Program,
        modules: dict[int, nn.Module],
        loss: Loss,
        watch: Watch,
        *,
        stamps: Stamps | None,
        line: Line | None = None,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        count = program.schedule.stages
        stages = [_Stage(module, at, count, device, group=group) for at, module in sorted(modules.items())]
        splits = bool((program.schedule.kind == Kind.I).any())
        scaled: set[int] = set()
        for stage in stages:
            stage.watch, stage.stamps, stage.line, stage.splits = watch, stamps, line, splits
            stage.scales = [p for p in stage.submod.parameters() if id(p) not in scaled]
            scaled.update(map(id, stage.scales))
        self._first, self._last = 0 in modules, count - 1 in modules
        self._grad = not program.schedule.forward_only
        self.runtime = _Runtime(program, stages, loss, watch, stamps=stamps, line=line)

    def step(self, inputs: Tensor, targets: Tensor) -> float | None:
        """All micro-batches through the pipeline once; gradients lie in the modules, scaled to their mean.

        Args:
            inputs: of the whole replica, samples first.
            targets: likewise.

        Returns:
            Mean loss where this rank holds the last stage, else None.
        """
        losses: list[Tensor] = []
        feed = [inputs] if self._first else []  # the engine splits what the first stage is given, and asks no other
        with torch.set_grad_enabled(self._grad):
            self.runtime.step(*feed, target=targets, losses=losses, return_outputs=False)
        if not self._last:
            return None
        return float(torch.stack(losses).double().mean())
