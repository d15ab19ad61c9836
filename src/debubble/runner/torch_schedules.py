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

from ..core.errors import Fault, InputError, cut_to_a_line, in_one_line, nearest
from ..core.schedule import Kind, Op, Schedule, Shape, from_rows

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
    chunks, taken = _stages_for(found, spec, shape)
    try:
        built = found(taken, shape.microbatches)  # type: ignore[arg-type]
    except (Exception, SystemExit) as error:  # whatever a class raises is its answer
        words = cut_to_a_line(f"{error}") or type(error).__name__
        sizes = f"{spec} with p={shape.ranks}, m={shape.microbatches}, v={chunks}"
        raise InputError(Fault(sizes, f"the class refuses: {words}", "give the sizes that it asks for")) from error
    order = built.pipeline_order  # type: ignore[attr-defined]
    if not order or any(rank not in order for rank in range(shape.ranks)):
        raise InputError(Fault(spec, "the class keeps no pipeline_order for all ranks", "fill it in its constructor"))
    return _schedule(spec, [order[rank] for rank in range(shape.ranks)], shape, chunks * shape.ranks)


def _stages_for(found: type[_PipelineSchedule], spec: str, shape: Shape) -> tuple[int, Any]:
    """Stages on a rank, and what the constructor takes: one stage, or a list of several."""
    if not issubclass(found, PipelineScheduleSingle):
        chunks = max(shape.chunks, 2)
        return chunks, _stand_ins(shape.ranks, chunks)
    if shape.chunks > 1:
        raise InputError(Fault(f"chunks = {shape.chunks}", f"{spec} has one stage a rank", "leave --chunks out"))
    return 1, _stand_ins(shape.ranks, 1)[0]


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
    here = str(Path.cwd())  # as ``python -m`` has it; the script ``debubble`` does not
    sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported, and leave
        rule = f"module {name!r} cannot be imported: {in_one_line(error)}"
        raise InputError(Fault(spec, rule, "write module:Class, with a module that Python finds from here")) from error
    finally:
        sys.path.remove(here)


def _stand_ins(ranks: int, chunks: int) -> list[Any]:
    """What a schedule class asks its stages while it makes the order: the stages of rank 0."""
    stages = []
    for chunk in range(chunks):
        stage = mock.create_autospec(PipelineStage, instance=True)
        # Any rank will do: each makes the order of all of them.
        stage.group_rank, stage.group_size, stage.submod = 0, ranks, None
        stage.stage_index, stage.num_stages = chunk * ranks, chunks * ranks
        stage.is_first, stage.is_last = chunk == 0, False
        stages.append(stage)
    return stages


def _schedule(spec: str, order: list[list[_Action | None]], shape: Shape, stages: int) -> Schedule:
    rows: list[list[Op]] = []
    joined: list[list[bool]] = []  # of each op, whether it shares the slot of the one before
    home: dict[int, int] = {}
    for rank, actions in enumerate(order):
        row: list[Op] = []
        joins: list[bool] = []
        for action in actions:
            for op, second in _ops(action):
                row.append(op)
                joins.append(second)
                home.setdefault(op.stage, rank)
        rows.append(row)
        joined.append(joins)
    return from_rows(
        name=spec.rpartition(":")[2],
        rows=rows,
        placement=[home.get(stage, stage % shape.ranks) for stage in range(stages)],
        microbatches=shape.microbatches,
        source=spec,
        joined=joined if any(map(any, joined)) else None,
    )


def _ops(action: _Action | None) -> Iterator[tuple[Op, bool]]:
    """The ops of an action, and whether each joins the one before; none for sharding, reductions and transfers."""
    if action is None:  # torch pads its rows with these, to stand for time that passes
        return
    for position, part in enumerate(action.sub_actions or (action,)):
        if part.computation_type not in _KINDS:
            continue
        microbatch = part.microbatch_index
        if microbatch is None:
            microbatch = -1  # no op has this number, so that the laws refuse it by name
        yield Op(_KINDS[part.computation_type], part.stage_index, microbatch), position > 0
