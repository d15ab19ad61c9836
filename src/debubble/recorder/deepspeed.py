"""Hooks of DeepSpeed's PipelineEngine and DualPipeVEngine: the instructions of their schedules, one by one.

_exec_schedule              the step, with its optimizer
ForwardPass, BackwardPass   F and B; a forward's micro-batch is its count, a backward's that of its buffer
Send.., Recv..              a blocking message each; DualPipeV queues them and waits in CommitP2P
LoadMicroBatch, Reduce.., OptimizerStep   time that is no part of the pipeline
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from ..core.schedule import Kind
from .hooks import Function, Mismatch, Patches, around, demand, version_of
from .place import Axes
from .session import Seat, Session
from .tape import BOTH, LOAD, OPTIMIZER, RECEIVE, REDUCTION, SEND

ENGINE, PACKAGE = "deepspeed", "deepspeed"
MODULE = "deepspeed.runtime.pipe.engine"
_F, _B = int(Kind.F), int(Kind.B)
_OUTSIDE = {
    "LoadMicroBatch": LOAD,
    "ReduceGrads": REDUCTION,
    "ReduceTiedGrads": REDUCTION,
    "OptimizerStep": OPTIMIZER,
}
_WAITS = {"RecvActivation": RECEIVE, "RecvGrad": RECEIVE, "SendActivation": SEND, "SendGrad": SEND, "CommitP2P": BOTH}
_SENDS = {"SendActivation": _F, "SendGrad": _B}
_AXES = {"pipeline": "pipe_parallel", "data": "data_parallel", "tensor": "slice_parallel"}


def install(session: Session, module: ModuleType, patches: Patches) -> None:
    """Hook the engine.

    Raises:
        Mismatch: it is built otherwise; nothing is wrapped then.
    """
    engine = module.PipelineEngine
    step = demand(engine, "_exec_schedule", "pipe_schedule")
    hooks = _Hooks(session)
    instructions = hooks.instructions(engine)
    patches.put(engine, "_exec_schedule", around(step, hooks.step, hooks.step_done, session.failed))
    for kind, function in instructions.items():
        patches.put(engine._INSTRUCTION_MAP, kind, function)
    session.engines[ENGINE] = version_of(PACKAGE)


def install_dual(session: Session, module: ModuleType, patches: Patches) -> None:
    """Hook DualPipeVEngine, whose instructions are its own; its step is the other engine's.

    Raises:
        Mismatch: as above.
    """
    engine = module.DualPipeVEngine
    for kind, function in _Hooks(session).instructions(engine).items():
        patches.put(engine._INSTRUCTION_MAP, kind, function)


class _Hooks:
    """What the hooks of one session share."""

    def __init__(self, session: Session) -> None:
        self._session, self._tape = session, session.tape
        self._buffers: dict[int, int] = {}  # micro-batch in each buffer
        self._forwards = 0

    # Steps.

    def step(self, engine: Any, pipe_schedule: Any) -> Any:
        variety = type(pipe_schedule).__name__, pipe_schedule.micro_batches
        self._buffers.clear()
        self._forwards = 0
        if not self._session.begin(engine.module, variety):
            return None
        return engine, pipe_schedule

    def step_done(self, token: tuple[Any, Any], _: Any) -> None:
        self._session.end(lambda: _seat(*token, self._session.engines[ENGINE]))

    # Instructions.

    def instructions(self, engine: Any) -> dict[Any, Function]:
        """Those of an engine, timed; those that it took over from one that is hooked are timed already."""
        known = engine._INSTRUCTION_MAP
        if lost := {"ForwardPass", "BackwardPass", *_OUTSIDE, *_SENDS} - {kind.__name__ for kind in known}:
            raise Mismatch(f"{engine.__name__} has no instruction {', '.join(sorted(lost))}")
        fresh = {kind: function for kind, function in known.items() if not hasattr(function, "__wrapped__")}
        return {kind: self.around(kind.__name__, function) for kind, function in fresh.items()}

    def around(self, name: str, function: Function) -> Function:
        """An instruction, timed as what it is."""
        before: Callable[..., Any] = self._begin
        if name == "ForwardPass":
            before, after = self._forward, self._op_done
        elif name == "BackwardPass":
            before, after = self._backward, self._op_done
        elif name in _OUTSIDE:
            after = partial(self._outside_done, _OUTSIDE[name])
        elif name in _WAITS:
            before, after = partial(self._message, name), partial(self._message_done, name)
        else:
            return function
        return around(function, before, after, self._session.failed)

    def _begin(self, *_: Any, **__: Any) -> int | None:
        return self._session.now_if_open()

    def _forward(self, engine: Any, buffer_id: int, phase: int | None = None, **_: Any) -> int | None:
        if not self._session.open:
            return None
        if phase is None:
            self._buffers[buffer_id] = self._forwards
            self._forwards += 1
        return self._tape.open(_F, *self._cell(engine, buffer_id, phase))

    def _backward(self, engine: Any, buffer_id: int, phase: int | None = None, **_: Any) -> int | None:
        if not self._session.open:
            return None
        return self._tape.open(_B, *self._cell(engine, buffer_id, phase))

    def _op_done(self, row: int, _: Any) -> None:
        self._tape.close(row)

    def _cell(self, engine: Any, buffer_id: int, phase: int | None) -> tuple[int, int]:
        """Stage and micro-batch. DualPipeV numbers its buffers by phase and micro-batch, and mirrors its stages."""
        if phase is None:
            return int(engine.stage_id), self._buffers.get(buffer_id, 0)
        stage = int(engine.stage_id)
        if phase == 1:  # the way back of the V: the first rank holds the last stage too
            stage = 2 * int(engine.num_stages) - 1 - stage
        return stage, buffer_id % int(engine.micro_batches)

    def _message(self, name: str, engine: Any, buffer_id: int = 0, phase: int | None = None, **_: Any) -> int | None:
        if not self._session.open:
            return None
        if name in _SENDS:
            self._tape.post(_SENDS[name], *self._cell(engine, buffer_id, phase))
        return self._tape.now()

    def _message_done(self, name: str, began: int, _: Any) -> None:
        self._tape.wait(_WAITS[name], began)

    def _outside_done(self, what: str, began: int, _: Any) -> None:
        self._session.add_outside(what, began)
        if what == OPTIMIZER:
            self._session.updated()


def _seat(engine: Any, pipe_schedule: Any, version: str) -> Seat:
    ranks, schedule = int(pipe_schedule.stages), "1F1B"
    grid, placement = engine.grid, list(range(ranks))
    if type(pipe_schedule).__name__.startswith("DualPipeV"):
        schedule = "DualPipeV"
        placement += placement[::-1]
    axes: Axes = {}
    for axis, word in _AXES.items():
        if hasattr(grid, f"get_{word}_rank"):
            axes[axis] = int(getattr(grid, f"get_{word}_rank")()), int(getattr(grid, f"get_{word}_world_size")())
    return Seat(
        engine=ENGINE,
        version=version,
        schedule=schedule,
        microbatches=int(pipe_schedule.micro_batches),
        pipeline=[int(grid.stage_to_global(stage)) for stage in range(ranks)],
        placement=placement,
        axes=axes,
        switches={"dynamic_shape": bool(getattr(engine, "dynamic_shape", False))},
    )
