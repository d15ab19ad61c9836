"""Schedule classes of PyTorch, built in or the user's own: the order that they would run, without a process.

A class is built on stand-ins for its stages, and its ``pipeline_order`` is read. Whether that order is legal is for
the laws to say: the static order of torch 2.13's own ``Schedule1F1B`` is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _ComputationType,
    _PipelineSchedule,
    get_schedule_class,
)

from ..core.errors import Fault, InputError, nearest
from ..core.op import Kind, Op
from ..core.schedule import Schedule, Shape, from_rows

_KINDS = {
    _ComputationType.FORWARD: Kind.F,
    _ComputationType.BACKWARD_INPUT: Kind.I,
    _ComputationType.BACKWARD_WEIGHT: Kind.W,
    _ComputationType.FULL_BACKWARD: Kind.B,
}


def read_class(spec: str, shape: Shape) -> Schedule:
    """What a schedule class of PyTorch would do.

    Args:
        spec: ``module:Class``, looked up from the working directory too; or ``torch:NAME`` with a name that torch's
            ``get_schedule_class`` knows, as in ``torch:Interleaved1F1B``.
        shape: ranks, micro-batches and stages per rank; one stage a rank counts as not asked for with the classes
            that torch builds for two or more.

    Returns:
        A schedule named after the class, not yet proved legal.

    Raises:
        InputError: there is no such class, it refuses the shape (in its own words), or it keeps no order.
    """
    found = _class_of(spec)
    single = issubclass(found, PipelineScheduleSingle)
    chunks = 1 if single else max(shape.chunks, 2)
    if single and shape.chunks > 1:
        raise InputError(Fault(f"chunks = {shape.chunks}", f"{spec} has one stage a rank", "leave --chunks out"))
    stages = _stand_ins(shape.ranks, chunks)
    try:
        built = found(stages[0] if single else stages, shape.microbatches)  # type: ignore[arg-type]
    except (Exception, SystemExit) as error:  # whatever a class raises is its answer
        words = " ".join(f"{error}".split())[:300] or type(error).__name__
        sizes = f"{spec} with p={shape.ranks}, m={shape.microbatches}, v={chunks}"
        raise InputError(Fault(sizes, f"the class refuses: {words}", "give the sizes that it asks for")) from error
    order = built.pipeline_order  # type: ignore[attr-defined]
    if not order or any(rank not in order for rank in range(shape.ranks)):
        raise InputError(Fault(spec, "the class keeps no pipeline_order for all ranks", "fill it in its constructor"))
    return _schedule(spec, [order[rank] for rank in range(shape.ranks)], shape, chunks * shape.ranks)


def _class_of(spec: str) -> type[_PipelineSchedule]:
    module, _, name = spec.partition(":")
    found: Any
    if module == "torch":
        try:
            found = get_schedule_class(name)
        except ValueError as error:
            known = ("1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")
            raise nearest(name, [*known, "DualPipeV"], "schedule of torch") from error
    else:
        found = getattr(_module(module, spec), name, None)
    if not (isinstance(found, type) and issubclass(found, (PipelineScheduleSingle, PipelineScheduleMulti))):
        rule = "it is no schedule class of torch.distributed.pipelining"
        raise InputError(Fault(spec, rule, "name a subclass of PipelineScheduleSingle or PipelineScheduleMulti"))
    return found


def _module(name: str, spec: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported, and leave
        rule = f"module {name!r} cannot be imported: {type(error).__name__}: {error}"
        raise InputError(Fault(spec, rule, "write module:Class, with a module that Python finds from here")) from error
    finally:
        sys.path.remove(here)


def _stand_ins(ranks: int, chunks: int) -> list[Any]:
    """What a schedule class asks its stages while it makes the order: the stages of rank 0."""
    stages = []
    for chunk in range(chunks):
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, ranks, None
        stage.stage_index, stage.num_stages = chunk * ranks, chunks * ranks
        stage.is_first, stage.is_last = chunk == 0, False
        stages.append(stage)
    return stages


def _schedule(spec: str, order: list[list[_Action | None]], shape: Shape, stages: int) -> Schedule:
    slots = [[slot for action in row if action is not None for slot in _ops(action)] for row in order]
    home: dict[int, int] = {}
    for rank, row in enumerate(slots):
        for op, _ in row:
            home.setdefault(op.stage, rank)
    return from_rows(
        name=spec.rpartition(":")[2],
        rows=[[op for op, _ in row] for row in slots],
        placement=[home.get(stage, stage % shape.ranks) for stage in range(stages)],
        microbatches=shape.microbatches,
        source=spec,
        joined=[[second for _, second in row] for row in slots] if any(s for row in slots for _, s in row) else None,
    )


def _ops(action: _Action) -> Iterator[tuple[Op, bool]]:
    """The ops of an action, and whether each joins the one before; none for sharding, reductions and transfers."""
    parts = action.sub_actions or (action,)
    for position, part in enumerate(parts):
        if part.computation_type in _KINDS:
            microbatch = -1 if part.microbatch_index is None else part.microbatch_index
            yield Op(_KINDS[part.computation_type], part.stage_index, microbatch), position > 0
