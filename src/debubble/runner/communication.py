"""Communication as an engine does it: what a rank posts between its ops, when it waits for it, and links that are slow.

    rank 0   0F3  [send 0F3, receive 0B0]  0B0  [send .. ]         torch-1f1b: one batch, waited for at once
    rank 0   0F3  (send 0F3)  (receive 0B0)  0F4 .. 0B0            torch: one by one, waited for before 0B0

Torch's runtime computes; what stands between two ops is done here, by the same list that is simulated
(``core.lower.communication``). A link of D delays a transfer by D from the later of two moments: both sides have posted
it, and what was posted before it on its lane has ended. Each side notes when it posted in memory that all processes of
the host share, and both work out the same end. Nobody sleeps for D: who waits late finds it over.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _batch_p2p

from ..core.engine import Engine, Lane
from ..core.errors import IllegalSchedule
from ..core.laws import transfers
from ..core.lower import communication
from ..core.posts import Act, mismatches
from ..core.schedule import Kind, Schedule
from ..recorder.tape import BOTH, RECEIVE, SEND
from .watch import Watch

_LOOK_S = 50e-6  # between two looks at whether the other side has posted
Cell = tuple[int, int, int]  # kind, stage, micro-batch


FORWARD, GRADIENT = 0, 1  # the two ways on which tensors travel: activations, and gradients back


class Stamps:
    """When each output was made, int64[replicas, 2, stages, micro-batches], in memory that all processes here share.

    A hop of D delays an arrival: an input is there at (end of the op that made it) + D, however early the receiver
    asks and however late. Messages carry tensors only; so the sender notes the moment here just before it posts the
    send, and the receiver, who finds the note in place once the message has come, sleeps until that moment + D. All
    processes of a host share one monotonic clock; between hosts there is none, and a hop is refused there.

    Args:
        path: a file that all processes of the run open; whoever made it may delete it once all have.
        replica: whose moments are read and written.
        shape: stages and micro-batches.
    """

    def __init__(self, path: Path, replica: int, shape: tuple[int, int]) -> None:
        stages, units = shape
        size = 2 * stages * units * 8
        table = np.memmap(path, np.int64, "r+", offset=replica * size, shape=(2, stages, units))
        self._table: NDArray[np.int64] = table

    def note(self, line: int, stage: int, unit: int, moment: int) -> None:
        """Say when the output of this stage was made."""
        self._table[line, stage, unit] = moment

    def read(self, line: int, stage: int, unit: int) -> int:
        """When the output of this stage was made."""
        return int(self._table[line, stage, unit])


def make_file(path: Path, replicas: int, shape: tuple[int, int]) -> None:
    """Lay out an empty table for ``Stamps``."""
    path.write_bytes(bytes(replicas * 2 * shape[0] * shape[1] * 8))


class Transfer:
    """One side of a transfer on a link that may be slow.

    Args:
        side: ``SEND`` or ``RECEIVE``.
        works: of the process group.
        place: line, stage that makes what is carried, and micro-batch.
        delay: of the link, nanoseconds.
        ahead: what was posted before it on its lane, if that has not ended.
    """

    __slots__ = ("ahead", "delay", "end", "place", "side", "works")

    def __init__(self, side: Act, works: Sequence[dist.Work], place: Cell, delay: int, ahead: Transfer | None) -> None:
        self.side, self.works, self.place, self.delay, self.ahead = side, works, place, delay, ahead
        self.end = 0  # once it is known


class Board:
    """When each side of each transfer was posted in this step, nanoseconds, as both ranks say it.

    Args:
        sent: by the sender; ``received`` by the receiver.
        received: likewise.
        limit_s: how long one side waits for the other.
    """

    def __init__(self, sent: Stamps, received: Stamps, limit_s: float) -> None:
        self._sides, self._limit_s = {Act.SEND: sent, Act.RECEIVE: received}, limit_s
        self._since = 0

    def begin_step(self) -> None:
        """Forget the step before; to be called before a barrier that parts the steps."""
        self._since = time.monotonic_ns()

    def note(self, act: Act, place: Cell, moment: int) -> None:
        """This rank posts its side."""
        self._sides[act].note(*place, moment)

    def met(self, place: Cell) -> int:
        """When both sides had posted; waits until they have.

        Raises:
            RuntimeError: the other side never does.
        """
        until = time.monotonic() + self._limit_s
        while True:
            moments = [side.read(*place) for side in self._sides.values()]
            if min(moments) > self._since:  # else it is of a step before, or nought
                return max(moments)
            if time.monotonic() > until:
                raise RuntimeError(f"gloo: the other side of the transfer of stage {place[1]} never posted it")
            time.sleep(_LOOK_S)


class Line:
    """What one rank does between its ops.

    Args:
        schedule: what all ranks run, proved free of deadlock under this engine.
        engine: whose communication it is.
        rank: this one.
        delays: of the input of each op, nanoseconds, int64[kinds, stages, 1 or units]; None for none.
        board: where both sides of a transfer meet.
        watch: to whom waits are told.

    Raises:
        IllegalSchedule: a rank would receive in another order than the other sends, and torch would swap tensors.
    """

    def __init__(
        self,
        schedule: Schedule,
        engine: Engine,
        rank: int,
        *,
        delays: NDArray[np.int64] | None,
        board: Board,
        watch: Watch,
    ) -> None:
        order = communication(schedule, engine)
        if wrong := mismatches(schedule, order):
            raise IllegalSchedule(schedule.name, wrong)
        self._engine, self._board, self._watch = engine, board, watch
        first, last = (int(row) for row in order.offsets[rank : rank + 2])
        rows = slice(first, last)
        self._acts = [Act(act) for act in order.act[rows].tolist()]
        self._ops, self._peers = order.op[rows].tolist(), order.peer[rows].tolist()
        if order.batch is None or order.until is None:
            raise ValueError(f"{engine} does not say what is posted together and until when it is waited for")
        self._batches = order.batch[rows].tolist()
        self._until = (order.until[rows] - first).tolist()
        self._cells: list[Cell] = list(
            zip(schedule.kind.tolist(), schedule.stage.tolist(), schedule.unit.tolist(), strict=True)
        )
        self._delays = _delays(schedule, delays)
        # Two ranks are each other's neighbours on both sides, and some engines give each direction its own lane then.
        self._two_ways = engine.two_ways and schedule.ranks == 2
        self.stages: dict[int, PipelineStage] = {}
        self._at = 0
        self._due: defaultdict[int, list[Transfer]] = defaultdict(list)  # by the row before which they are waited for
        self._lanes: dict[tuple[int, bool], Transfer] = {}

    def begin_step(self) -> None:
        """The next step begins; before the barrier that parts it from the one before."""
        self._at = 0
        self._due.clear()
        self._lanes.clear()
        self._board.begin_step()

    def advance(self, cell: Cell) -> None:
        """Do all that stands before an op: post, and wait."""
        while self._at < len(self._acts):
            row = self._at
            if self._acts[row] is Act.COMPUTE and self._cells[self._ops[row]] == cell:
                self._wait(row)
                return
            self._do(row)

    def finish(self) -> None:
        """Do what stands behind the last op."""
        while self._at < len(self._acts):
            self._do(self._at)
        self._wait(self._at)

    def _do(self, row: int) -> None:
        """A row and, if it is posted, all that is posted together with it."""
        self._wait(row)
        if self._acts[row] is Act.COMPUTE:  # it has been computed
            self._at += 1
            return
        behind = row + 1
        while behind < len(self._acts) and self._batches[behind] == self._batches[row]:
            behind += 1
        self._post(range(row, behind))
        self._at = behind

    def _post(self, rows: range) -> None:
        """Post what belongs together, as torch does: sends alone or receives alone one by one, a mixture as a batch."""
        # One moment for all, and before the first: what is posted together is posted at once.
        moment = self._watch.moment()
        places = [self._place(row) for row in rows]
        messages: list[list[dist.P2POp]] = []
        for row, place in zip(rows, places, strict=True):
            messages.append(self._messages(row))
            self._board.note(self._acts[row], place, moment)
        works = iter(_batch_p2p([each for some in messages for each in some]))
        # A batch of several goes over the group's communicator (torch's batch_isend_irecv), not over that of the pair.
        alone = len(rows) == 1 or not self._engine.coalesced
        for row, place, some in zip(rows, places, messages, strict=True):
            lane = self._peers[row], self._two_ways and self._acts[row] is Act.SEND
            on_lane = self._engine.lane is not Lane.NONE and alone
            ahead = None
            if on_lane:
                ahead = self._lanes.get(lane)
            delay = int(self._delays[self._acts[row]][self._ops[row]])
            transfer = Transfer(self._acts[row], [next(works) for _ in some], place, delay, ahead)
            if on_lane:
                self._lanes[lane] = transfer
            self._due[self._until[row]].append(transfer)

    def _messages(self, row: int) -> list[dist.P2POp]:
        kind, stage, unit = self._cells[self._ops[row]]
        here = self.stages[stage]
        forward = kind == Kind.F
        if self._acts[row] is Act.SEND:
            return here.get_fwd_send_ops(unit) if forward else here.get_bwd_send_ops(unit)
        return here.get_fwd_recv_ops(unit) if forward else here.get_bwd_recv_ops(unit)

    def _place(self, row: int) -> Cell:
        """Line, stage that makes what is carried, micro-batch: the same on both sides."""
        kind, stage, unit = self._cells[self._ops[row]]
        # A row names the op that makes what is sent, or the op that uses what is received.
        received = self._acts[row] is Act.RECEIVE
        if kind == Kind.F:
            return FORWARD, stage - received, unit
        return GRADIENT, stage + received, unit

    def _wait(self, row: int) -> None:
        due = self._due.pop(row, [])
        if not due:
            return
        sides = {transfer.side for transfer in due}
        which = BOTH
        if len(sides) == 1:
            which = SEND if Act.SEND in sides else RECEIVE
        self._watch.stand(partial(self._complete, due), which)

    def _complete(self, due: list[Transfer]) -> int:
        """Wait for transfers as the process group does; when the last of them has ended by its link."""
        for transfer in due:
            for work in transfer.works:
                work.wait()  # the tensor is here; the link may not have carried it yet
        return max(self._end(transfer) for transfer in due)

    def _end(self, transfer: Transfer) -> int:
        """When a transfer has ended: those that are ahead of it first, which nobody may have waited for."""
        # A loop and no recursion: a step of 512 micro-batches may have a thousand on a lane.
        chain = [transfer]
        while chain[-1].ahead is not None:
            chain.append(chain[-1].ahead)
        free = 0
        for each in reversed(chain):
            if not each.end:
                each.end = max(self._board.met(each.place), free) + each.delay
                each.ahead = None
            free = each.end
        return transfer.end


def _delays(schedule: Schedule, table: NDArray[np.int64] | None) -> dict[Act, NDArray[np.int64]]:
    """The delay of each transfer by the op whose output is sent, and by the op whose input is received."""
    sent, received = np.zeros(len(schedule), np.int64), np.zeros(len(schedule), np.int64)
    if table is not None:
        maker, user = transfers(schedule)
        whole = np.broadcast_to(table, (*table.shape[:2], schedule.units))
        received[user] = whole[schedule.kind[user], schedule.stage[user], schedule.unit[user]]
        sent[maker] = received[user]
    return {Act.SEND: sent, Act.RECEIVE: received}
