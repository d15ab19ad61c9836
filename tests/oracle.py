"""A second simulator, written from the definitions with dicts and loops, that shares no code with the first.

It reads a schedule op by op, and knows only: a rank runs its slots in order; F of a stage needs F of the stage below,
I and B need the gradient of the stage above; a slot of two ops takes their sum times the scale of pairs, starts when
the inputs of both are there, and sends both outputs when it ends; and what a transfer takes up.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from debubble.core.costs import Costs
from debubble.core.posts import Act, Exchange
from debubble.core.schedule import Kind, Op, Schedule

Times = dict[Op, tuple[int, int]]


class Oracle:
    """One run of a schedule; ``times`` holds start and end of every op when ``run`` returns."""

    def __init__(self, schedule: Schedule, costs: Costs, sends: str = "async"):
        self.schedule, self.costs, self.sends = schedule, costs, sends
        self.home = {op: rank for rank in range(schedule.ranks) for op in schedule.row(rank)}
        self.times: Times = {}
        self.arrived: dict[Op, int] = {}
        self.free = [0] * schedule.ranks
        self.link: dict[tuple[int, int], int] = defaultdict(int)

    def cost(self, table: np.ndarray, op: Op) -> int:
        return int(table[op.kind, op.stage, op.microbatch if table.shape[2] > 1 else 0])

    def slots(self, rank: int) -> list[list[Op]]:
        joined = self.schedule.joined
        slots: list[list[Op]] = []
        for row, op in zip(range(self.schedule.offsets[rank], 2**62), self.schedule.row(rank), strict=False):
            if joined is not None and joined[row]:
                slots[-1].append(op)
            else:
                slots.append([op])
        return slots

    def source(self, op: Op) -> Op | None:
        """The op whose output this one takes in, from whatever rank."""
        if op.kind == Kind.F:
            below = Op(Kind.F, op.stage - 1, op.microbatch)
            return below if op.stage else None
        if op.kind == Kind.W:
            return None
        above = [Op(kind, op.stage + 1, op.microbatch) for kind in (Kind.I, Kind.B)]
        return next((other for other in above if other in self.home), None)

    def sink(self, op: Op) -> Op | None:
        """The op on another rank that takes in the output of this one."""
        step = {Kind.F: [Op(Kind.F, op.stage + 1, op.microbatch)], Kind.W: []}
        back = [Op(kind, op.stage - 1, op.microbatch) for kind in (Kind.I, Kind.B)]
        found = [other for other in step.get(op.kind, back) if other in self.home]
        return found[0] if found and self.home[found[0]] != self.home[op] else None

    def comes_from_elsewhere(self, op: Op) -> bool:
        source = self.source(op)
        return source is not None and self.home[source] != self.home[op]

    def run_slot(self, rank: int, slot: list[Op]) -> None:
        waits = [self.arrived[op] for op in slot if self.comes_from_elsewhere(op)]
        start = max([self.free[rank], *waits])
        spent = sum(self.cost(self.costs.durations, op) for op in slot)
        if len(slot) == 2:
            spent = round(spent * self.costs.pair_scale)  # half to even, as everywhere
        for op in slot:
            self.times[op] = (start, start + spent)
        self.free[rank] = start + spent

    def ready(self, slot: list[Op]) -> bool:
        return all(op in self.arrived for op in slot if self.comes_from_elsewhere(op))

    def send(self, op: Op) -> None:
        sink = self.sink(op)
        if sink is None:
            return
        rank, way = self.home[op], (self.home[op], self.home[sink])
        latency = self.cost(self.costs.transfers, sink)
        bytes_take = 0 if self.costs.occupancy is None else self.cost(self.costs.occupancy, sink)
        made = self.times[op][1]
        if self.sends == "async":
            self.arrived[sink] = made + latency + bytes_take
        elif self.sends == "link":
            self.link[way] = max(self.link[way], made) + bytes_take
            self.arrived[sink] = self.link[way] + latency
        else:
            self.free[rank] += latency + bytes_take
            self.arrived[sink] = self.free[rank]

    def run(self) -> Oracle:
        """Asynchronous, link or blocking: go round the ranks until all have run all slots."""
        left = [self.slots(rank) for rank in range(self.schedule.ranks)]
        while any(left):
            progress = False
            for rank, slots in enumerate(left):
                while slots and self.ready(slots[0]):
                    slot = slots.pop(0)
                    self.run_slot(rank, slot)
                    for op in slot:
                        self.send(op)
                    progress = True
            if not progress:
                raise RuntimeError("deadlock")
        return self

    def run_meeting(self, given: Exchange) -> Oracle:
        """Rendezvous: sends and receives stand in the rows, and both sides wait for each other."""
        rows = [self._acts(given, rank) for rank in range(self.schedule.ranks)]
        while any(rows):
            progress = False
            for rank, row in enumerate(rows):
                if not row:
                    continue
                act, slot, peer = row[0]
                if act == Act.COMPUTE:
                    self.run_slot(rank, slot)
                elif act == Act.SEND and rows[peer] and rows[peer][0] == (Act.RECEIVE, [self.sink(slot[0])], rank):
                    sink = rows[peer].pop(0)[1][0]
                    self._meet(rank, peer, sink)
                else:
                    continue
                row.pop(0)
                progress = True
            if not progress:
                raise RuntimeError("deadlock")
        return self

    def _meet(self, sender: int, receiver: int, sink: Op) -> None:
        hop = self.cost(self.costs.transfers, sink)
        hop += 0 if self.costs.occupancy is None else self.cost(self.costs.occupancy, sink)
        end = max(self.free[sender], self.free[receiver]) + hop
        self.free[sender] = self.free[receiver] = self.arrived[sink] = end

    def _acts(self, given: Exchange, rank: int) -> list[tuple[Act, list[Op], int]]:
        acts: list[tuple[Act, list[Op], int]] = []
        for row in range(given.offsets[rank], given.offsets[rank + 1]):
            op, joined = int(given.op[row]), self.schedule.joined
            if given.act[row] == Act.COMPUTE and joined is not None and joined[op]:
                acts[-1][1].append(self.schedule.op(op))
            else:
                acts.append((Act(given.act[row]), [self.schedule.op(op)], int(given.peer[row])))
        return acts
