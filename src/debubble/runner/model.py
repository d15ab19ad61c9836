"""Models to train: a small decoder-only transformer over the bytes of a text, or the user's own, rehearsed first.

A model comes as ``Parts``, or as a tuple of the same three, from a function of the number of stages. It is called
once in each process and must make the same weights in all of them; each process keeps the stages that it needs.

    def mine(stages: int):
        modules = [nn.Linear(8, 8) for _ in range(stages)]                 # one after the other
        def loss(output, target): return (output - target).square().mean() # mean over the samples of a micro-batch
        def batch(step, samples): return torch.randn(samples, 8), torch.zeros(samples, 8)
        return modules, loss, batch

``batch`` is called with the samples of all replicas and must give the same ones in every process: seed it by step.

``rehearse`` takes one micro-batch through the whole model before any process is started. What a model does that a
pipeline cannot follow shows there, where it can be named with its stage and costs a moment; in four processes it is a
crash of one rank and a broken connection in the others, or no error at all:

* torch loses the gradients of every stage if the first one has nothing to train and backwards are split: the input
  part of a backward starts from the gradient of a stage's input, and the first stage's output then has none;
* dropout draws other numbers in one process than in several, so that nothing can be compared with it;
* a function that makes other weights when it is called again trains as many models as there are processes.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
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

from ..core.errors import Fault, InputError, in_one_line
from ..core.schedule import Kind
from .task import Task

WIDTH, HEADS, SEQUENCE, BYTES = 32, 2, 32, 256
BLOCKS = 8  # at least; more where there are more stages
SEED = 20


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
    if model:
        return _of_user(model, stages)
    return transformer(stages, read_text(text))


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
    file = Path(path or _text_of_python())
    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(Fault(f"text = {file}", f"it cannot be read ({error.strerror})", "give a file")) from None
    if len(text) <= SEQUENCE:
        raise InputError(Fault(f"text = {file}", f"a sample has {SEQUENCE + 1} bytes", "give a longer text"))
    return text


def _text_of_python() -> str:
    """A text of some 700 kB that is on every host: the pages of ``help()``; a Python without them has this file."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None:
        return __file__
    return spec.origin


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
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return in_one_line(error) + place


def _of_user(path: str, stages: int) -> Parts:
    function = load(path)
    try:
        made: Any = function(stages)
    except (Exception, SystemExit) as error:  # whatever a user's function raises is its answer
        rule = f"it fails for {stages} stages: {root_of(error)}"
        raise InputError(Fault(f"model = {path}", rule, "call it alone first")) from error
    try:
        if not isinstance(made, Parts):
            made = Parts(*made)
        parts: Parts = made
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


def rehearse(task: Task) -> None:
    """Build the model, and train it on one micro-batch in this process, unless it is the built-in one.

    Raises:
        InputError: the text is too short, the function is missing or fails, or what it makes cannot be trained in a
            pipeline by this schedule; all that is wrong at once.
    """
    parts = build(task.schedule.stages, model=task.model, text=task.text)
    if not task.model:
        return
    name = f"model = {task.model}"
    inputs, targets = _batch(parts, task, name)
    if faults := _of_weights(parts, task, name):
        raise InputError(*faults)
    if task.device == "cpu":  # a model for GPUs may be too large or too slow for the memory and the cores of a host
        size = task.share // task.schedule.microbatches
        _try(parts, inputs[:size], targets[:size], task, name)


def _batch(parts: Parts, task: Task, name: str) -> tuple[Tensor, Tensor]:
    """The first batch, of as many samples as asked for."""
    try:
        inputs, targets = parts.batch(0, task.batch)
        sizes = [len(inputs), len(targets)]
    except Exception as error:
        raise InputError(Fault(name, f"its batch function fails: {root_of(error)}", "call it alone first")) from error
    if sizes != [task.batch, task.batch]:
        rule = f"asked for {task.batch} samples it made {sizes[0]} inputs and {sizes[-1]} targets"
        raise InputError(Fault(name, rule, "make as many as asked for, samples first"))
    return inputs, targets


def _of_weights(parts: Parts, task: Task, name: str) -> list[Fault]:
    """What can be told from the parameters alone."""
    faults = []
    splits = bool((task.schedule.kind == Kind.I).any())
    trains = [any(p.requires_grad for p in stage.parameters()) for stage in parts.stages]
    if splits and not trains[0] and any(trains):
        rule = "stage 0 has no parameter to train, and torch then loses the gradients of a split backward"
        remedy = "use a schedule with whole backwards (1f1b, interleaved), or train something in stage 0"
        faults.append(Fault(name, rule, remedy))
    if not same_weights(parts, build(task.schedule.stages, model=task.model)):
        rule = "called again it makes other weights, and each process calls it"
        faults.append(Fault(name, rule, "seed it: torch.manual_seed(..) as its first line"))
    return faults


def parameters_of(parts: Parts) -> list[nn.Parameter]:
    """Every parameter once, in the order of the stages; several stages may share one."""
    return list({id(p): p for stage in parts.stages for p in stage.parameters()}.values())


def same_weights(parts: Parts, others: Parts) -> bool:
    """Whether two models have the same parameters in the same order, however they are cut into stages."""
    mine, theirs = parameters_of(parts), parameters_of(others)
    if len(mine) != len(theirs):
        return False
    return all(torch.equal(first.cpu(), second.cpu()) for first, second in zip(mine, theirs, strict=True))


def _try(parts: Parts, inputs: Tensor, targets: Tensor, task: Task, name: str) -> None:
    """Forward and backward of one micro-batch, stage by stage."""
    output = _through(parts, inputs, task, name)
    try:
        loss: Any = parts.loss(output, targets)
    except Exception as error:
        raise InputError(Fault(name, f"its loss fails: {root_of(error)}", "call it on one micro-batch")) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        made = type(loss).__name__
        if isinstance(loss, Tensor):
            made = f"a tensor of shape {list(loss.shape)}"
        raise InputError(Fault(name, f"its loss is {made}", "return one number: the mean over the micro-batch"))
    value = float(loss.detach())
    if not math.isfinite(value):
        raise InputError(Fault(name, f"its loss is {value} on the first micro-batch", "look at it in one process"))
    if not loss.requires_grad and not task.schedule.forward_only:
        rule = "its loss carries no gradient: no stage has a parameter to train"
        raise InputError(Fault(name, rule, "leave requires_grad on where it is to be trained"))
    if task.check:
        _draws_no_numbers(parts, inputs, output, task, name)


def _through(parts: Parts, inputs: Tensor, task: Task, name: str) -> Tensor:
    """The last stage's output.

    Raises:
        InputError: a stage fails, returns no tensor, or cuts off the gradient of those before it.
    """
    value: Any = inputs
    carried = False
    for number, stage in enumerate(parts.stages):
        if task.double:
            stage.double()
            if value.is_floating_point():  # bytes of a text stay what they are: they are looked up, not multiplied
                value = value.double()
        try:
            value = stage(value)
        except Exception as error:
            rule = f"stage {number} fails: {root_of(error)}"
            raise InputError(Fault(name, rule, "each stage takes what the one before returns")) from error
        if not isinstance(value, Tensor):
            rule = f"stage {number} returns {type(value).__name__}"
            raise InputError(Fault(name, rule, "return one tensor, which is sent to the next stage"))
        if carried and not value.requires_grad:
            rule = f"the output of stage {number} is cut off from the stages before it, which would not be trained"
            raise InputError(Fault(name, rule, "do not detach what a stage returns"))
        carried = value.requires_grad
    return value  # type: ignore[no-any-return]


def _draws_no_numbers(parts: Parts, inputs: Tensor, output: Tensor, task: Task, name: str) -> None:
    """Refuse to compare a model that gives another output each time.

    Raises:
        InputError: it does; names the dropout that is found in it.
    """
    torch.manual_seed(0)
    again = _through(parts, inputs, task, name)
    if torch.equal(again, output):
        return
    rule = f"it draws random numbers in its forward{_first_dropout(parts)}, others in one process than in several"
    raise InputError(Fault(f"{name} with --check", rule, "set it to 0, call eval() on it, or leave out --check"))


def _first_dropout(parts: Parts) -> str:
    """The first dropout that is switched on, in brackets; empty if something else must draw the numbers."""
    for number, stage in enumerate(parts.stages):
        for module in stage.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
                return f" ({type(module).__name__}({module.p:g}) in stage {number})"
    return ""
