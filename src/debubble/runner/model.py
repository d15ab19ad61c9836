"""Models to train: a small decoder-only transformer over the bytes of a text, or the user's own.

A model comes as ``Parts``, or as a tuple of the same three, from a function of the number of stages. It is called
once in each process and must make the same weights in all of them; each process keeps the stages that it needs.

    def mine(stages: int):
        modules = [nn.Linear(8, 8) for _ in range(stages)]                 # one after the other
        def loss(output, target): return (output - target).square().mean() # mean over the samples of a micro-batch
        def batch(step, samples): return torch.randn(samples, 8), torch.zeros(samples, 8)
        return modules, loss, batch

``batch`` is called with the samples of all replicas and must give the same ones in every process: seed it by step.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import Fault, InputError

WIDTH, HEADS, SEQUENCE, BYTES = 32, 2, 32, 256
BLOCKS = 8  # at least; more where there are more stages
SEED = 20
MOST_TEXT = 600  # of an error that a model raised


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A model cut into stages, its loss and its data.

    Args:
        stages: modules in order; each takes what the one before returns.
        loss: mean loss of a micro-batch from the last stage's output and the targets.
        batch: inputs and targets of a step, samples first, from the step's number and how many samples.
        tokens: in a sample, or None where there is no such thing.
    """

    stages: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    tokens: int | None = None


def build(stages: int, *, model: str = "", text: str = "") -> Parts:
    """The built-in transformer, or what the user's function makes.

    Raises:
        InputError: the function is not there or makes something else; the text cannot be read or is too short.
    """
    torch.manual_seed(SEED)
    return _of_user(model, stages) if model else transformer(stages, read_text(text))


def transformer(stages: int, text: bytes) -> Parts:
    """A byte-level language model: embedding in the first stage, blocks shared out evenly, head in the last.

    The weights of a block depend on its number alone, so that every cut into stages trains the same model.
    """
    count = max(BLOCKS, stages)
    layers: list[list[nn.Module]] = [
        [_seeded(number, _Block) for number in share.tolist()] for share in np.array_split(np.arange(count), stages)
    ]
    layers[0].insert(0, _seeded(count, _Embedding))
    layers[-1] += [_seeded(count + 1, lambda: nn.LayerNorm(WIDTH)), _seeded(count + 2, lambda: nn.Linear(WIDTH, BYTES))]
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
        dice = torch.Generator().manual_seed(SEED + step)
        first = torch.randint(len(corpus) - SEQUENCE, (samples, 1), generator=dice)
        window = corpus[first + torch.arange(SEQUENCE + 1)].long()
        return window[:, :-1], window[:, 1:]

    return Parts([nn.Sequential(*part) for part in layers], _cross_entropy, batch, SEQUENCE)


def read_text(path: str) -> bytes:
    """The bytes of a text; without a path, the help pages that every Python carries.

    Raises:
        InputError: there is no such file, or it is shorter than one sample.
    """
    spec = importlib.util.find_spec("pydoc_data.topics")
    file = Path(path or (spec.origin if spec and spec.origin else __file__))
    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(Fault(f"text = {file}", f"it cannot be read ({error.strerror})", "give a file")) from None
    if len(text) <= SEQUENCE:
        raise InputError(Fault(f"text = {file}", f"a sample has {SEQUENCE + 1} bytes", "give a longer text"))
    return text


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, WIDTH), nn.Embedding(SEQUENCE, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.byte(text) + self.place.weight[: text.shape[1]]
        return out


class _Block(nn.Module):
    """Causal attention and a perceptron, each behind a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        heads = self.mix(self.norm_a(x)).view(samples, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, WIDTH))
        out: Tensor = x + self.narrow(functional.gelu(self.wide(self.norm_b(x))))
        return out


def _seeded(number: int, make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(SEED + number)
    return make()


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def root_of(error: BaseException) -> str:
    """The first exception of a chain in one line, with the place that raised it: libraries wrap what a model raises."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    words = " ".join(f"{error}".split())[:MOST_TEXT]
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else said


def _of_user(path: str, stages: int) -> Parts:
    function = load(path)
    try:
        made: Any = function(stages)
    except (Exception, SystemExit) as error:  # whatever a user's function raises is its answer
        rule = f"it fails for {stages} stages: {root_of(error)}"
        raise InputError(Fault(f"model = {path}", rule, "call it alone first")) from error
    try:
        parts = made if isinstance(made, Parts) else Parts(*made)
        count = len(parts.stages)
    except TypeError:
        rule = f"it returned {type(made).__name__}, not stages, loss and batch"
        raise InputError(Fault(f"model = {path}", rule, "return those three, as in the help of runner.model")) from None
    if count != stages or not all(isinstance(stage, nn.Module) for stage in parts.stages):
        rule = f"it made {count} stages and the schedule has {stages}"
        raise InputError(Fault(f"model = {path}", rule, "return one torch.nn.Module for each stage"))
    return parts


def load(path: str) -> Callable[[int], object]:
    """The function that ``pkg.module:function`` names; modules beside the caller are found.

    Raises:
        InputError: there is no such module or function.
    """
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a file here must not stand in for a module of Python's own
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, SystemExit) as error:
        rule = f"it cannot be imported ({error})"
        raise InputError(Fault(f"model = {path}", rule, "write it as package.module:function")) from None
    if not callable(function):
        raise InputError(Fault(f"model = {path}", "this is not a function", "write it as package.module:function"))
    return function  # type: ignore[no-any-return]
