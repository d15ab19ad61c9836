"""Clocks, put on one: those of devices by the messages between them, those of ranks by cause and effect.

By messages: an offset and a rate for each device, and how sure they are. Both sides of a message end together, or the
receive ends a little after its send. So of the differences of ends between two devices those of messages down bound the
distance of their clocks from above, those of messages up from below:

    other's end - one's end    .  .   . :  .      of messages from one to the other: distance + what they are late
                               ---------+-----    the distance, which grows over time if one clock runs faster
                                .  . . ..  .      of messages from the other to one: distance - what they are late

This is how network time is kept (https://www.rfc-editor.org/rfc/rfc5905, section 8). Collectives end together on all of
their members, and join the clocks of replicas, between which no message goes.

By cause and effect: nothing that an op needs can have ended after it started. For an op on rank b that needs one of
rank a, offsets o (to be added to each rank's times) must satisfy ``o[b] - o[a] >= end(a) - start(b)``. F runs down the
pipeline and B back up, so each hop is bounded from both sides; the distance of the bounds is what two round trips leave
unknown, and it is printed as the clocks' uncertainty. Messages bound a hop more closely, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..core.laws import needs_of
from ..core.observation import Window
from ..core.program import Program, Timeline
from .device_ops import UNKNOWN, Clock, Collectives, Floats, Ints, Mask, RankOps, group_of, parted
from .pairing import TOGETHER, Pairs, Sides
from .positions import NOWHERE, Places

TOLERANCE = 2_000  # nanoseconds; rounding of times in microseconds or of float32 seconds is no disagreement
_MOST = 4_096  # messages of two devices from which their clocks are told
_ENOUGH = 3  # slopes from which a rate is told
_SURE = 5.0  # times its own uncertainty that a rate must be
_NOISE = 2.0  # times by which ends of one message differ anyhow; less, over the whole trace, nobody need care about
_LEAST = 5_000  # nanoseconds; nor about less than this
FASTEST = 1e-3  # nanoseconds a nanosecond; no clock is that bad
_LONG = 3  # steps; within fewer, what ends late may always end late
_FAR = 6.0  # times the usual deviation: a difference beyond that is a wrong pair
_EARLIEST = 2.0  # percentile that stands for the least delay; the least itself may be a wrong pair
_DOWN, _UP, _BOTH = 1, 0, 2  # ways of a message, from the lower device or to it; a collective goes both


@dataclass(frozen=True, slots=True)
class Rate:
    """How much faster the second of two clocks runs than the first.

    Args:
        rate: nanoseconds a nanosecond; 0 if none can be told from the noise.
        doubt: its standard error.
    """

    rate: float
    doubt: float


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Ends of the messages between two devices, each on the device's own clock.

    Args:
        one: index of a device.
        other: index of another one.
        mine: ends at the first, int64[messages], nanoseconds.
        theirs: ends at the other.
        way: which way each message went.
    """

    one: int
    other: int
    mine: Ints
    theirs: Ints
    way: Ints


@dataclass(frozen=True, slots=True)
class Edge:
    """What the messages between two devices say about their clocks.

    Args:
        one: index of a device.
        other: index of the one whose clock is compared with it.
        since: moment on the first clock, nanoseconds.
        offset: how far the other clock is ahead at that moment, nanoseconds.
        rate: how much faster it runs, nanoseconds a nanosecond.
        doubt: standard error of the rate.
        spread: half the range that holds 98 % of the differences of ends, nanoseconds.
        span: time between the first message and the last, nanoseconds.
    """

    one: int
    other: int
    since: int
    offset: int
    rate: float
    doubt: float
    spread: int
    span: int


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """The clock of each device: at the moment x of the first device of its part it shows x + offset + rate (x - since).

    A part is a set of devices that messages or collectives join; its first device has offset 0 and rate 0.

    Args:
        part: of each device, int64[devices].
        since: moment at which offsets hold, on the clock of the first device of each device's part, int64[devices].
        offset: nanoseconds, int64[devices].
        rate: nanoseconds a nanosecond, float64[devices].
        doubt: standard error of the rate, float64[devices].
        uncertainty: nanoseconds by which the offset may be wrong at most, int64[devices].
        edges: what each pair of devices says, the surest first.
    """

    part: Ints
    since: Ints
    offset: Ints
    rate: Floats
    doubt: Floats
    uncertainty: Ints
    edges: tuple[Edge, ...]

    def drifts(self) -> Mask:
        """Whether each device's clock runs measurably faster or slower than the first of its part, bool[devices]."""
        span, noise = np.zeros(len(self.part)), np.zeros(len(self.part))
        for edge in self.edges:
            for end in (edge.one, edge.other):
                span[end], noise[end] = max(span[end], edge.span), max(noise[end], edge.spread)
        return _measurable(self.rate, self.doubt, span, noise)

    def disagree(self) -> Mask:
        """Whether clocks of each device's part lie further apart than the ends of their messages, bool[devices]."""
        apart = self.drifts()
        for edge in self.edges:
            apart[edge.one] |= abs(edge.offset) > edge.spread + TOLERANCE
        found: Mask = np.isin(self.part, self.part[apart])
        return found

    def shared(self, device: int, times: Ints) -> Ints:
        """Times of a device's clock as the clock of the first device of its part would show them, int64[times]."""
        rate, since = float(self.rate[device]), int(self.since[device])
        level = times - int(self.offset[device])
        if not rate:
            return level
        ahead: Ints = np.rint((level - since) * (rate / (1 + rate))).astype(np.int64)
        return level - ahead


def _measurable(rate: Floats, doubt: Floats, span: Floats, noise: Floats) -> Mask:
    """Whether rates stand out of their own doubt, and move a clock by more than ends of messages differ anyhow."""
    found: Mask = (np.abs(rate) > _SURE * doubt) & (np.abs(rate) * span > np.maximum(_LEAST, _NOISE * noise))
    return found


def clocks_of(devices: Sequence[RankOps], sides: Sides, pairs: Pairs) -> Clocks:
    """Find offset and rate of each device's clock from messages whose both sides are known.

    Rates are told of traces that run on over several steps. If no clock runs measurably faster, all rates are 0.
    """
    if any(device.clock is Clock.STEP for device in devices):  # one offset would not do for two steps
        return _joined(devices, [])
    drifting, steady = [], []
    for ends in _ends(sides, pairs):
        drifting.append(edge_of(ends, rate_of(ends.mine, ends.theirs, ends.way)))
        steady.append(edge_of(ends, Rate(0.0, 0.0)))
    if all(_runs_on(device) for device in devices):
        clocks = _joined(devices, drifting)
        if clocks.drifts().any():
            return clocks
    return _joined(devices, steady)


def rate_of(mine: Ints, theirs: Ints, way: Ints) -> Rate:
    """How much faster the second clock runs: the median slope between pairs half a trace apart.

    Such slopes need no more than half of the pairs to be right (H. Theil 1950, "incomplete" method). What one way
    always ends later than the other is no distance of clocks: slopes are taken within each way.

    Args:
        mine: ends on the first clock, int64[pairs].
        theirs: ends on the second.
        way: which way each message went.
    """
    order = np.argsort(mine, kind="stable")
    time, lag, way = (mine[order] - mine[order[:1]]).astype(float), (theirs - mine)[order], way[order]
    late = (lag - lag[:1]).astype(float)  # the rest of a difference of years would not fit a float
    slopes = np.concatenate([_slopes(time[way == each], late[way == each]) for each in (_UP, _DOWN, _BOTH)])
    if len(slopes) < _ENOUGH:
        return Rate(0.0, float("inf"))
    rate = float(np.median(slopes))
    spread = 1.4826 * float(np.median(np.abs(slopes - rate)))  # as a standard deviation, for normal errors
    doubt = 1.2533 * spread / float(np.sqrt(len(slopes)))  # of a median of normal errors: sqrt(pi / 2) of a mean's
    if abs(rate) >= FASTEST:
        return Rate(0.0, float("inf"))
    return Rate(rate, doubt)


def _slopes(time: Floats, lag: Floats) -> Floats:
    half = len(time) // 2
    if not half:  # [-0:] would be all of them
        return np.empty(0)
    apart = time[-half:] - time[:half]
    slopes: Floats = (lag[-half:] - lag[:half])[apart > 0] / apart[apart > 0]
    return slopes


def edge_of(ends: Ends, rate: Rate) -> Edge:
    """Offset of one clock against another at the first message, given how much faster it runs."""
    since = int(ends.mine.min())
    lag = ends.theirs - ends.mine
    base = int(np.median(lag))
    time = (ends.mine - since).astype(float)
    late = (lag - base) - rate.rate * time
    middle = float(np.median(late))
    usual = 1.4826 * float(np.median(np.abs(late - middle)))
    sound = np.abs(late - middle) <= _FAR * usual + TOGETHER
    late, way = late[sound], ends.way[sound]
    least, _, most = np.percentile(late, [1, 50, 99])
    return Edge(
        one=ends.one,
        other=ends.other,
        since=since,
        offset=base + round(_distance(late, way)),
        rate=rate.rate,
        doubt=rate.doubt,
        spread=round(float(most - least) / 2),
        span=int(time.max()),
    )


def _distance(late: Floats, way: Ints) -> float:
    """The distance of two clocks: between the earliest ends of messages down and the latest of those up."""
    bounds = []
    if (way != _UP).any():
        bounds.append(float(np.percentile(late[way != _UP], _EARLIEST)))
    if (way != _DOWN).any():
        bounds.append(float(np.percentile(late[way != _DOWN], 100 - _EARLIEST)))
    return sum(bounds) / len(bounds)


def _ends(sides: Sides, pairs: Pairs) -> Iterator[Ends]:
    """The ends of all messages between each two devices."""
    source, target = sides.device[pairs.send], sides.device[pairs.receive]
    down = source < target
    one, other = np.minimum(source, target), np.maximum(source, target)
    mine = np.where(down, sides.end[pairs.send], sides.end[pairs.receive])
    theirs = np.where(down, sides.end[pairs.receive], sides.end[pairs.send])
    for rows in parted(np.lexsort((mine, other, one)), one, other):
        some = rows[:: len(rows) // _MOST + 1]
        way = np.where(down[some], _DOWN, _UP)
        yield Ends(int(one[some[0]]), int(other[some[0]]), mine[some], theirs[some], way)


def _runs_on(device: RankOps) -> bool:
    """Whether there are enough steps for a rate, and the times of each lie after those of the steps before it."""
    steps, number = np.unique(device.step, return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, number, device.start)
    anew = bool((np.diff(first[steps >= 0]) <= 0).any())
    return not anew and (len(steps) >= _LONG or bool((steps < 0).any()))


def with_replicas_joined(clocks: Clocks, devices: Sequence[RankOps], places: Places) -> Clocks:
    """The clocks of replicas put on that of the first one, by collectives that end together on all of their members.

    Args:
        clocks: of the devices.
        devices: each on its own clock.
        places: of the devices.
    """
    found = clocks
    for part in np.unique(clocks.part).tolist()[1:]:
        ends = _meetings(clocks, devices, places, part)
        if len(ends.mine):
            edge = edge_of(ends, rate_of(ends.mine, ends.theirs, ends.way))
            if not _measurable(*map(np.asarray, (edge.rate, edge.doubt, edge.span, edge.spread))):
                edge = edge_of(ends, Rate(0.0, 0.0))
            found = _moved(found, edge)
    return found


def _meetings(clocks: Clocks, devices: Sequence[RankOps], places: Places, part: int) -> Ends:
    """Ends of collectives that devices of the first part and of another took part in, each on the clock of its part."""
    first, others = np.flatnonzero(clocks.part == clocks.part[0]), np.flatnonzero(clocks.part == part)
    replicas = len(np.unique(places.replica[places.replica != NOWHERE]))
    mine, theirs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for i, j in product(first.tolist(), others.tolist()):
        one, other = devices[i].collectives, devices[j].collectives
        if one is None or other is None:
            continue
        level = bool(places.position[i] == places.position[j] != NOWHERE)
        here, there = _by_members(one, replicas, level=level), _by_members(other, replicas, level=level)
        for key in sorted(here.keys() & there.keys()):
            if len(here[key]) == len(there[key]):
                mine.append(clocks.shared(i, one.end[here[key]]))
                theirs.append(clocks.shared(j, other.end[there[key]]))
    ways = np.full(sum(map(len, mine)), _BOTH)
    return Ends(int(clocks.part[0]), part, np.concatenate(mine), np.concatenate(theirs), ways)


def _by_members(joint: Collectives, replicas: int, *, level: bool) -> dict[tuple[int, int, int], Ints]:
    """Rows of collectives by members and step: those whose members are named, and of others those of all replicas.

    Args:
        joint: of one device.
        replicas: how many there are.
        level: whether the other device stands at the same position: then a group of that size is the two's.
    """
    named = joint.members != UNKNOWN
    use = named | (level & (joint.size == replicas) & (replicas > 1))
    group = group_of(joint.members, joint.size, joint.step)
    order = np.argsort(group, kind="stable")
    found: dict[tuple[int, int, int], Ints] = {}
    for rows in parted(order[use[order]], group):
        first = rows[0]
        found[int(joint.members[first]), int(joint.size[first]), int(joint.step[first])] = rows
    return found


def _moved(clocks: Clocks, edge: Edge) -> Clocks:
    """The clocks with one part joined to the first: its offsets hold when those of the first part do."""
    mine = clocks.part == edge.other
    since = int(clocks.since[0])
    shown = since + edge.offset + round(edge.rate * (since - edge.since))  # by the other part's clock at that moment
    offset, rate = clocks.offset.copy(), clocks.rate.copy()
    for i in np.flatnonzero(mine).tolist():
        ahead = round(float(rate[i]) * (shown - int(clocks.since[i])))
        offset[i] = shown - since + int(offset[i]) + ahead
    rate[mine] = (1 + rate[mine]) * (1 + edge.rate) - 1
    return replace(
        clocks,
        part=np.where(mine, clocks.part[0], clocks.part),
        since=np.where(mine, since, clocks.since),
        offset=offset,
        rate=rate,
        doubt=np.where(mine, np.hypot(clocks.doubt, edge.doubt), clocks.doubt),
        uncertainty=np.where(mine, clocks.uncertainty + edge.spread, clocks.uncertainty),
        edges=(*clocks.edges, edge),
    )


def _joined(devices: Sequence[RankOps], edges: Sequence[Edge]) -> Clocks:
    """The clocks of all devices from those of neighbours: along a tree of the surest edges."""
    edges = sorted(edges, key=lambda edge: edge.spread)
    part, tree = _surest(len(devices), edges)
    count = len(devices)
    since, offset, uncertainty = np.zeros((3, count), np.int64)
    rate, variance = np.zeros(count), np.zeros(count)
    for first in np.unique(part).tolist():
        since[part == first] = devices[first].start.min(initial=np.iinfo(np.int64).max)
        for here, there, edge in _outward(tree, first):
            offset[there], rate[there] = _next(edge, there, int(since[here]), int(offset[here]), float(rate[here]))
            variance[there] = variance[here] + edge.doubt**2
            uncertainty[there] = uncertainty[here] + edge.spread
    return Clocks(part, since, offset, rate, np.sqrt(variance), uncertainty, tuple(edges))


def _surest(count: int, edges: Sequence[Edge]) -> tuple[Ints, list[list[tuple[int, Edge]]]]:
    """The lowest device that each one is joined to, int64[devices], and neighbours in a tree of the first edges.

    J. Kruskal 1956: an edge is taken if its ends are not joined yet.
    """
    part = np.arange(count)
    tree: list[list[tuple[int, Edge]]] = [[] for _ in range(count)]
    for edge in edges:
        a, b = sorted((int(part[edge.one]), int(part[edge.other])))
        if a != b:
            part[part == b] = a
            tree[edge.one].append((edge.other, edge))
            tree[edge.other].append((edge.one, edge))
    return part, tree


def _outward(tree: Sequence[Sequence[tuple[int, Edge]]], first: int) -> Iterator[tuple[int, int, Edge]]:
    """Each edge of a tree from a device on: the nearer end, the further end, and the edge."""
    seen, left = {first}, [first]
    while left:
        here = left.pop()
        for there, edge in tree[here]:
            if there not in seen:
                seen.add(there)
                left.append(there)
                yield here, there, edge


def _next(edge: Edge, there: int, since: int, offset: int, rate: float) -> tuple[int, float]:
    """Offset and rate of the device at the other end of an edge, from those of the one at this end."""
    shown = since + offset  # by the clock at this end, at the moment at which offsets hold
    if there == edge.other:
        ahead = edge.offset + round(edge.rate * (shown - edge.since))
        return offset + ahead, (1 + rate) * (1 + edge.rate) - 1
    behind = shown - edge.offset
    ahead = edge.offset + round((behind - edge.since) * (edge.rate / (1 + edge.rate)))
    return offset - ahead, (1 + rate) / (1 + edge.rate) - 1


_NONE = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """What cause and effect say about the clocks of ranks.

    Args:
        offsets: nanoseconds to add to each rank's times, int64[ranks].
        width: how far the least certain hop's offset can move without breaking cause and effect, nanoseconds.
        violation: how much too early an op started on the clocks as they were, nanoseconds; 0 if none did.
        consistent: whether any offsets satisfy all ops.
    """

    offsets: Ints
    width: int
    violation: int
    consistent: bool


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Windows on one clock each.

    Args:
        windows: the same that were given, shifted rank by rank.
        uncertainty_ns: by how much the clocks of two neighbours may disagree.
        remarks: what was shifted and why, a sentence each.
    """

    windows: list[Window]
    uncertainty_ns: int
    remarks: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Windows whose ranks' offsets are the same, and what cause and effect say about them."""

    windows: list[Window]
    alignment: Alignment


def aligned(windows: Sequence[Window], clock: Clock, bounds: Mapping[int, Floats]) -> Aligned:
    """Put the ranks of each window on one clock.

    Args:
        windows: each rank still on its own clock.
        clock: what their zeros are worth.
        bounds: by replica, the least offset of one position's clock against another's that messages leave possible,
            float64[ranks, ranks], nanoseconds, as ``lags`` has them; a replica without messages is not there.
    """
    groups: list[_Group] = []
    remarks: list[str] = []
    for some in _sharing(windows, clock):
        shared = _group(some, clock, bounds)
        if shared.alignment.consistent or len(some) == 1:
            groups.append(shared)
            continue
        alone = [_group([window], clock, {}) for window in some]
        if not all(group.alignment.consistent for group in alone):  # then it is not the clocks that are to blame
            groups.append(shared)
            continue
        groups += alone
        if not remarks:
            remarks.append("offsets of clocks change from step to step: each step was aligned on its own")
    broken = max(group.alignment.violation for group in groups)
    if broken and clock is Clock.SHARED:
        remarks.append(
            f"ranks disagree by {broken / 1e6:.3f} ms or more: their clocks were aligned by cause and effect"
        )
    if clock is not Clock.SHARED:
        remarks.append("ranks have no common clock; they were aligned by cause and effect")
    if not all(group.alignment.consistent for group in groups):
        remarks.append("no clock offsets satisfy cause and effect: some ops' times are wrong; clocks were left alone")
    moved: list[Window] = []
    for group in groups:
        moved += [_shift(window, group.alignment) for window in group.windows]
    return Aligned(moved, round(float(np.median([group.alignment.width for group in groups]))), remarks)


def _sharing(windows: Sequence[Window], clock: Clock) -> Iterator[list[Window]]:
    """Windows of which all have the same offsets: of one replica, or single ones if clocks begin anew each step."""
    sharing: dict[int, list[Window]] = {}
    for i, window in enumerate(windows):
        sharing.setdefault(i if clock is Clock.STEP else window.replica, []).append(window)
    for _, some in sorted(sharing.items()):
        yield some


def _group(windows: list[Window], clock: Clock, bounds: Mapping[int, Floats]) -> _Group:
    """Align by F and B, and more closely by messages, as long as the two do not contradict each other."""
    least = np.full((1, 1), _NONE)
    for window in windows:
        least = np.maximum(least, lags(window.timeline.program, window.timeline.start, window.timeline.end))
    trust = clock is Clock.SHARED
    # An op's receive says when its input was there; its end on the other rank only that it was not before.
    if clock is not Clock.STEP and windows[0].replica in bounds:
        closer = align(np.maximum(least, bounds[windows[0].replica]), trust=trust)
        if closer.consistent:
            return _Group(windows, closer)
    return _Group(windows, align(least, trust=trust))


def lags(program: Program, start: Ints, end: Ints) -> Floats:
    """Least offset of rank b against rank a that its ops ask for, float64[ranks, ranks], minus infinity for none.

    Args:
        program: the ops, with what each needs from other ranks.
        start: int64[ops], each on its own rank's clock, in the schedule's numbering.
        end: int64[ops].
    """
    schedule = program.schedule
    rank = schedule.rank_of()
    least = np.full((schedule.ranks, schedule.ranks), _NONE)
    for needs in needs_of(schedule):
        op = np.flatnonzero(needs >= 0)
        np.maximum.at(least, (rank[needs[op]], rank[op]), (end[needs[op]] - start[op]).astype(np.float64))
    np.fill_diagonal(least, _NONE)
    return least


def align(least: Floats, *, trust: bool) -> Alignment:
    """Offsets that put all ranks on the clock of rank 0.

    Each offset is the middle of what is possible: as if both ways between two ranks took equally long, which is how
    network time is kept (https://www.rfc-editor.org/rfc/rfc5905, section 8). The middles satisfy all bounds at once,
    because longest paths satisfy the triangle inequality.

    Args:
        least: as ``lags`` yields it; the largest over windows if offsets do not change.
        trust: keep the clocks as they are if no op contradicts them.
    """
    violation = max(0, round(float(least.max(initial=0.0))))
    agree = trust and violation <= TOLERANCE
    far = least  # hops alone bound clocks that no op contradicts
    if not agree:
        far = _longest_paths(least)
    # A rank that would have to be ahead of itself: a circle of ops each of which needs one that ended too late.
    consistent = bool((np.diagonal(far) <= TOLERANCE).all())
    hops = np.isfinite(least) & np.isfinite(far.T)
    width = max(0, round(float((-far.T - far)[hops].max(initial=0.0))))
    ranks = len(least)
    offsets = np.zeros(ranks, np.int64)
    if not agree and consistent:
        # Where one side is open, the other one is the best there is; a rank that no op joins to rank 0 stays put.
        low, high = far[0], -far[:, 0]
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
        high = np.where(np.isfinite(high), high, low)
        offsets = np.rint((low + high) / 2).astype(np.int64)
        offsets[0] = 0
    return Alignment(offsets, width, violation if violation > TOLERANCE else 0, consistent)


def _longest_paths(least: Floats) -> Floats:
    """The least offset between any two ranks that the bounds imply together (Floyd and Warshall's recursion)."""
    far = least.copy()
    np.fill_diagonal(far, np.maximum(np.diagonal(far), 0.0))
    for via in range(len(far)):
        np.maximum(far, far[:, via, None] + far[None, via, :], out=far)
    return far


def _shift(window: Window, alignment: Alignment) -> Window:
    timeline = window.timeline
    offset = alignment.offsets[timeline.program.schedule.rank_of()]
    if not offset.any():
        return window
    shifted = Timeline(timeline.program, timeline.start + offset, timeline.end + offset, "measured")
    return replace(window, timeline=shifted)
