"""Engines that people run: where each posts its sends and receives, when it waits for them, and what they queue behind.

A table of steps (see ``core.engine.steps_of``) says what a rank posts between two ops: ``[..]`` is waited for at once,
``(..)`` later. Where each was read stands beside it: file, function, release.
"""

from __future__ import annotations

from dataclasses import replace

from ..config.config import Config
from ..core.engine import IDEAL, Engine, Lane, Posting, WaitUntil, steps_of
from ..core.errors import Deadlock, InputError, nearest
from ..core.lower import lower
from ..core.program import Program
from ..core.schedule import Kind, Schedule
from ..schedules.catalog import called

# forward_backward_pipelining_without_interleaving: recv_forward, forward, send_forward; in the steady phase
# send_forward_recv_backward, backward, send_backward_recv_forward.
_FUSED = steps_of("any any [s|r]")

# forward_backward_pipelining_with_interleaving: one batch behind each forward of the warm-up, behind each pair of a
# forward and a backward (send_forward_backward_recv_forward_backward), and behind each backward of the cool-down.
_FUSED_INTERLEAVED = steps_of(
    """
    -  any  [r]
    w  f    [sF rF rB]
    w  c    [sF] [rB]
    w  any  [sF rF]
    f  b
    b  any  [sF sB rF rB]
    c  any  [sB rB]
    """
)

# The same function with overlap_p2p_comm: in the steady phase the receive of the next op of the kind is posted with the
# send, and the send before that is waited for behind it (pp_post_forward, pp_post_backward).
_OVERLAP = steps_of(
    """
    -  f    [r] (rB)
    -  any  [r]
    w  f    [sF rF] (rB)
    w  c    [sF] [rB]
    w  any  [sF rF]
    f  any  (sF rF)
    b  any  (sB rB)
    c  any  [sB rB]
    """
)

# With overlap_p2p_comm_warmup_flush as well: all but the leading rank receive one op further ahead, before computing.
_OVERLAP_ALL = steps_of(
    """
    -  f    [r] (rB)
    -  any  [r] (rF+1);           [r]
    w  f    (sF) (rB);            (sF rF) (rB)
    w  c    (sF) [rB] (rB+1)
    w  any  (sF) (rF+1);          (sF rF)
    f  any  (sF rF)
    b  c    (sB rB) (rB+1);       (sB rB)
    b  any  (sB rB)
    c  any  (sB) (rB+1);          (sB rB)
    """
)

# The same for orders that are not interleaved, which Megatron-Core does not run: one op ahead throughout.
_OVERLAP_ANY = steps_of(
    """
    -  f    [r] (rB)
    -  any  [r]
    w  f    (sF rF) (rB)
    w  c    (sF) [rB]
    F  any  (sF rF)
    B  any  (sB rB)
    """
)

# Schedule1F1B._step_microbatches: receives are waited for at once, a mixed batch as a whole; a send by itself is waited
# for behind the next op.
_TORCH_1F1B = steps_of(
    """
    F    B    [s r]
    B    F    [s r]
    any  any  (s) [r]
    """
)

# ScheduleGPipe._step_microbatches: sends of forwards are waited for before the first backward.
_TORCH_GPIPE = steps_of("any any (s) [r]")

# TrainSchedule.steps: a forward step sends a gradient, then receives an activation; a backward step receives a
# gradient, then sends an activation; each blocks (runtime/pipe/p2p.py). Where no gradient is due, it only sends.
_DEEPSPEED = steps_of(
    """
    F    B    [s/r]
    any  any  [s] [r]
    """
)

_MEGATRON_CORE = "megatron-core 0.16.1, pipeline_parallel/schedules.py, "
_TORCH = "torch 2.13.0, distributed/pipelining/schedules.py, "

MEGATRON = Engine(
    "megatron",
    Posting.STEPS,
    steps=_FUSED,
    chunked=_FUSED_INTERLEAVED,
    coalesced=True,
    source=_MEGATRON_CORE + "forward_backward_pipelining_without_interleaving and _with_interleaving",
)
MEGATRON_OVERLAP = Engine(
    "megatron-overlap",
    Posting.STEPS,
    Lane.PAIR,
    steps=_OVERLAP_ANY,
    chunked=_OVERLAP,
    until=WaitUntil.AGAIN,
    least_chunks=2,  # forward_backward_pipelining_without_interleaving refuses overlap_p2p_comm
    two_ways=True,  # p2p_communication.py, _p2p_ops: two ranks have a group for each direction
    source=_MEGATRON_CORE + "forward_backward_pipelining_with_interleaving with overlap_p2p_comm",
)
TORCH_1F1B = Engine(
    "torch-1f1b",
    Posting.STEPS,
    Lane.PAIR,
    steps=_TORCH_1F1B,
    until=WaitUntil.NEXT,
    coalesced=True,  # a mixed batch; _batch_p2p posts a batch of sends alone, or of receives alone, one by one
    source=_TORCH + "Schedule1F1B._step_microbatches",
)
TORCH = Engine(
    "torch", Posting.PLACED, Lane.PAIR, source=_TORCH + "_add_send_recv and _PipelineScheduleRuntime._step_microbatches"
)
DEEPSPEED = Engine(
    "deepspeed",
    Posting.STEPS,
    Lane.PAIR,
    steps=_DEEPSPEED,
    source="deepspeed 0.19.8, runtime/pipe/schedule.py, TrainSchedule.steps",
)
ZERO_BUBBLE = Engine(
    "zero-bubble",
    Posting.PLANNED,
    Lane.PAIR,
    queue=True,  # its scripts set CUDA_DEVICE_MAX_CONNECTIONS=1; that all launches share a queue was fitted, not seen
    two_ways=True,  # p2p_pipeline_ops
    source="sail-sg/zero-bubble-pipeline-parallelism 39f2c186, pipeline_parallel/zerobubble/{scheduler/communication,"
    "runtime}.py, run_communication_passes and flush",
)

_GPIPE = replace(
    TORCH_1F1B, steps=_TORCH_GPIPE, until=WaitUntil.BACKWARD, source=_TORCH + "ScheduleGPipe._step_microbatches"
)

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        IDEAL,
        MEGATRON,
        MEGATRON_OVERLAP,
        MEGATRON_OVERLAP.switched("warmup-flush", chunked=_OVERLAP_ALL),
        TORCH_1F1B,
        TORCH,
        TORCH.switched("one-lane", lane=Lane.GROUP),
        DEEPSPEED,
        ZERO_BUBBLE,
        ZERO_BUBBLE.switched("batched", lane=Lane.GROUP, coalesced=True),
    )
}


def engine_named(name: str) -> Engine:
    """The engine of that name.

    Raises:
        InputError: no such engine; it offers the nearest names.
    """
    if name not in ENGINES:
        raise nearest(name, ENGINES, "engine")
    return ENGINES[name]


def engine_of(name: str, schedule: Schedule) -> Engine:
    """The engine of that name, as it executes a schedule.

    Raises:
        InputError: as ``engine_named``.
    """
    engine = engine_named(name)
    if name == TORCH_1F1B.name and _forwards_first(schedule):
        return _GPIPE  # torch has two loops for one chunk a rank, one for each order
    return engine


def _forwards_first(schedule: Schedule) -> bool:
    """Whether every rank runs all its forwards before its first backward."""
    forward = schedule.kind == Kind.F
    behind_another = forward[1:] & ~forward[:-1]
    rank = schedule.rank_of()
    return not bool((behind_another & (rank[1:] == rank[:-1])).any())


def implied_engine(config: Config) -> Engine | None:
    """The engine that a framework's configuration implies, with its switches; None where none here is known to be it.

    Megatron-Core overlaps its communication unless told otherwise, and only where a rank has several chunks.

    Raises:
        StillOpen: a switch that decides it is open.
    """
    chunked = (config.chunks or 1) > 1
    if config.framework in ("megatron", "nemo"):
        if not chunked or not config.on("overlap_p2p_comm", otherwise=True):
            return MEGATRON
        if config.on("overlap_p2p_comm_warmup_flush"):
            return ENGINES["megatron-overlap:warmup-flush"]
        return MEGATRON_OVERLAP
    if config.framework in ("torch", "torchtitan"):
        entry = called(config.schedule or "1f1b")
        if not chunked and entry is not None and entry.name in ("1f1b", "gpipe"):
            return TORCH_1F1B  # Schedule1F1B and ScheduleGPipe have loops of their own
        return TORCH
    if config.framework == "deepspeed":
        return DEEPSPEED
    return None


def executing(schedule: Schedule, engine: Engine) -> Program:
    """A schedule under an engine, or, where that cannot run it, under one that would be used instead.

    Megatron-Core runs 1F1B without overlap, whatever was asked for; any other order has torch's runtime.
    """
    for name in dict.fromkeys([engine.name, engine.name.partition("-")[0], TORCH.name]):
        try:
            return lower(schedule, engine_of(name, schedule))
        except (InputError, Deadlock):
            continue
    return lower(schedule)
