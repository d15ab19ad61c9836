"""Gradients: summed over the copies of a parameter, applied by the optimizer, and compared with one process's own.

A parameter that several stages hold (the embedding of a language model that is its head as well) is a copy on each of
their ranks, and each copy has the gradient of its own stages alone. Their sum is that of the one parameter:

    rank 0   embedding    dL/dE from the lookup  --+
    rank 3   head         dL/dE from the logits  --+-->  the sum, on both; so both copies stay equal

as in Megatron-LM (finalize_model_grads.py, _allreduce_word_embedding_grads).

The reference trains the same model in one process without a pipeline. It is a model of its own, never a copy of the
stages, which would have their faults too. The user's function is asked for the model in one piece, and that is taken
if it has the weights of the stages; a function that makes another model of one stage (a layer a stage, say) is asked
for the same stages again, which run one after the other. A parameter that several stages share is one here, whose
gradient is that of all uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import InputError
from .model import Parts, parameters_of, same_weights
from .task import Task

RATE = {"sgd": 0.1, "adamw": 1e-3}  # the second is torch's own default; both sides of a check use the same


def optimizer_of(task: Task, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimizer that a task asks for, over what can be trained; None where there is nothing."""
    trained = list({id(p): p for p in parameters if p.requires_grad}.values())
    if not trained:
        return None
    rate = task.learning_rate
    if rate is None:
        rate = RATE[task.optimizer]
    if task.optimizer == "adamw":
        return torch.optim.AdamW(trained, rate, weight_decay=task.weight_decay)
    return torch.optim.SGD(trained, rate, weight_decay=task.weight_decay)


class SharedParameters:
    """The parameters that stages on several ranks share, with a group of processes for each set of ranks.

    Args:
        stages: all stages of the model, as built in this process.
        homes: rank of each stage.
        replicas: of the pipeline; all processes must make their groups together.
        me: replica and rank of this process.
        timeout_s: how long a rank waits for another.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        homes: list[int],
        replicas: int,
        *,
        me: tuple[int, int],
        timeout_s: float,
    ) -> None:
        holders: dict[int, list[int]] = {}
        by_id: dict[int, nn.Parameter] = {}
        for at, stage in enumerate(stages):
            for parameter in stage.parameters():
                by_id[id(parameter)] = parameter
                holders.setdefault(id(parameter), []).append(homes[at])
        sets = {key: tuple(sorted(set(ranks))) for key, ranks in holders.items()}
        width = max(homes) + 1
        self._shared: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for ranks in dict.fromkeys(ranks for ranks in sets.values() if len(ranks) > 1):
            for replica in range(replicas):  # every process makes every group, its own or not
                members = [replica * width + rank for rank in ranks]
                group = dist.new_group(members, timeout=timedelta(seconds=timeout_s))
                if replica == me[0] and me[1] in ranks:
                    groups[ranks] = group
        for key, ranks in sets.items():
            group = groups.get(ranks)
            if group is not None and by_id[key].requires_grad:
                self._shared.append((by_id[key], group))

    def sum_gradients(self) -> None:
        """Give each copy the gradient of all uses; a copy that was not used counts as zero."""
        for parameter, group in self._shared:
            if parameter.grad is None:  # this copy was not used, and the others wait for its part in the sum
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)


Gradient = NDArray[np.float64]
Gradients = Mapping[int, Sequence[Gradient | None]]  # by stage, in the order of its parameters


class Reference:
    """The same model in one process.

    Args:
        task: what is run; says the optimizer, and into how many equal parts a batch is cut, so that no more memory
            is needed than in the pipeline.
        parts: the stages that the pipeline trains, as built, to tell which of its parameters are which.
        build: makes the parts of so many stages anew.
    """

    def __init__(self, task: Task, parts: Parts, build: Callable[[int], Parts]) -> None:
        mine = _in_one_piece(parts, build)
        if mine is None:
            mine = build(len(parts.stages))
        self._pieces = task.schedule.microbatches * task.replicas
        self._model, self._loss = nn.Sequential(*mine.stages), parts.loss
        self._optimizer = optimizer_of(task, self._model.parameters())
        own = dict(zip(map(id, parameters_of(parts)), parameters_of(mine), strict=True))
        self._homes = {at: [own[id(p)] for p in stage.parameters()] for at, stage in enumerate(parts.stages)}

    @torch.no_grad()
    def infer(self, inputs: Tensor, targets: Tensor) -> float:
        """Mean loss over the batch of all replicas, without training."""
        pieces = zip(inputs.chunk(self._pieces), targets.chunk(self._pieces), strict=True)
        return sum(float(self._loss(self._model(piece), wanted)) for piece, wanted in pieces) / self._pieces

    def train(self, inputs: Tensor, targets: Tensor) -> tuple[float, Gradients]:
        """Train on the batch of all replicas; mean loss and the gradients that were applied."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        total = 0.0
        # In the pieces of the pipeline: a loss that is a mean over tokens is no mean over other pieces.
        for piece, wanted in zip(inputs.chunk(self._pieces), targets.chunk(self._pieces), strict=True):
            loss = self._loss(self._model(piece), wanted)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self._pieces
        found = {at: _arrays(parameters) for at, parameters in self._homes.items()}
        if self._optimizer is not None:
            self._optimizer.step()
        return total / self._pieces, found


def _in_one_piece(parts: Parts, build: Callable[[int], Parts]) -> Parts | None:
    """The model as one stage, if it then has the parameters of the stages, in their order; else None."""
    try:
        whole = build(1)
    except InputError:  # some functions make two stages or more
        return None
    return whole if same_weights(parts, whole) else None


def gradients(stage: nn.Module) -> list[Gradient | None]:
    """The gradient of each parameter of a stage."""
    return _arrays(list(stage.parameters()))


def _arrays(parameters: Sequence[nn.Parameter]) -> list[Gradient | None]:
    """Gradients as plain arrays, which travel between processes far faster than tensors."""
    found: list[Gradient | None] = []
    for parameter in parameters:
        if parameter.grad is None:
            found.append(None)
        else:
            # A copy: the optimizer's zero_grad would otherwise clear what is to be compared.
            found.append(parameter.grad.detach().double().cpu().numpy().copy())
    return found


def gradient_error(found: Gradients, expected: Gradients) -> float:
    """The largest difference of any gradient element, over the largest element of the same parameter's reference.

    A gradient that is there on one side only, or is not a number, is an infinite error.
    """
    return max(
        (_error(mine, theirs) for at in expected for mine, theirs in zip(found[at], expected[at], strict=True)),
        default=0.0,
    )


def _error(found: Gradient | None, expected: Gradient | None) -> float:
    if found is None and expected is None:
        return 0.0
    if found is None or expected is None:
        return math.inf
    largest, off = float(np.abs(expected).max()), float(np.abs(found - expected).max())
    if off == 0:
        return 0.0
    if largest == 0 or not math.isfinite(off):  # comparing with nan is false, so that nan comes here too
        return math.inf
    return off / largest
