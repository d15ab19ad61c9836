"""Hooks of torch.distributed.pipelining, and so of torchtitan: every schedule class, single stages and many.

Schedule.step            the step; ``eval`` calls it too, and then no backward runs
Stage.forward_one_chunk  F, until the loss is computed on the last stage; backward_one_chunk B or I, .._weight_.. W
_batch_p2p               sends are posted; what each list of works is for is remembered by the list's number
_wait_batch_p2p          waits: half of 1F1B's cover a send and a receive in one
register_custom_function functions that take the place of a stage's own (GraphPP of torchtitan): an action each, or two
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..core.schedule import Kind
from ..readers.recording_file import Whole
from .hooks import Function, Patches, Wrapped, around, demand, version_of
from .place import mesh_axes
from .session import Seat, Session
from .tape import BOTH, OPTIMIZER, RECEIVE, REDUCTION, SEND

ENGINE, PACKAGE = "torch", "torch"
MODULE = "torch.distributed.pipelining.schedules"
_F, _I, _W, _B = (int(kind) for kind in Kind)
# Kinds of actions that are ops, by torch's names; the others but REDUCE_GRAD gather parameters or let them go.
_OPS = {"FORWARD": _F, "FULL_BACKWARD": _B, "BACKWARD_INPUT": _I, "BACKWARD_WEIGHT": _W}
_REDUCE = "REDUCE_GRAD"


def install(session: Session, module: ModuleType, patches: Patches) -> None:
    """Hook the engine.

    Raises:
        Mismatch: it is built otherwise; nothing is wrapped then.
    """
    stages = sys.modules[module.__name__.replace("schedules", "stage")]
    hooks = _Hooks(session)
    patches.removers.append(hooks.give_back)
    base, schedule = stages._PipelineStageBase, module._PipelineSchedule
    wrapped: list[Wrapped] = []

    def hook(owner: Any, name: str, parameters: tuple[str, ...], before: Function, after: Function) -> None:
        original = demand(owner, name, *parameters)
        wrapped.append((owner, name, around(original, before, after, session.failed)))

    hook(base, "forward_one_chunk", ("fwd_chunk_id",), hooks.forward, hooks.close)
    hook(base, "backward_one_chunk", ("bwd_chunk_id", "full_backward"), hooks.backward, hooks.close)
    hook(base, "backward_weight_one_chunk", ("bwd_chunk_id",), hooks.weight, hooks.close)
    hook(base, "get_fwd_send_ops", ("fwd_chunk_id",), hooks.sending_forward, hooks.will_send)
    hook(base, "get_bwd_send_ops", ("bwd_chunk_id",), hooks.sending_backward, hooks.will_send)
    hook(schedule, "_maybe_compute_loss", ("stage", "mb_index"), hooks.loss, hooks.loss_done)
    hook(module, "_batch_p2p", ("p2p_ops",), hooks.batch, hooks.batched)
    hook(module, "_wait_batch_p2p", ("work",), hooks.wait, hooks.waited)
    if hasattr(base, "perform_reduce_grad"):
        hook(base, "perform_reduce_grad", (), hooks.reduce, hooks.reduced)
    for owner in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        hook(owner, "step", (), hooks.step, hooks.step_done)
    patches.put_all(wrapped)
    _hook_optimizers(session, patches)
    session.engines[ENGINE] = version_of(PACKAGE)


def _hook_optimizers(session: Session, patches: Patches) -> None:
    """Time every optimizer of torch, by the hooks that it has for that; those of other engines derive from it."""
    module: Any = sys.modules.get("torch.optim.optimizer")
    if not hasattr(module, "register_optimizer_step_pre_hook"):
        return
    began: list[int] = []

    def before(*_: Any) -> None:
        began[:] = [session.tape.now()] if session.on else []

    def after(*_: Any) -> None:
        if began:
            session.add_outside(OPTIMIZER, began.pop())
            session.updated()

    patches.removers.append(module.register_optimizer_step_pre_hook(before).remove)
    patches.removers.append(module.register_optimizer_step_post_hook(after).remove)


class _Hooks:
    """What the hooks of one session share."""

    def __init__(self, session: Session) -> None:
        self._session, self._tape = session, session.tape
        self._kinds: dict[int, int] = {}  # what a list of works is for, by its number; every list comes by here first
        self._to_send: list[tuple[int, int, int]] = []  # ops whose outputs are handed over and not yet posted
        self._axes: dict[str, tuple[int, int]] | None = None
        self._isend: Any = sys.modules["torch.distributed"].isend
        self._stage: Any = None  # of a step whose beginning was not seen
        self._custom: list[tuple[dict[Any, Function], Any, Function, Function]] = []  # what we put around, and where
        self._began: list[int] = []  # when custom functions that run now began to compute
        session.at_close.append(self._finish_unseen)

    # Steps.

    def step(self, schedule: Any, *_: Any, **__: Any) -> Any:
        session = self._session
        if session.open and self._stage is None:
            return None  # a class that calls its parent's step
        self._finish_unseen()
        self._to_send.clear()
        self._kinds.clear()  # numbers of lists that are gone are given out again
        # Shapes are exchanged anew for a schedule of another kind or size, and for the first evaluation.
        variety = type(schedule).__name__, schedule._n_microbatches, getattr(schedule, "_has_backward", True)
        if not session.begin(_stage_of(schedule).submod, variety):
            return None
        self._take_custom(schedule)
        return schedule

    def step_done(self, schedule: Any, _: Any) -> None:
        self._session.end(lambda: self._seat(schedule))
        if self._axes is None:
            self._axes = mesh_axes()  # after the first step, which is slow anyway

    def _unseen(self, stage: Any, kind: int, unit: int) -> bool:
        """Whether an op counts; it opens the step if that began without a word, by a function captured before."""
        if self._session.open:
            if self._stage is None or not self._tape.repeats(kind, stage.stage_index, unit):
                return True
            self._finish_unseen()
        if not self._session.begin(stage.submod):
            return False
        self._stage = stage
        return True

    def _finish_unseen(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None and self._session.open:
            self._session.end(lambda: self._seat_of_stage(stage), self._tape.last_end())

    # Ops.

    def forward(self, stage: Any, fwd_chunk_id: int, *_: Any, **__: Any) -> int | None:
        if (self._stage is not None or not self._session.open) and not self._unseen(stage, _F, fwd_chunk_id):
            return None
        return self._tape.open(_F, stage.stage_index, fwd_chunk_id)

    def backward(
        self, stage: Any, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, *_: Any, **__: Any
    ) -> int | None:
        del loss
        if not stage.has_backward or not self._session.open:
            return None
        kind = _B if full_backward else _I
        return self._tape.open(kind, stage.stage_index, bwd_chunk_id)

    def weight(self, stage: Any, bwd_chunk_id: int, *_: Any, **__: Any) -> int | None:
        if not stage.has_backward or not self._session.open:
            return None
        return self._tape.open(_W, stage.stage_index, bwd_chunk_id)

    def close(self, row: int, _: Any) -> None:
        self._tape.close(row)

    def loss(self, schedule: Any, stage: Any, output: Any, target_mbs: Any, mb_index: int, *_: Any, **__: Any) -> Any:
        del schedule, output, target_mbs
        if not self._session.open or not stage.is_last:
            return None
        return stage.stage_index, mb_index

    def loss_done(self, cell: tuple[int, int], _: Any) -> None:
        self._tape.extend(_F, *cell)

    # Functions that are registered in the place of a stage's own: they may run ops that no other hook sees.

    def _take_custom(self, schedule: Any) -> None:
        functions = getattr(schedule, "_comp_type_to_function_map", None) or {}
        mine = {id(wrapped) for *_, wrapped in self._custom}
        for kind, function in list(functions.items()):
            if id(function) not in mine:
                wrapped = around(function, self.custom, self.custom_done, self._session.failed)
                self._custom.append((functions, kind, function, wrapped))
                functions[kind] = wrapped

    def give_back(self) -> None:
        """Leave the functions of schedules as they were registered."""
        for functions, kind, function, wrapped in self._custom:
            if functions.get(kind) is wrapped:
                functions[kind] = function
        self._custom.clear()

    def custom(self, action: Any, *_: Any, **__: Any) -> Any:
        if not self._session.open:
            return None
        self._began.append(self._tape.now())
        return action

    def custom_done(self, action: Any, _: Any) -> None:
        began = self._began.pop()
        if not self._session.open:
            return
        ops = []
        for each in action.sub_actions or (action,):
            if each.computation_type.name == _REDUCE:
                self._session.add_outside(REDUCTION, began)
            kind = _OPS.get(each.computation_type.name)
            # One that calls the stage's own function is on the tape already.
            if kind is not None and not self._tape.repeats(kind, each.stage_index, each.microbatch_index):
                ops.append((kind, each.stage_index, each.microbatch_index))
        ended = self._tape.now()
        for number, op in enumerate(ops):  # two of one action share its slot
            self._tape.close(self._tape.open(*op, at=began, joined=number > 0), ended)

    # Messages.

    def sending_forward(self, stage: Any, fwd_chunk_id: int) -> Any:
        if not self._session.open:
            return None
        return _F, stage.stage_index, fwd_chunk_id

    def sending_backward(self, stage: Any, bwd_chunk_id: int) -> Any:
        if not self._session.open:
            return None
        return _B, stage.stage_index, bwd_chunk_id

    def will_send(self, op: tuple[int, int, int], messages: Any) -> None:
        if messages:
            self._to_send.append(op)

    def batch(self, p2p_ops: Any, *_: Any, **__: Any) -> Any:
        if not self._session.open:
            return None
        sends = sum(each.op is self._isend for each in p2p_ops)
        if sends:
            for kind, stage, unit in self._to_send:
                self._tape.post(kind, stage, unit)
                if kind == _B:  # the engine has one call for both; of B and I only one is on the tape
                    self._tape.post(_I, stage, unit)
            self._to_send.clear()
        if sends == len(p2p_ops):
            return (SEND,)
        if sends:
            return (BOTH,)
        return (RECEIVE,)

    def batched(self, which: tuple[int], works: Any) -> None:
        self._kinds[id(works)] = which[0]

    def wait(self, work: Any) -> Any:
        if not work or not self._session.open:
            return None
        return self._kinds.get(id(work), BOTH), self._tape.now()

    def waited(self, began: tuple[int, int], _: Any) -> None:
        self._tape.wait(*began)
        if self._began:  # a function of the schedule's own takes its input itself, before it computes
            self._began[-1] = self._tape.now()

    def reduce(self, *_: Any, **__: Any) -> int | None:
        return self._session.now_if_open()

    def reduced(self, began: int, _: Any) -> None:
        self._session.add_outside(REDUCTION, began)

    # What a step was.

    def _seat(self, schedule: Any) -> Seat:
        stage = _stage_of(schedule)
        custom = getattr(schedule, "_comp_type_to_function_map", None) or {}
        unseen = ""
        if custom:
            names = ", ".join(str(getattr(kind, "name", kind)) for kind in custom)
            unseen = f"functions of its own are registered for {names}"
        placement = getattr(schedule, "stage_index_to_group_rank", None) or stage.stage_index_to_group_rank
        return self._made(
            stage,
            placement,
            engine="torch-1f1b" if type(schedule).__name__ == "Schedule1F1B" else ENGINE,
            schedule=type(schedule).__name__.removeprefix("Schedule"),
            microbatches=int(schedule._n_microbatches),
            unseen=unseen,
        )

    def _seat_of_stage(self, stage: Any) -> Seat:
        units = self._tape.units()
        return self._made(
            stage, stage.stage_index_to_group_rank, engine=ENGINE, schedule="", microbatches=units, unseen=""
        )

    def _made(
        self, stage: Any, placement: dict[int, int], *, engine: str, schedule: str, microbatches: int, unseen: str
    ) -> Seat:
        dist = sys.modules["torch.distributed"]
        if self._axes is None:
            self._axes = mesh_axes()
        return Seat(
            engine=engine,
            version=self._session.engines.get(ENGINE, ""),
            schedule=schedule,
            microbatches=microbatches,
            pipeline=[int(rank) for rank in dist.get_process_group_ranks(stage.group or dist.group.WORLD)],
            placement=[int(placement[at]) for at in range(stage.num_stages)],
            axes=self._axes,
            switches=_switches(stage),
            unseen=unseen,
        )


def _stage_of(schedule: Any) -> Any:
    """A stage of this rank: schedules of several keep a list, those of one the stage."""
    stages = getattr(schedule, "_stages", None)
    if stages:
        return stages[0]
    return schedule._stage


def _switches(stage: Any) -> dict[str, Whole]:
    return {"compiled": hasattr(stage.submod, "_orig_mod")}
