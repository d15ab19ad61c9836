"""Profile: how long the forward and the backward of one layer, and of the model's ends, take on the device here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import Refusal
from .layer import Layer, LayerSizes, norm

WARM_UP = 3
FEW = 5  # repeats of what is timed as a check alone
USUAL = 1.48  # standard deviation over the median distance from the median
ROOM = 0.25  # of the memory that is free, which logits may take up
LOGIT = 16  # bytes of a logit in 16 bits, in 32, its gradient and the softmax
SEED = 20
_FULL = ("out of memory", "allocate memory")  # what torch says of a GPU, and of a CPU


@dataclass(frozen=True, slots=True)
class Shape:
    """What is timed: so many samples of so many tokens, repeated, after some that are not measured."""

    samples: int
    tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a forward and of a backward, medians; ``spread`` is the relative standard error of their sum."""

    forward: float
    backward: float
    spread: float


def name_of(device: str) -> str:
    """What the device calls itself; ``CPU`` where it is one."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def time_layer(sizes: LayerSizes, shape: Shape, device: str) -> Timed:
    """Time one layer.

    Args:
        sizes: of the layer.
        shape: of a micro-batch.
        device: ``cpu``, in 32 bits, or ``cuda``, in bfloat16.

    Raises:
        Refusal: the device has no room for it.
    """
    made: Timed = _guarded(lambda: _timed(_built(Layer(sizes), device), _residual(sizes, shape, device), shape.repeats))
    return made


def time_ends(sizes: LayerSizes, shape: Shape, device: str) -> tuple[Timed, Timed] | None:
    """Time the embedding, and the head with the loss; None where logits would take up much of the memory.

    Raises:
        Refusal: the device has no room for it.
    """
    logits = LOGIT * shape.samples * shape.tokens * sizes.vocab
    if logits > ROOM * _free(device):
        return None
    shape = replace(shape, repeats=min(shape.repeats, FEW))
    words = torch.randint(sizes.vocab, (shape.samples, shape.tokens), device=device)

    def both() -> tuple[Timed, Timed]:
        table = _timed(_built(nn.Embedding(sizes.vocab, sizes.hidden), device), words, shape.repeats)
        return table, _timed(_built(_Head(sizes, words), device), _residual(sizes, shape, device), shape.repeats)

    made: tuple[Timed, Timed] = _guarded(both)
    return made


class _Head(nn.Module):
    """The last norm, the product with the vocabulary, and the loss over logits in 32 bits."""

    def __init__(self, sizes: LayerSizes, words: Tensor) -> None:
        super().__init__()
        self.norm, self.out, self.words = norm(sizes), nn.Linear(sizes.hidden, sizes.vocab, bias=False), words

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(logits, self.words.flatten())


def _built(module: nn.Module, device: str) -> nn.Module:
    return module.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def _residual(sizes: LayerSizes, shape: Shape, device: str) -> Tensor:
    torch.manual_seed(SEED)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    made = torch.randn(shape.samples, shape.tokens, sizes.hidden, device=device, dtype=kind)
    return made.requires_grad_()


def _timed(module: nn.Module, given: Tensor, repeats: int) -> Timed:
    """One after the other without a pause, as a pipeline's rank runs them, so that a slow host shows."""
    gradient = torch.ones_like(module(given))
    clock = _Events() if given.is_cuda else _Clock()
    for _ in range(WARM_UP + repeats):
        clock.mark()
        out = module(given)
        clock.mark()
        out.backward(gradient)
        clock.mark()
    forward, backward = clock.seconds()[WARM_UP:].T
    total = forward + backward
    scatter = USUAL * float(np.median(np.abs(total - np.median(total))))
    of_median = 1.25 / repeats**0.5  # its standard error over the standard deviation
    return Timed(float(np.median(forward)), float(np.median(backward)), of_median * scatter / float(np.median(total)))


class _Clock:
    """Moments on the host."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def mark(self) -> None:
        self.moments.append(time.perf_counter())

    def seconds(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Of each forward and each backward, [repeats, 2]."""
        marks = np.array(self.moments).reshape(-1, 3)
        return np.diff(marks, axis=1)


class _Events:
    """Moments on the device's own queue, read once all is done."""

    def __init__(self) -> None:
        self.moments: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.moments.append(event)

    def seconds(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Of each forward and each backward, [repeats, 2]."""
        torch.cuda.synchronize()
        since = [self.moments[0].elapsed_time(event) / 1e3 for event in self.moments]
        return np.diff(np.array(since).reshape(-1, 3), axis=1)


def _free(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    # macOS does not say what is free, only what there is.
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return float(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE"))


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RuntimeError as error:
        if not any(words in str(error) for words in _FULL):
            raise
        raise Refusal("the device has no room for one layer: give --tensor, or a smaller --micro-batch") from error
