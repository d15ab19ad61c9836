"""Actions: a program in the words of ``torch.distributed.pipelining``, sends and receives where we put them.

    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 .. 0REDUCE_GRAD

The engine's own lowering is not used: it receives early and, where told to receive late, swaps tensors of one
direction without an error. Our order is proved free of deadlock and meets each send with its receive, first in, first
out. REDUCE_GRAD is ours to add as well: without it the engine leaves gradients m times too large.
"""

from __future__ import annotations

from torch.distributed.pipelining.schedules import _Action, _ComputationType

from ..core.exchange import Act
from ..core.op import Kind
from ..core.program import Program
from ..core.timed import exchange

_COMPUTE = {
    Kind.F: _ComputationType.FORWARD,
    Kind.I: _ComputationType.BACKWARD_INPUT,
    Kind.W: _ComputationType.BACKWARD_WEIGHT,
    Kind.B: _ComputationType.FULL_BACKWARD,
}
_SEND = {Kind.F: _ComputationType.SEND_F, Kind.I: _ComputationType.SEND_B, Kind.B: _ComputationType.SEND_B}
_RECEIVE = {Kind.F: _ComputationType.RECV_F, Kind.I: _ComputationType.RECV_B, Kind.B: _ComputationType.RECV_B}
_NAMES = {Act.COMPUTE: _COMPUTE, Act.SEND: _SEND, Act.RECEIVE: _RECEIVE}


def actions(program: Program) -> dict[int, list[_Action]]:
    """What each rank does in one step, in order; pairs that run together as OVERLAP_F_B."""
    schedule, order = program.schedule, exchange(program)
    return {
        rank: [
            *_row(program, order.act[first:last].tolist(), order.op[first:last].tolist()),
            *([] if schedule.forward_only else _reductions(program, rank)),
        ]
        for rank, (first, last) in enumerate(zip(order.offsets[:-1], order.offsets[1:], strict=True))
    }


def _row(program: Program, acts: list[int], ops: list[int]) -> list[_Action]:
    schedule = program.schedule
    row: list[_Action] = []
    for act, op in zip(acts, ops, strict=True):
        name = _NAMES[Act(act)][Kind(schedule.kind[op])]
        action = _Action(int(schedule.stage[op]), name, int(schedule.unit[op]))
        if act == Act.COMPUTE and schedule.joined is not None and schedule.joined[op]:
            action = _Action(-1, _ComputationType.OVERLAP_F_B, None, (row.pop(), action))
        row.append(action)
    return row


def _reductions(program: Program, rank: int) -> list[_Action]:
    stages = (program.schedule.placement[0] == rank).nonzero()[0]
    return [_Action(int(stage), _ComputationType.REDUCE_GRAD, None) for stage in stages]
