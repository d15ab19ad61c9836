"""A training loop of anybody's with a delay on one link: its transfers complete that long after both sides are posted.

    DELAYED_BOARD=/dev/shm/board DELAYED_LINK=2-3 DELAYED_MS=10 torchrun --nproc-per-node 4 delayed_link.py LOOP.py ARGS

Gloo buffers what is sent and knows no delay. So each side notes when it posted, in memory that all processes of the
host share, and ``wait`` returns at the later of the two moments + the delay, which it computes and does not count from
its own beginning: who waits late waits no longer. The n-th send from one rank to another meets the n-th receive there.
With DELAYED_LANE=1 a transfer also begins no earlier than what was posted before it between the same two ranks has
ended, as in a communicator of two ranks; what is posted as one batch is on no such lane.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

RANKS, MOST = 8, 50_000  # of a board; transfers each way between two ranks
BYTES = RANKS * RANKS * 2 * MOST * 8
SENT, RECEIVED = 0, 1
POLL = 50e-6  # seconds between two looks at whether the other side has posted


class Board:
    """When each side of each transfer was posted, nanoseconds of the host's monotonic clock."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), BYTES)
        self.posted: Counter[tuple[int, int, int]] = Counter()

    def post(self, sender: int, receiver: int, side: int) -> int:
        """Note that a side is posted now; its number on that way."""
        number = self.posted[sender, receiver, side]
        self.posted[sender, receiver, side] += 1
        struct.pack_into("q", self.memory, self.place(sender, receiver, side, number), time.monotonic_ns())
        return number

    def met(self, sender: int, receiver: int, number: int) -> int:
        """The moment at which both sides were there; waits for the other one."""
        places = [self.place(sender, receiver, side, number) for side in (SENT, RECEIVED)]
        while True:
            moments = [struct.unpack_from("q", self.memory, place)[0] for place in places]
            if all(moments):
                return max(moments)
            time.sleep(POLL)

    @staticmethod
    def place(sender: int, receiver: int, side: int, number: int) -> int:
        """Where in the memory a moment stands."""
        return 8 * (((sender * RANKS + receiver) * 2 + side) * MOST + number)


BOARD = Board(Path(os.environ["DELAYED_BOARD"]))
LINK = {int(rank) for rank in os.environ.get("DELAYED_LINK", "0-1").split("-")}
DELAY_NS = round(1e6 * float(os.environ.get("DELAYED_MS", "0")))
IN_TURN = os.environ.get("DELAYED_LANE") == "1"
LANES: defaultdict[int, list[Delayed]] = defaultdict(list)  # by peer, in the order in which they were posted


class Delayed:
    """A work that completes some time after both of its sides were posted."""

    def __init__(self, work: Any, way: tuple[int, int], number: int, ahead: Delayed | None) -> None:
        self.work, self.way, self.number, self.ahead = work, way, number, ahead
        self.done = 0

    def ends(self) -> int:
        """The moment at which it completes; waits until that is known."""
        if not self.done:
            begins = BOARD.met(*self.way, self.number)
            if self.ahead is not None:
                begins = max(begins, self.ahead.ends())
                self.ahead = None
            self.done = begins + (DELAY_NS if {*self.way} == LINK else 0)
        return self.done

    def wait(self, *given: Any) -> bool:
        """Wait for the transfer, and until it has taken as long as it should."""
        if self.work is not None:
            self.work.wait(*given)
        time.sleep(max(0, self.ends() - time.monotonic_ns()) / 1e9)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def delayed(call: Callable[..., Any], side: int, *, at_once: bool) -> Callable[..., Any]:
    """``isend``, ``irecv``, ``send`` or ``recv`` over links with a delay."""
    words = ("group_dst", "dst") if side == SENT else ("group_src", "src")

    def posted(tensor: Any, *given: Any, **named: Any) -> Any:
        group = named.get("group") or (given[1] if len(given) > 1 else None)
        peer = given[0] if given else named.get(words[1])
        if peer is None:
            peer = dist.get_global_rank(group or dist.group.WORLD, named[words[0]])
        mine = dist.get_rank()
        way = (mine, peer) if side == SENT else (peer, mine)
        number = BOARD.post(*way, side)
        lane = LANES[peer]
        ahead = lane[-1] if IN_TURN and lane and not BATCHED else None
        work = Delayed(call(tensor, *given, **named), way, number, ahead)
        lane[:] = [work]
        if not at_once:
            return work
        work.work, answer = None, work.work  # a blocking call has no work
        work.wait()
        return answer

    return posted


BATCHED: list[int] = []  # how many go out in the batch that is being posted


def together(call: Callable[..., Any]) -> Callable[..., Any]:
    """``batch_isend_irecv`` whose parts do not wait for each other."""

    def posted(batch: list[Any]) -> Any:
        if len(batch) > 1:
            BATCHED.append(len(batch))
        try:
            return call(batch)
        finally:
            BATCHED.clear()

    return posted


def main() -> None:
    """Run a script whose transfers go over such links."""
    for name, side, at_once in (
        ("isend", SENT, False),
        ("irecv", RECEIVED, False),
        ("send", SENT, True),
        ("recv", RECEIVED, True),
    ):
        changed = delayed(getattr(c10d, name), side, at_once=at_once)
        setattr(c10d, name, changed)
        setattr(dist, name, changed)
    c10d.batch_isend_irecv = dist.batch_isend_irecv = together(c10d.batch_isend_irecv)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
