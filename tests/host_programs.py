"""Engines as people wrote them: what the host of each rank does, line by line, and a clock that follows it.

A second opinion on engines that shares no code with the first: dictionaries, loops and one event after the other. Each
program below follows the loops of an engine's own source (its name stands in the docstring); ``clock`` knows only this:

    compute  takes the time of the op
    post     both sides of a transfer must be posted; it begins at the later of the two moments, behind what is in front
             of it on its lane, and ends a hop later; a sender that is taken up by it posts only when that is over
    wait     goes on when the transfer has ended
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from debubble.core.schedule import Kind, Op, Schedule

Step = tuple  # ("compute", op), ("post", [(side, producer), ..], lane), ("wait", [producer, ..])
Program = Callable[["Pipeline", int], Iterator[Step]]
SEND, RECEIVE = "send", "receive"


class Pipeline:
    """A schedule as dictionaries: where ops live, and who makes what for whom."""

    def __init__(self, schedule: Schedule):
        self.schedule, self.ranks = schedule, schedule.ranks
        self.row = [list(schedule.row(rank)) for rank in range(schedule.ranks)]
        self.home = {op: rank for rank, row in enumerate(self.row) for op in row}
        self.source = {op: made for op in self.home if (made := self._source(op)) and self.home[made] != self.home[op]}
        self.sink = {made: op for op, made in self.source.items()}

    def _source(self, op: Op) -> Op | None:
        if op.kind == Kind.F:
            below = Op(Kind.F, op.stage - 1, op.microbatch)
            return below if below in self.home else None
        if op.kind == Kind.W:
            return None
        above = (Op(kind, op.stage + 1, op.microbatch) for kind in (Kind.I, Kind.B))
        return next((made for made in above if made in self.home), None)

    def sends(self, op: Op | None) -> list[tuple[str, Op]]:
        """The side of a rank that sends the output of an op; nothing where nobody elsewhere needs it."""
        return [(SEND, op)] if op in self.sink else []

    def receives(self, op: Op | None) -> list[tuple[str, Op]]:
        """The side of a rank that receives the input of an op."""
        return [(RECEIVE, self.source[op])] if op in self.source else []

    def peer(self, side: tuple[str, Op]) -> int:
        return self.home[self.sink[side[1]]] if side[0] == SEND else self.home[side[1]]

    def forwards(self, rank: int) -> list[Op]:
        return [op for op in self.row[rank] if op.kind == Kind.F]

    def backwards(self, rank: int) -> list[Op]:
        return [op for op in self.row[rank] if op.kind in (Kind.B, Kind.I)]


def at_once(*sides: list[tuple[str, Op]], lane: str = "batch") -> Iterator[Step]:
    """Post what there is as one batch and wait for all of it."""
    batch = [side for part in sides for side in part]
    if batch:
        yield ("post", batch, lane)
        yield ("wait", [made for _, made in batch])


def apart(*sides: list[tuple[str, Op]]) -> Iterator[Step]:
    """Post one by one, each on the lane of its two ranks; wait for nothing."""
    for part in sides:
        for side in part:
            yield ("post", [side], "pair")


# Programs of engines, for one rank each


def megatron_1f1b(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """forward_backward_pipelining_without_interleaving."""
    forward, backward = pipe.forwards(rank), pipe.backwards(rank)
    total = len(forward)
    warm = min(pipe.ranks - rank - 1, total)
    for op in forward[:warm]:
        yield from at_once(pipe.receives(op))
        yield ("compute", op)
        yield from at_once(pipe.sends(op))
    if warm < total:
        yield from at_once(pipe.receives(forward[warm]))
    for step in range(total - warm):
        op, back = forward[warm + step], backward[step]
        yield ("compute", op)
        yield from at_once(pipe.sends(op), pipe.receives(back))
        yield ("compute", back)
        following = forward[warm + step + 1] if step < total - warm - 1 else None
        yield from at_once(pipe.sends(back), pipe.receives(following))
    for op in backward[total - warm :]:
        yield from at_once(pipe.receives(op))
        yield ("compute", op)
        yield from at_once(pipe.sends(op))


def fused_neighbours(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """Any order: the sends of a slot and the receives of the next are one batch where all go to one rank."""
    slots = slots_of(pipe.schedule, rank)
    for behind, before in zip([[], *slots], [*slots, []], strict=True):
        sends = [side for op in behind for side in pipe.sends(op)]
        receives = [side for op in before for side in pipe.receives(op)]
        if len({pipe.peer(side) for side in sends + receives}) <= 1:
            yield from at_once(sends, receives)
        else:
            yield from at_once(sends)
            yield from at_once(receives)
        if before:
            yield ("compute", *before)


def slots_of(schedule: Schedule, rank: int) -> list[list[Op]]:
    slots: list[list[Op]] = []
    for number, op in enumerate(schedule.row(rank), start=int(schedule.offsets[rank])):
        if schedule.joined is not None and schedule.joined[number]:
            slots[-1].append(op)
        else:
            slots.append([op])
    return slots


@dataclass
class Virtual:
    """What Megatron calls virtual micro-batches of a rank: its forwards and its backwards by number."""

    pipe: Pipeline
    rank: int
    warm: int

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.pipe.ranks - 1

    def ops(self, forward: bool, rank: int | None = None) -> list[Op]:
        rank = self.rank if rank is None else rank
        return self.pipe.forwards(rank) if forward else self.pipe.backwards(rank)

    def coming(self, number: int, forward: bool) -> list[tuple[str, Op]]:
        """What arrives with step ``number``: the next input; on the leading rank what the trailing one makes now."""
        leading, trailing = (0, self.pipe.ranks - 1) if forward else (self.pipe.ranks - 1, 0)
        if self.rank == leading:
            aligned = number - (self.pipe.ranks - 1)
            made = self.ops(forward, trailing)[aligned] if aligned >= 0 else None
            return [(RECEIVE, made)] if made in self.pipe.sink else []
        ops = self.ops(forward)
        return self.pipe.receives(ops[number + 1]) if number + 1 < len(ops) else []


def virtual(pipe: Pipeline, rank: int) -> Virtual:
    total, group = (
        len(pipe.forwards(rank)),
        next(number for number, op in enumerate([*pipe.forwards(0), Op(Kind.F, -1, 0)]) if op.stage != 0),
    )
    chunks = pipe.schedule.stages // pipe.ranks
    return Virtual(pipe, rank, min(2 * (pipe.ranks - 1 - rank) + (chunks - 1) * group, total))


def megatron_interleaved(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """forward_backward_pipelining_with_interleaving, no overlap."""
    me = virtual(pipe, rank)
    forward, backward = me.ops(True), me.ops(False)
    total, warm = len(forward), me.warm
    yield from at_once(pipe.receives(forward[0]))
    for step, op in enumerate(forward[:warm]):
        yield ("compute", op)
        receive = me.coming(step, True) if step < total - 1 else []
        gradient = pipe.receives(backward[0]) if step == warm - 1 and warm < total else []
        yield from at_once(pipe.sends(op), receive, gradient)
    for step in range(total - warm):
        op, back = forward[warm + step], backward[step]
        yield ("compute", op)
        yield ("compute", back)
        receive = me.coming(warm + step, True) if step < total - warm - 1 else []
        yield from at_once(pipe.sends(op), pipe.sends(back), receive, me.coming(step, False))
    if warm == total:
        yield from at_once(pipe.receives(backward[0]))
    for step in range(total - warm, total):
        yield ("compute", backward[step])
        yield from at_once(pipe.sends(backward[step]), me.coming(step, False) if step < total - 1 else [])


@dataclass
class Handles:
    """Requests that are waited for later, as the engine keeps them: receives first in, first out, and one send."""

    receives: list[Op] = field(default_factory=list)
    send: Op | None = None

    def post(self, sends: list[tuple[str, Op]], receives: list[tuple[str, Op]]) -> Iterator[Step]:
        """Post both, wait for the send before, and keep the new requests."""
        yield from apart(sends, receives)
        if self.send is not None:
            yield ("wait", [self.send])
        self.send = sends[0][1] if sends else None
        self.receives += [made for _, made in receives]

    def wait(self) -> Iterator[Step]:
        if self.receives:
            yield ("wait", [self.receives.pop(0)])


def waited(*sides: list[tuple[str, Op]]) -> Iterator[Step]:
    """Posts of one call, each on its own lane, all waited for."""
    yield from apart(*sides)
    yield ("wait", [made for part in sides for _, made in part])


def steady(me: Virtual, onward: Handles, back: Handles) -> Iterator[Step]:
    """The middle of a step with overlap_p2p_comm, the same with and without its flush of the warm-up."""
    pipe, forward, backward = me.pipe, me.ops(True), me.ops(False)
    total, warm = len(forward), me.warm
    for step in range(total - warm):
        number = warm + step
        if forward[number] in pipe.source:
            yield from onward.wait()
        yield ("compute", forward[number])
        receive = me.coming(number, True) if step < total - warm - 1 else []
        yield from onward.post(pipe.sends(forward[number]), receive)
        if backward[step] in pipe.source:
            yield from back.wait()
        yield ("compute", backward[step])
        yield from back.post(pipe.sends(backward[step]), me.coming(step, False))
    if warm == total:
        yield from waited(pipe.receives(backward[0]))


def megatron_overlap(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """forward_backward_pipelining_with_interleaving with overlap_p2p_comm."""
    me = virtual(pipe, rank)
    forward, backward = me.ops(True), me.ops(False)
    total, warm = len(forward), me.warm
    onward, back = Handles(), Handles()
    yield from waited(pipe.receives(forward[0]))
    for step, op in enumerate(forward[:warm]):
        yield ("compute", op)
        yield from waited(pipe.sends(op), me.coming(step, True) if step < total - 1 else [])
        if step == warm - 1 and warm < total:
            yield from back.post([], pipe.receives(backward[0]))
    yield from steady(me, onward, back)
    for step in range(total - warm, total):
        if backward[step] in pipe.source and step:
            yield from back.wait()
        yield ("compute", backward[step])
        yield from waited(pipe.sends(backward[step]), me.coming(step, False) if step < total - 1 else [])


def megatron_overlap_all(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """The same with overlap_p2p_comm_warmup_flush."""
    me = virtual(pipe, rank)
    forward, backward = me.ops(True), me.ops(False)
    total, warm = len(forward), me.warm
    onward, back = Handles(), Handles()
    yield from waited(pipe.receives(forward[0]))
    for step, op in enumerate(forward[:warm]):
        if op in pipe.source and step:
            yield from onward.wait()
        receive = me.coming(step, True) if step < total - 1 else []
        if not me.first:
            yield from apart(receive)
            onward.receives += [made for _, made in receive]
        yield ("compute", op)
        yield from onward.post(pipe.sends(op), receive if me.first else [])
        if step == warm - 1 and warm < total:
            yield from back.post([], pipe.receives(backward[0]))
    yield from steady(me, onward, back)
    for step in range(total - warm, total):
        if backward[step] in pipe.source and step:
            yield from back.wait()
        receive = me.coming(step, False) if step < total - 1 else []
        if not me.last:
            yield from apart(receive)
            back.receives += [made for _, made in receive]
        yield ("compute", backward[step])
        yield from back.post(pipe.sends(backward[step]), receive if me.last else [])


def torch_1f1b(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """torch's Schedule1F1B: a mixed batch is one, sends alone and receives alone are unbatched."""
    forward, backward = pipe.forwards(rank), pipe.backwards(rank)
    total = len(forward)
    warm = min(total, pipe.ranks - rank)
    unfinished: list[Op] = []
    for number, op in enumerate(forward[:warm]):
        yield from waited(pipe.receives(op))
        yield ("compute", op)
        yield ("wait", unfinished)
        if number < warm - 1:
            yield from apart(pipe.sends(op))
            unfinished = [made for _, made in pipe.sends(op)]
    sends, done = pipe.sends(forward[warm - 1]), warm
    steady = backward[: total - warm + 1]
    for op in steady:
        yield from mixed(sends, pipe.receives(op))
        yield ("compute", op)
        sends = pipe.sends(op)
        if done == total:
            break
        yield from mixed(sends, pipe.receives(forward[done]))
        yield ("compute", forward[done])
        sends = pipe.sends(forward[done])
        done += 1
    yield from apart(sends)
    unfinished = [made for _, made in sends]
    for op in backward[len(steady) :]:
        yield from waited(pipe.receives(op))
        yield ("compute", op)
        yield ("wait", unfinished)
        yield from apart(pipe.sends(op))
        unfinished = [made for _, made in pipe.sends(op)]


def mixed(sends: list[tuple[str, Op]], receives: list[tuple[str, Op]]) -> Iterator[Step]:
    """torch's _batch_p2p, waited for."""
    yield from at_once(sends, receives) if sends and receives else waited(sends, receives)


def torch_gpipe(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """torch's ScheduleGPipe."""
    for ops in (pipe.forwards(rank), pipe.backwards(rank)):
        unfinished: list[Op] = []
        for op in ops:
            yield from waited(pipe.receives(op))
            yield ("compute", op)
            yield from apart(pipe.sends(op))
            unfinished += [made for _, made in pipe.sends(op)]
        yield ("wait", unfinished)


def deepspeed(pipe: Pipeline, rank: int) -> Iterator[Step]:
    """TrainSchedule.steps, with its arithmetic of steps and micro-batches."""
    stages, total = pipe.ranks, len(pipe.forwards(rank))
    forward, backward = pipe.forwards(rank), pipe.backwards(rank)
    before: int = -1
    for step in range(2 * (total + stages - 1)):
        number, is_forward = deepspeed_step(step, rank, stages)
        valid, was_valid = 0 <= number < total, 0 <= before < total
        if is_forward:
            yield from waited(pipe.sends(backward[before]) if was_valid else [])
            yield from waited(pipe.receives(forward[number]) if valid else [])
        else:
            yield from waited(pipe.receives(backward[number]) if valid else [])
            yield from waited(pipe.sends(forward[before]) if was_valid else [])
        if valid:
            yield ("compute", forward[number] if is_forward else backward[number])
        before = number


def deepspeed_step(step: int, stage: int, stages: int) -> tuple[int, bool]:
    if step % 2 == stage % 2:
        return ((step - stage % 2) // 2 - stage // 2, True)
    if stage % 2:
        return (step // 2 - stages + (stage + 1) // 2, False)
    return ((step - 1) // 2 - stages + 1 + stage // 2, False)


def torch_runtime(pipe: Pipeline) -> dict[int, list[Step]]:
    """_add_send_recv, then _PipelineScheduleRuntime: a receive is waited for right before its consumer."""
    rows: dict[int, list[Step]] = {rank: [] for rank in range(pipe.ranks)}
    left = {rank: slots_of(pipe.schedule, rank) for rank in range(pipe.ranks)}
    known: dict[int, set[Op]] = {rank: set() for rank in range(pipe.ranks)}
    while any(left.values()):
        for rank in range(pipe.ranks):
            if not left[rank] or any(pipe.source.get(op, op) not in known[rank] | {op} for op in left[rank][0]):
                continue
            slot = left[rank].pop(0)
            rows[rank].append(("wait", [pipe.source[op] for op in slot if op in pipe.source]))
            rows[rank].append(("compute", *slot))
            for op in slot:
                if op in pipe.sink:
                    other = pipe.home[pipe.sink[op]]
                    rows[rank].append(("post", [(SEND, op)], "pair"))
                    rows[other].append(("post", [(RECEIVE, op)], "pair"))
                    known[other].add(op)
    return rows


def zero_bubble(pipe: Pipeline, end: dict[Op, int], start: dict[Op, int], batched: bool) -> dict[int, list[Step]]:
    """run_communication_passes on a plan, then the flushes of the runtime.

    Args:
        pipe: the schedule.
        end: planned end of each op.
        start: planned start.
        batched: whether a flush is one batch.
    """
    number = {}
    for rank in range(pipe.ranks):
        for op in pipe.row[rank]:
            if op in pipe.source:
                number[pipe.source[op]] = len(number)
    rows = {}
    for rank in range(pipe.ranks):
        nodes = [(start[op], len(number), at, ("compute", op)) for at, op in enumerate(pipe.row[rank])]
        for made, op in pipe.sink.items():
            for side, home in ((SEND, pipe.home[made]), (RECEIVE, pipe.home[op])):
                if home == rank:
                    nodes.append((end[made], number[made], 0, (side, made)))
        nodes.sort(key=lambda node: node[:3])
        for at in range(1, len(nodes)):
            (*_, (before, op)), (time, _, _, (act, _)) = nodes[at - 1], nodes[at]
            if before == "compute" and act == RECEIVE and time <= end[op]:
                nodes[at - 1], nodes[at] = nodes[at], nodes[at - 1]
        rows[rank] = flushes(pipe, rank, [node[-1] for node in nodes], batched)
    return rows


def flushes(pipe: Pipeline, rank: int, nodes: list[tuple], batched: bool) -> list[Step]:
    steps: list[Step] = []
    waiting: list[tuple[str, Op]] = []
    held: dict[Op, list[Op]] = {}
    for at, node in enumerate(nodes):
        if node[0] == "compute":
            steps += [("wait", held.pop(node[1], [])), node]
            continue
        waiting.append(node)
        following = next((other[1] for other in nodes[at + 1 :] if other[0] == "compute"), None)
        ends = at + 1 == len(nodes) or nodes[at + 1][0] == "compute"
        if ends or (node[0] == RECEIVE and pipe.sink[node[1]] == following):
            waiting.sort(key=lambda side: (towards_next(pipe, side), side[0] == RECEIVE))
            steps += [("post", waiting, "group")] if batched else [("post", [side], "pair") for side in waiting]
            for side, made in waiting:
                if side == RECEIVE:
                    held[pipe.sink[made]] = [other for _, other in waiting]
            waiting = []
    return steps


def towards_next(pipe: Pipeline, side: tuple[str, Op]) -> bool:
    sender, receiver = pipe.home[side[1]], pipe.home[pipe.sink[side[1]]]
    from_before = sender + 1 == receiver or (receiver == 0 and sender == pipe.ranks - 1)
    return from_before == (side[0] == SEND)


# The clock


@dataclass
class Clock:
    """Follows the hosts of all ranks; ``start`` and ``end`` of every op, ``carried`` of every transfer by its producer.

    Args:
        pipe: the schedule.
        spent: time of a slot.
        hop: time of a transfer, by producer.
        taken: time that a transfer takes up its sender before, by producer.
        queue: whether all that a rank launches goes through one queue.
        one_lane: whether a rank has one lane for all its peers.
        two_ways: whether two ranks have a lane for each direction.
    """

    pipe: Pipeline
    spent: Callable[..., int]
    hop: Callable[[Op], int]
    taken: Callable[[Op], int] = lambda made: 0
    queue: bool = False
    one_lane: bool = False
    two_ways: bool = False
    start: dict[Op, int] = field(default_factory=dict)
    end: dict[Op, int] = field(default_factory=dict)
    carried: dict[Op, tuple[int, int]] = field(default_factory=dict)

    def run(self, rows: dict[int, list[Step]]) -> Clock:
        """Let every host go on until it waits for what cannot be told yet, again and again.

        Raises:
            RuntimeError: no host can go on.
        """
        self.stream = [0] * self.pipe.ranks  # what the next launch starts behind
        self.launched = [0] * self.pipe.ranks  # the dispatch of what was launched last
        self.posted: dict[tuple[str, Op], tuple[int, list]] = {}
        self.in_front: dict[tuple[int, object], list] = defaultdict(list)
        left = {rank: list(steps) for rank, steps in rows.items()}
        while any(left.values()):
            moved = False
            for rank, steps in left.items():
                while steps and self._step(rank, steps[0]):
                    steps.pop(0)
                    moved = True
            if not moved:
                raise RuntimeError("deadlock")
        return self

    def _step(self, rank: int, step: Step) -> bool:
        act, *what = step
        if act == "compute":
            self._compute(rank, what)
            return True
        if act == "wait":
            ends = [self._end(made) for made in what[0]]
            if None in ends:
                return False
            self.stream[rank] = max([self.stream[rank], *ends])
            return True
        return self._post(rank, *what)

    def _compute(self, rank: int, slot: list[Op]) -> None:
        begin = max(self.stream[rank], self.launched[rank] if self.queue else 0)
        finish = begin + self.spent(*slot)
        for op in slot:
            self.start[op], self.end[op] = begin, finish
        self.stream[rank] = finish

    def _post(self, rank: int, batch: list[tuple[str, Op]], lane: str) -> bool:
        places = [(rank, self._lane(rank, side, lane)) for side in batch]
        front = [made for place in set(places) for made in self.in_front[place]]
        moment = self.stream[rank]
        if self.queue:
            ends = [self._end(made) for made in front]
            if None in ends:
                return False
            moment = self.launched[rank] = max([moment, self.launched[rank], *ends])
        for side in batch:
            if side[0] == SEND:
                at = moment + self.taken(side[1])
                self.launched[rank] = max(self.launched[rank], at) if self.queue else 0
                moment = at if self.queue else moment
            else:
                at = moment
            self.posted[side] = (at, front)
        if lane == "group":  # one launch, behind all that takes up the sender
            self.posted |= {side: (max(self.posted[side][0], moment), front) for side in batch}
        for place in set(places):
            self.in_front[place] = [made for _, made in batch]
        return True

    def _lane(self, rank: int, side: tuple[str, Op], lane: str) -> object:
        if self.one_lane or lane == "group":
            return "group"
        if lane == "batch":
            return ("batch", side)  # by itself, so nothing is in front of it
        peer = self.pipe.peer(side)
        return (peer, side[0]) if self.two_ways and self.pipe.ranks == 2 else peer

    def _end(self, made: Op) -> int | None:
        """When a transfer ends, if that can be told."""
        if made in self.carried:
            return self.carried[made][1]
        sides = [self.posted.get((side, made)) for side in (SEND, RECEIVE)]
        if None in sides:
            return None
        moments = []
        for side, (at, front) in zip((SEND, RECEIVE), sides, strict=True):
            ends = [self._end(other) for other in front]
            if None in ends:
                return None
            late = self.taken(made) if side == SEND and not self.queue else 0
            moments.append(max([at, *(end + late for end in ends)]))
        self.carried[made] = (max(moments), max(moments) + self.hop(made))
        return self.carried[made][1]
