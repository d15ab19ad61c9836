"""Hooks of Megatron-Core: 1F1B, interleaved, interleaved with overlap, and the combined 1F1B of expert parallelism.

forward_backward_pipelining_{without,with}_interleaving   the step, unless a job looked it up before we came
forward_step, backward_step     F and B; which micro-batch a B is of, the number of its output tensor says
combined_forward_backward_step  one F and one B in one slot
P2PCommunicator._communicate    posts and waits; with overlap the waits are in the handles that it returns
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from ..core.schedule import Kind
from ..readers.recording_file import Whole
from .hooks import Function, Mismatch, Patches, Wrapped, around, demand, version_of
from .place import Axes
from .session import Seat, Session
from .tape import BOTH, RECEIVE, SEND

ENGINE, PACKAGE = "megatron", "megatron-core"
MODULE = "megatron.core.pipeline_parallel.schedules"
_F, _B = int(Kind.F), int(Kind.B)
_STEPS = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)
_SWITCHES = (
    "overlap_p2p_comm",
    "overlap_p2p_comm_warmup_flush",
    "batch_p2p_comm",
    "batch_p2p_sync",
    "overlap_moe_expert_parallel_comm",
    "deallocate_pipeline_outputs",
    "microbatch_group_size_per_vp_stage",
)
_AXES = {  # of parallel_state: the word in get_.._rank
    "pipeline": "pipeline_model_parallel",
    "data": "data_parallel",
    "tensor": "tensor_model_parallel",
    "context": "context_parallel",
    "expert": "expert_model_parallel",
}
Cell = tuple[int, int, int]  # kind, stage, micro-batch


def install(session: Session, module: ModuleType, patches: Patches) -> None:
    """Hook the engine.

    Raises:
        Mismatch: it is built otherwise; nothing is wrapped then.
    """
    hooks, failed = _Hooks(session), session.failed
    wrapped: list[Wrapped] = []

    def hook(owner: Any, name: str, parameters: tuple[str, ...], before: Function, after: Function) -> None:
        wrapped.append((owner, name, around(demand(owner, name, *parameters), before, after, failed)))

    for name in _STEPS:
        hook(module, name, ("model", "num_microbatches"), hooks.step, hooks.step_done)
    forward = ("model", "num_microbatches", "config", "current_microbatch", "vp_stage")
    hook(module, "forward_step", forward, hooks.forward, hooks.forward_done)
    hook(module, "backward_step", ("output_tensor",), hooks.backward, hooks.backward_done)
    combined = sys.modules.get(f"{module.__package__}.combined_1f1b")
    if combined is not None:
        taken = ("f_model_chunk_id", "b_output_tensor", "current_microbatch")
        hook(combined, "combined_forward_backward_step", taken, hooks.combined, hooks.combined_done)
    communicator = getattr(sys.modules.get(f"{module.__package__}.p2p_communication"), "P2PCommunicator", None)
    if communicator is None:
        raise Mismatch("p2p_communication has no P2PCommunicator")
    messages = demand(communicator, "_communicate", "tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next")
    wrapped.append((communicator, "_communicate", hooks.timed(messages)))
    patches.put_all(wrapped)
    session.engines[ENGINE] = version_of(PACKAGE)


class _Hooks:
    """What the hooks of one session share."""

    def __init__(self, session: Session) -> None:
        self._session, self._tape = session, session.tape
        self._outputs: dict[int, Cell] = {}  # ops by the numbers of their outputs, which live until sent
        self._step: dict[str, Any] | None = None
        self._lazy = False  # whether the step began without a word
        self._lazy_seat: Seat | None = None
        session.at_close.append(self._finish_unseen)

    # Steps.

    def step(self, *_: Any, **given: Any) -> Any:
        self._finish_unseen()
        chunks = _listed(given["model"])
        variety = len(chunks), given["num_microbatches"], bool(given.get("forward_only"))
        if not self._session.begin(chunks[0], variety):
            return None
        self._outputs.clear()
        communicator = given.get("p2p_communicator")
        self._step = {
            "chunks": len(chunks),
            "microbatches": int(given["num_microbatches"]),
            "config": _config_of(chunks[0]),
            "group": getattr(communicator, "pp_group", None),
        }
        return self._step

    def step_done(self, step: dict[str, Any], _: Any) -> None:
        self._session.end(lambda: _seat(step, self._session.engines[ENGINE]))
        self._step = None

    def _begin_unseen(self, model: Any, microbatches: int, config: Any, cell: Cell) -> bool:
        """Open the step of an op of which no step told, because a job looked its function up before we came."""
        if self._session.open and not (self._lazy and self._tape.repeats(*cell)):
            return True
        self._finish_unseen()
        if not self._session.begin(model, "unseen"):
            return False
        self._outputs.clear()
        chunks = getattr(config, "virtual_pipeline_model_parallel_size", None) or 1
        self._step = {"chunks": chunks, "microbatches": int(microbatches), "config": config, "group": None}
        # Asked now: when this step's end is noticed, at the next step or at the end of the job, groups may be gone.
        self._lazy_seat = _seat(self._step, self._session.engines[ENGINE])
        self._lazy = True
        return True

    def _finish_unseen(self) -> None:
        seat = self._lazy_seat
        if self._lazy and seat is not None and self._session.open:
            self._session.end(lambda: seat, self._tape.last_end())
        self._lazy = False

    # Ops.

    def forward(
        self, *args: Any, current_microbatch: int | None = None, vp_stage: int | None = None, **given: Any
    ) -> Any:
        if current_microbatch is None:
            return None  # an older engine's: the step will lack its ops, and is refused
        cell = _F, _stage(vp_stage), int(current_microbatch)
        if self._lazy or not self._session.open:
            # Read by hand: binding the arguments to their names took four of the five microseconds of an op.
            model = _argument("model", 2, args, given)
            microbatches = _argument("num_microbatches", 3, args, given)
            if not self._begin_unseen(model, microbatches, _argument("config", 6, args, given), cell):
                return None
        return self._tape.open(*cell), cell

    def forward_done(self, token: tuple[int, Cell], result: Any) -> None:
        row, cell = token
        self._tape.close(row)
        self._outputs[_number(result[0])] = cell

    def backward(self, input_tensor: Any, output_tensor: Any, *_: Any, **__: Any) -> Any:
        del input_tensor
        # backward_step is not told which micro-batch it is of; the tensor that forward_step made is.
        made = self._outputs.pop(_number(output_tensor), None)
        if made is None or not self._session.open:
            return None
        cell = _B, made[1], made[2]
        return self._tape.open(*cell), cell

    def backward_done(self, token: tuple[int, Cell], result: Any) -> None:
        self.forward_done(token, (result,))

    def combined(self, *args: Any, **given: Any) -> Any:
        """The one call may hold an F, a B, or both, and then they share a slot."""
        if not self._session.open:
            return None
        f_model = _argument("f_model", 2, args, given)
        b_model = _argument("b_model", 6, args, given)
        rows: list[tuple[int, Cell]] = []
        began = self._tape.now()
        if f_model is not None:
            cell = _F, _stage(given.get("f_model_chunk_id")), int(given["current_microbatch"])
            rows.append((self._tape.open(*cell, at=began), cell))
        made = None
        if b_model is not None:
            made = self._outputs.pop(_number(_argument("b_output_tensor", 8, args, given)), None)
        if made is not None:
            cell = _B, made[1], made[2]
            rows.append((self._tape.open(*cell, at=began, joined=bool(rows)), cell))
        return rows

    def combined_done(self, rows: list[tuple[int, Cell]], result: Any) -> None:
        ended = self._tape.now()
        for row, cell in rows:
            self._tape.close(row, ended)
            output = result[0] if cell[0] == _F else result[2]
            self._outputs[_number(output)] = cell

    # Messages.

    def timed(self, original: Function) -> Function:
        """``_communicate``, whose waits are in the call, or in the handles that it returns."""

        @functools.wraps(original)
        def communicate(communicator: Any, **given: Any) -> Any:
            began = -1
            try:
                began = self._posted(given)
            except Exception as error:  # ours, and the job goes on
                self._session.failed(error)
            result = original(communicator, **given)
            if began < 0 or not self._session.open:
                return result
            try:
                return self._waited(given, began, result)
            except Exception as error:
                self._session.failed(error)
                return result

        return communicate

    def _posted(self, given: dict[str, Any]) -> int:
        """What is sent is posted now; returns when, or -1 outside a step."""
        if not self._session.open:
            return -1
        for name in ("tensor_send_next", "tensor_send_prev"):
            if (sent := self._outputs.get(_number(given[name]))) is not None:
                self._tape.post(*sent)
        return self._tape.now()

    def _waited(self, given: dict[str, Any], began: int, result: Any) -> Any:
        """The call has waited; or it has not, and the handles that it returns will."""
        if given.get("wait_on_reqs", True) or not isinstance(result[2], dict):
            self._tape.wait(_which(given), began)
            return result
        return (*result[:2], {name: _Handle(name, work, self._session) for name, work in result[2].items()})


class _Handle:
    """A request of a message whose wait is timed; to everybody else it is the request."""

    def __init__(self, name: str, work: Any, session: Session) -> None:
        self._which = RECEIVE if name.startswith("recv") else SEND
        self._work, self._session = work, session

    def wait(self, *args: Any, **given: Any) -> Any:
        tape, began = self._session.tape, self._session.tape.now()
        result = self._work.wait(*args, **given)
        if self._session.open:
            tape.wait(self._which, began)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _which(given: dict[str, Any]) -> int:
    sends = given["tensor_send_next"] is not None or given["tensor_send_prev"] is not None
    receives = given["recv_prev"] or given["recv_next"]
    if sends and receives:
        return BOTH
    return SEND if sends else RECEIVE


def _number(tensor: Any) -> int:
    """The number of a tensor, or of the first of a list: an engine passes either."""
    while isinstance(tensor, list | tuple) and tensor:
        tensor = tensor[0]
    if tensor is None:
        return 0
    # A number and no reference: a tensor that we held could not be freed when the engine lets go of it.
    return id(tensor)


def _argument(name: str, position: int, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """An argument of a call, however it was passed."""
    if name in given:
        return given[name]
    return args[position]


def _listed(model: Any) -> list[Any]:
    if isinstance(model, list | tuple):
        return list(model)
    return [model]


def _config_of(model: Any) -> Any:
    """A model's configuration, through whatever wraps it."""
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    return getattr(model, "config", None)


# Where this process stands, of what Megatron's parallel_state says.


def _state() -> Any:
    return sys.modules["megatron.core.parallel_state"]


def _stage(chunk: int | None) -> int:
    state = _state()
    ranks = int(state.get_pipeline_model_parallel_world_size())
    return int(state.get_pipeline_model_parallel_rank()) + (chunk or 0) * ranks


def _axes() -> Axes:
    axes: Axes = {}
    for axis, word in _AXES.items():
        try:
            rank = int(getattr(_state(), f"get_{word}_rank")())
            axes[axis] = rank, int(getattr(_state(), f"get_{word}_world_size")())
        except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
            continue  # an axis that this version or this job does not have
    return axes


def _seat(step: dict[str, Any], version: str) -> Seat:
    dist, state, config = sys.modules["torch.distributed"], _state(), step["config"]
    group = step["group"] or state.get_pipeline_model_parallel_group()
    pipeline = [int(rank) for rank in dist.get_process_group_ranks(group)]
    switches: dict[str, Whole] = {}
    for name in _SWITCHES:
        value = getattr(config, name, None)
        if value is None or isinstance(value, bool | int | str):
            switches[name] = value
    graphs = str(getattr(config, "cuda_graph_impl", "") or "")
    scope = str(getattr(config, "cuda_graph_scope", "") or "")
    engine = ENGINE
    if getattr(config, "overlap_p2p_comm", False):
        engine = "megatron-overlap"  # another engine to us: its waits are elsewhere
    unseen = ""
    if "full_iteration" in graphs + scope:
        unseen = "CUDA graphs of full iterations run no op by itself"
    return Seat(
        engine=engine,
        version=version,
        schedule="interleaved" if step["chunks"] > 1 else "1F1B",
        microbatches=step["microbatches"],
        pipeline=pipeline,
        placement=[stage % len(pipeline) for stage in range(step["chunks"] * len(pipeline))],
        axes=_axes(),
        switches=switches,
        unseen=unseen,
    )
