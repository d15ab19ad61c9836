"""The rehearsal: one micro-batch through the whole model in this process, before any other is started.

What a model does that a pipeline cannot follow shows here, where it can be named with its stage and costs a moment;
in four processes it is a crash of one rank and a broken connection in the others, or no error at all:

* torch loses the gradients of every stage if the first one has nothing to train and backwards are split: the input
  part of a backward starts from the gradient of a stage's input, and the first stage's output then has none;
* dropout draws other numbers in one process than in several, so that nothing can be compared with it;
* a function that makes other weights when it is called again trains as many models as there are processes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import Fault, InputError
from ..core.op import Kind
from .model import Parts, build, root_of
from .task import Task


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
    again = build(task.schedule.stages, model=task.model)
    pairs = zip(_parameters(parts), _parameters(again), strict=False)
    if not all(torch.equal(first, second) for first, second in pairs):
        rule = "called again it makes other weights, and each process calls it"
        faults.append(Fault(name, rule, "seed it: torch.manual_seed(..) as its first line"))
    return faults


def _parameters(parts: Parts) -> list[nn.Parameter]:
    return [parameter for stage in parts.stages for parameter in stage.parameters()]


def _try(parts: Parts, inputs: Tensor, targets: Tensor, task: Task, name: str) -> None:
    """Forward and backward of one micro-batch, stage by stage."""
    output = _through(parts, inputs, task, name)
    try:
        loss: Any = parts.loss(output, targets)
    except Exception as error:
        raise InputError(Fault(name, f"its loss fails: {root_of(error)}", "call it on one micro-batch")) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        made = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
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
            value = value.double() if value.is_floating_point() else value
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
    drops = [
        f"{type(module).__name__}({module.p:g}) in stage {number}"
        for number, stage in enumerate(parts.stages)
        for module in stage.modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0
    ]
    cause = f" ({drops[0]})" if drops else ""
    rule = f"it draws random numbers in its forward{cause}, others in one process than in several"
    raise InputError(Fault(f"{name} with --check", rule, "set it to 0, call eval() on it, or leave out --check"))
