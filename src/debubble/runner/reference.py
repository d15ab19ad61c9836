"""The reference: one process trains the same model without a pipeline, and every gradient is compared with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .model import Parts

RATE = 0.1  # of plain gradient descent, which both sides use: its step adds no error of its own
Gradient = NDArray[np.float64]
Gradients = Mapping[int, Sequence[Gradient | None]]  # by stage, in the order of its parameters


class Reference:
    """The same model in one piece.

    Args:
        parts: as built, before any training; they are copied.
        pieces: into how many equal parts a batch is cut, so that no more memory is needed than in the pipeline.
    """

    def __init__(self, parts: Parts, pieces: int) -> None:
        self._stages = [deepcopy(stage) for stage in parts.stages]
        self._model, self._loss, self._pieces = nn.Sequential(*self._stages), parts.loss, pieces
        self._optimizer = torch.optim.SGD(self._model.parameters(), RATE)

    @torch.no_grad()
    def infer(self, inputs: Tensor, targets: Tensor) -> float:
        """Mean loss over the batch of all replicas, without training."""
        pieces = zip(inputs.chunk(self._pieces), targets.chunk(self._pieces), strict=True)
        return sum(float(self._loss(self._model(piece), wanted)) for piece, wanted in pieces) / self._pieces

    def train(self, inputs: Tensor, targets: Tensor) -> tuple[float, Gradients]:
        """Train on the batch of all replicas; mean loss and the gradients that were applied."""
        self._optimizer.zero_grad()
        total = 0.0
        for piece, wanted in zip(inputs.chunk(self._pieces), targets.chunk(self._pieces), strict=True):
            loss = self._loss(self._model(piece), wanted)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self._pieces
        self._optimizer.step()
        return total / self._pieces, {number: gradients(stage) for number, stage in enumerate(self._stages)}


def gradients(stage: nn.Module) -> list[Gradient | None]:
    """The gradient of each parameter as a plain array, which travels between processes far faster than a tensor."""
    return [None if p.grad is None else p.grad.detach().double().cpu().numpy() for p in stage.parameters()]


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
