"""The reference: one process trains the same model without a pipeline, and every gradient is compared with it.

It is a model of its own, never a copy of the stages, which would have their faults too. The user's function is asked
for the model in one piece, and that is taken if it has the weights of the stages; a function that makes another model
of one stage (a layer a stage, say) is asked for the same stages again, which run one after the other in one process.
Parameters that several stages share are one parameter here, whose gradient is that of all uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import InputError
from .model import Parts
from .optimizer import optimizer_of
from .task import Task

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
        whole = _in_one_piece(parts, build)
        self.one_piece = whole is not None
        mine = build(len(parts.stages)) if whole is None else whole
        self._pieces = task.schedule.microbatches * task.replicas
        self._model, self._loss = nn.Sequential(*mine.stages), parts.loss
        self._optimizer = optimizer_of(task, self._model.parameters())
        own = dict(zip(map(id, _unique(parts)), _unique(mine), strict=True))
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


def _unique(parts: Parts) -> list[nn.Parameter]:
    """Every parameter once, in the order of the stages."""
    return list({id(p): p for stage in parts.stages for p in stage.parameters()}.values())


def _in_one_piece(parts: Parts, build: Callable[[int], Parts]) -> Parts | None:
    """The model as one stage, if it then has the parameters of the stages, in their order; else None."""
    try:
        whole = build(1)
    except InputError:  # some functions make two stages or more
        return None
    mine, theirs = _unique(parts), _unique(whole)
    if len(mine) != len(theirs):
        return None
    equal = all(torch.equal(first.cpu(), second.cpu()) for first, second in zip(mine, theirs, strict=True))
    return whole if equal else None


def gradients(stage: nn.Module) -> list[Gradient | None]:
    """The gradient of each parameter of a stage."""
    return _arrays(list(stage.parameters()))


def _arrays(parameters: Sequence[nn.Parameter]) -> list[Gradient | None]:
    """Gradients as plain arrays, which travel between processes far faster than tensors."""
    return [None if p.grad is None else p.grad.detach().double().cpu().numpy().copy() for p in parameters]


def gradient_error(found: Gradients, expected: Gradients) -> float:
    """The largest difference of any gradient element, over the largest element of the same parameter's reference.

    A gradient that is there on one side only, or is not a number, is an infinite error.
    """
    return max(
        (_error(mine, theirs) for at in expected for mine, theirs in zip(found[at], expected[at], strict=True)),
        default=0.0,
    )


def _error(found: Gradient | None, expected: Gradient | None) -> float:
    if found is None or expected is None:
        return 0.0 if found is expected else math.inf
    largest, off = float(np.abs(expected).max()), float(np.abs(found - expected).max())
    if not math.isfinite(off):
        return math.inf
    return off / largest if largest else off and math.inf
