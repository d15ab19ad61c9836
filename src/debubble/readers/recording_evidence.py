"""What recordings hold beside the pipeline: receives split by their sends, time outside, how hard the cores worked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.needs import NOTHING, needs_of
from ..core.observation import HostLoad, Link, OutsideParts
from ..core.program import Program
from ..reconstruct.pairing import split
from .recording_file import NOT_SENT, Ints, Process, Step

MOST = 2**32 - 1  # nanoseconds of one transfer that are kept, 4.29 s: millions of them are, for their median


class Receives:
    """Receives of all windows, split by their sends and added up by sender and receiver.

    A receive begins when the rank starts to wait for it and ends when the op that needs it starts; when its output was
    posted, the sender says.
    """

    def __init__(self) -> None:
        self._links: dict[int, list[tuple[int, int, Ints]]] = {}  # by program: sender, receiver and rows of its ops
        self._needs: dict[int, NDArray[np.int32]] = {}
        self._waiting: dict[tuple[int, int], int] = defaultdict(int)
        self._moved: dict[tuple[int, int], list[NDArray[np.uint32]]] = defaultdict(list)

    def add(self, program: Program, start: Ints, stood: Ints, posted: Ints) -> None:
        """Take in one window.

        Args:
            program: whose ops the columns are of, int64[ops] each.
            start: of each op, nanoseconds.
            stood: how long its rank stood in receives before it.
            posted: when its output was posted; ``NOT_SENT`` where none was.
        """
        if id(program) not in self._links:
            self._prepare(program)
        need = self._needs[id(program)]
        for sender, receiver, op in self._links[id(program)]:
            sent = posted[need[op]]
            told = op[sent != NOT_SENT]
            if len(told):
                waited, moved = split(sent[sent != NOT_SENT], start[told] - stood[told], start[told])
                self._waiting[sender, receiver] += int(waited.sum())
                self._moved[sender, receiver].append(np.minimum(moved, MOST).astype(np.uint32))

    def _prepare(self, program: Program) -> None:
        schedule = program.schedule
        need = needs_of(schedule)[0]
        op = np.flatnonzero(need != NOTHING)
        self._needs[id(program)], self._links[id(program)] = need, []
        if not op.size:
            return
        rank = schedule.rank_of()
        pair = rank[need[op]].astype(np.int64) * schedule.ranks + rank[op]
        order = np.argsort(pair, kind="stable")
        pairs, first = np.unique(pair[order], return_index=True)
        rows = np.split(op[order], first[1:])
        self._links[id(program)] = [
            (int(both) // schedule.ranks, int(both) % schedule.ranks, some)
            for both, some in zip(pairs.tolist(), rows, strict=True)
        ]

    def links(self) -> tuple[Link, ...]:
        """The sums; none if no sender says when it posted."""
        found = []
        for (sender, receiver), parts in sorted(self._moved.items()):
            moved = np.concatenate(parts)
            waited, usual = self._waiting[sender, receiver], round(float(np.median(moved)))
            found.append(Link(sender, receiver, len(moved), waited, int(moved.sum(dtype=np.int64)), usual))
        return tuple(found)


def outside_parts(steps: Sequence[tuple[int | None, ...]]) -> OutsideParts | None:
    """What steps hold beside their pipeline, as far as an engine shows it.

    Args:
        steps: loading, reduction and optimizer of each step of each process, nanoseconds.
    """
    means: list[float | None] = []
    for column in zip(*steps, strict=True):
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return OutsideParts(*means) if any(mean is not None for mean in means) else None


def host_loads(tracks: Sequence[tuple[Process, Sequence[Step]]]) -> tuple[HostLoad, ...]:
    """How much of each host's cores the processes of the run used while it ran."""
    hosts: dict[str, list[tuple[Process, int, int, int]]] = defaultdict(list)
    for process, steps in tracks:
        told = [step for step in steps if step.cpu is not None and step.since]
        if told and process.cores:
            used, queued, over = (sum(getattr(step, name) or 0 for step in told) for name in ("cpu", "queued", "since"))
            hosts[process.clock].append((process, used, queued, over))
    loads = []
    for some in hosts.values():
        first = some[0][0]
        wall = max(over for _, _, _, over in some)
        cores, processes = first.cores or 1, max(first.processes or 0, len(some))
        seen = processes / len(some)  # a sample of the processes stands for all
        used = seen * sum(used for _, used, _, _ in some) / (wall * cores)
        queued = sum(queued / over for _, _, queued, over in some) / len(some)
        loads.append(HostLoad(first.host, processes, cores, used, queued))
    return tuple(loads)
