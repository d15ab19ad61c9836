"""From devices to an observation, one straight way: each step takes what the one before it made.

ops and messages -> peers -> pairs -> clocks -> places -> directions -> steps -> chunks -> windows
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..core.errors import Refusal
from ..core.observation import DeviceClock, HeldMemory, Observation
from .clocks import TOLERANCE, Clocks, aligned, clocks_of, with_replicas_joined
from .device_ops import UNKNOWN, Clock, Floats, Ints, Mask, RankOps, Reading, of_each_op, parted
from .pairing import (
    ABSENT,
    TOGETHER,
    Pairs,
    Sides,
    links_of,
    pair_by_pile,
    pair_by_time,
    pair_in_order,
    sides_of,
    with_peers,
    with_senses,
)
from .positions import HALF, NOWHERE, Places, Said, labelled_positions, nowhere, places_of, ranks_where
from .unlabelled import directed, linked, split_backward, with_chunks
from .windows import Whole, ending_together, in_one_count, plausible, whole_windows, with_steps

_MOST_NAMED = 4  # ranks whose rates are spelled out
_MATCHED = 0.9  # of a rank's messages: if none reaches it, ends do not tell who belongs together


def observe(reading: Reading, said: Said | None = None) -> Observation:
    """Merge what was measured on devices into windows of whole pipelines.

    Devices of one position and replica (tensor, context parallel) become one rank; windows in which a rank lacks an
    op are left out; clocks that messages or, without any, cause and effect show to disagree are put on one.

    Args:
        reading: one or more files' devices.
        said: overrides, if inference fails.

    Raises:
        Refusal: there is no F, I, W or B, so no pipeline.
        InputError: no window is complete, or the overrides do not fit.
    """
    said = said or Said()
    given = tuple(sorted((device for device in reading.devices if len(device)), key=lambda device: device.rank))
    if not given:
        rule = "there is no pipeline here: no forward and no backward of a micro-batch"
        raise Refusal(f"{reading.source}: {rule}; if one ran, name its ops with debubble.annotate")
    sound, unsound = plausible(given)
    talking, unsure = with_senses(sound)
    raw = in_one_count(_with_peers(talking, said))
    sides = sides_of(raw)
    pairs, clocks = _paired(raw, sides)
    # Pairs came before places, and clocks from pairs: an order of messages holds whatever the clocks show.
    places = nowhere(0)
    if raw:
        places = places_of(_on_one_clock(raw, clocks), said)
        clocks = with_replicas_joined(clocks, raw, places)
    told, how = directed(_on_one_clock(raw, clocks), places)
    if not any(map(len, told)):
        raise Refusal(_nothing_told(given, [*unsure, *how, *places.remarks]))
    stepped = with_steps([linked(split_backward(device)) for device in told])
    # Steps may have been found only now, and ops have directions: messages belong to other ops than before.
    laid, laid_out = with_chunks(stepped, sides_of(stepped), pairs, places, said.chunks or reading.chunks)
    whole = whole_windows(laid, places, said, reading.source)
    known = [device for device in whole.devices if len(device)]
    # One device without a clock of its own makes its whole window one that only cause and effect can lay together.
    worst = max((device.clock for device in known), key=list(Clock).index)
    final = aligned(whole.windows, worst, _bounds(clocks, whole.places))
    counted = _counted(sides_of(whole.devices), whole)
    torn = _torn(whole, sides, pairs, counted, world=reading.world)
    remarks = (
        *reading.remarks,
        *unsure,
        *how,
        *_of_world(reading, known),
        *unsound,
        *whole.places.remarks,
        *laid_out,
        *_about_pairs(pairs),
        *_about_clocks(raw, clocks),
        *final.remarks,
    )
    start, end = _level(sides, clocks, sides.start), _level(sides, clocks, sides.end)
    return Observation(
        source=reading.source,
        windows=tuple(sorted(final.windows, key=lambda window: (window.step, window.replica))),
        remarks=remarks,
        gpus=len(known),
        clock_uncertainty_ns=final.uncertainty_ns,
        matched_share=_matched_share(sides, pairs, counted),
        links=links_of(sides, pairs, whole.places, start, end),
        torn=tuple(sorted({*whole.beside, *torn})),
        missing=whole.places.missing,
        clocks=_device_clocks(raw, clocks),
        memory=_memory(whole.devices, whole.places),
    )


def _nothing_told(given: Sequence[RankOps], why: Sequence[str]) -> str:
    """Why there is no op to be seen: what the first file lacks, and why transfers do not tell it either."""
    lacks = ""
    for device in reversed(given):
        if device.untold:
            lacks = f"{device.source}: {device.untold}"
    reason = why[0] if why else "there are none"
    return f"there is no pipeline to be seen here; {lacks}; nor do transfers: {reason}"


def _of_world(reading: Reading, known: Sequence[RankOps]) -> list[str]:
    if reading.world is None or reading.world <= len(known):
        return []
    return [f"{len(known)} of {reading.world} ranks are here: what the others did is not known"]


# Peers, pairs and clocks.


def _with_peers(devices: Sequence[RankOps], said: Said) -> tuple[RankOps, ...]:
    """The devices with peers as far as ends tell them, whether files begin with one step or end with one."""
    if not devices:
        return ()
    position = labelled_positions(devices, said)
    begun = with_peers(devices, position)
    if not any(device.steps_counted for device in devices) or _nameless(begun) == 0:
        return begun
    # Ends are compared step by step, and shifts of counts are told by messages whose peers are known: try both.
    ended = with_peers(ending_together(devices), position)
    return min(begun, ended, key=_nameless)


def _nameless(devices: Sequence[RankOps]) -> int:
    """How many transfers have no known peer."""
    return sum(int((device.transfers.peer < 0).sum()) for device in devices if device.transfers is not None)


def _paired(devices: Sequence[RankOps], sides: Sides) -> tuple[Pairs, Clocks]:
    """Messages paired by their order, the clocks that these tell, and by them what order could not pair."""
    pairs = pair_by_pile(sides, pair_in_order(sides))
    clocks = clocks_of(devices, sides, pairs)
    within = 0.0
    if clocks.edges:
        # Ends of one message differ as those of other messages do, on clocks that may be wrong by as much again.
        within = TOGETHER + 2 * float(np.median([edge.spread for edge in clocks.edges]))
    return pair_by_time(sides, pairs, _level(sides, clocks, sides.end), clocks.part, within), clocks


def _level(sides: Sides, clocks: Clocks, times: Ints) -> Ints:
    """Times of all sides on the clock of the first device of each part."""
    level = times.copy()
    for rows in parted(np.arange(len(sides)), sides.device):  # a device's sides lie together
        level[rows] = clocks.shared(int(sides.device[rows[0]]), times[rows])
    return level


def _on_one_clock(devices: Sequence[RankOps], clocks: Clocks) -> tuple[RankOps, ...]:
    """The devices on the clock of the first of their part, if clocks of the part disagree by more than noise."""
    moved = list(devices)
    for i in np.flatnonzero(clocks.disagree()).tolist():
        moved[i] = devices[i].retimed(partial(clocks.shared, i))
    return tuple(moved)


def _bounds(clocks: Clocks, where: Places) -> dict[int, Floats]:
    """By replica, the least offset of one position's clock against another's that messages leave possible."""
    found: dict[int, Floats] = {}
    apart = clocks.disagree()
    for edge in clocks.edges:
        q, p = int(where.replica[edge.one]), int(where.position[edge.one])
        r, other = int(where.replica[edge.other]), int(where.position[edge.other])
        if q == r != NOWHERE and p != other:
            least = found.setdefault(q, np.full((where.ranks, where.ranks), -np.inf))
            offset = 0 if apart[edge.one] else edge.offset  # clocks that disagreed were put on one before
            least[p, other] = max(least[p, other], -offset - edge.spread)
            least[other, p] = max(least[other, p], offset - edge.spread)
    return found


def _about_pairs(pairs: Pairs) -> list[str]:
    if not pairs.by_time:
        return []
    return [f"{pairs.by_time:,} messages were paired by their times: one side has more of them than the other"]


def _about_clocks(devices: Sequence[RankOps], clocks: Clocks) -> list[str]:
    """Which clocks run apart, and by how much they disagree, if they were put on one."""
    remarks = []
    drifting = sorted(np.flatnonzero(clocks.drifts()).tolist(), key=lambda i: -abs(clocks.rate[i]))
    if drifting:
        said = []
        for i in drifting[:_MOST_NAMED]:
            said.append(f"rank {devices[i].rank} {1e6 * clocks.rate[i]:+.1f} +- {1e6 * clocks.doubt[i]:.1f}")
        rates = ", ".join(said)
        if len(drifting) > _MOST_NAMED:
            rates += f" and {len(drifting) - _MOST_NAMED} more"
        against = "in millionths of the time on the first rank of a pipeline"
        remarks.append(f"clocks drift, {against}: {rates}; matched transfers told it, and it was taken out")
    apart = clocks.disagree() & (np.abs(clocks.offset) > clocks.uncertainty + TOLERANCE)
    if apart.any() and all(device.clock is Clock.SHARED for device in devices):
        most = float(np.abs(clocks.offset[apart]).max()) / 1e6
        remarks.append(f"ranks disagree by {most:.3f} ms: their clocks were aligned by cause and effect of messages")
    return remarks


def _device_clocks(devices: Sequence[RankOps], clocks: Clocks) -> tuple[DeviceClock, ...]:
    """The clock of each device against the lowest one; none if no message tells any."""
    if not clocks.edges:
        return ()
    found = []
    for i, device in enumerate(devices):
        if clocks.part[i] == clocks.part[0]:
            rate = 1e6 * float(clocks.rate[i])
            found.append(DeviceClock(device.rank, int(clocks.offset[i]), rate, int(clocks.uncertainty[i])))
        else:
            found.append(DeviceClock(device.rank, None, 0.0, None))
    return tuple(found)


# What belongs to the windows.


def _counted(sides: Sides, whole: Whole) -> Mask:
    """Which sides belong to windows that count, or to a device whose steps nothing tells, bool[sides]."""
    first = np.cumsum([0, *map(len, whole.devices)])
    of_ops = np.append(of_each_op(whole.devices, "step"), UNKNOWN)
    # A message's own file may count steps otherwise, or not at all; that of its op is as windows have it.
    step = np.where(sides.op < 0, sides.step, of_ops[np.where(sides.op < 0, -1, first[sides.device] + sides.op)])
    replica = whole.places.replica[sides.device]
    in_steps = np.bincount(sides.device[step >= 0], minlength=len(whole.devices)) > 0
    counted: Mask = ~in_steps[sides.device] & (replica != NOWHERE)
    for q in {window.replica for window in whole.windows}:
        steps = [window.step for window in whole.windows if window.replica == q]
        counted |= (replica == q) & np.isin(step, steps)
    return counted


def _matched_share(sides: Sides, pairs: Pairs, counted: Mask) -> float:
    """Share of the sides that count whose other side was found; those of ranks that are not here cannot be."""
    possible = counted & (sides.peer != ABSENT)
    if not possible.any():
        return 1.0
    return float(pairs.cover(sides)[possible].mean())


def _torn(whole: Whole, sides: Sides, pairs: Pairs, counted: Mask, *, world: int | None) -> list[int]:
    """Global ranks of devices that lack a neighbour.

    They name one that is not here, or, if messages name nobody, the other sides of most of their messages are not here.

    Args:
        whole: windows and what they are of.
        sides: of all messages.
        pairs: of which both sides are known.
        counted: which sides belong to windows that count, bool[sides].
        world: how many ranks the job has, if that is known: as many as are here, and none is missing; if no message
            tells, pipelines as long as those that are here must divide it.
    """
    devices, ranks = whole.devices, int(whole.places.position.max()) + 1
    placed = (whole.places.position != NOWHERE) & np.array([len(device) > 0 for device in devices])
    talks = placed & np.array([device.talks for device in devices])
    if ranks == 1:
        return ranks_where(devices, talks)
    lacking = np.bincount(sides.device[counted & (sides.peer == ABSENT)], minlength=len(devices)) > 0
    if lacking.any():
        return ranks_where(devices, lacking & placed)
    if world == int(placed.sum()):  # then none is missing, and what has no other side was lost in a file
        return []
    total = np.bincount(sides.device[counted], minlength=len(devices))
    matched = np.bincount(sides.device[counted], pairs.cover(sides)[counted], minlength=len(devices))
    share = matched / np.maximum(total, 1)
    if float(share[total > 0].max(initial=0.0)) >= _MATCHED:
        return ranks_where(devices, placed & (total > 0) & (share < HALF))
    if world is not None and world > int(placed.sum()) and world % ranks:
        return ranks_where(devices, talks)
    return []


def _memory(devices: Sequence[RankOps], where: Places) -> tuple[HeldMemory, ...]:
    found = []
    for i in where.placed():
        held = devices[i].memory
        if held is not None:
            place = int(where.position[i]), int(where.replica[i])
            found.append(HeldMemory(devices[i].rank, *place, held.time, held.held))
    return tuple(found)
