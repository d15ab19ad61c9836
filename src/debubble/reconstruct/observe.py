"""From devices to an observation, one straight way: each step takes what the one before it made.

ops and messages -> peers -> pairs -> clocks -> places -> directions -> steps -> chunks -> windows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..core.errors import Fault, InputError, Refusal
from ..core.observation import DeviceClock, HeldMemory, Observation, Window
from .cause_and_effect import aligned
from .chunks import with_chunks
from .clocks import TOLERANCE, Clocks, clocks_of, with_replicas_joined
from .device_ops import UNKNOWN, Clock, Ints, Mask, RankOps, Reading
from .directions import directed, linked, split_backward
from .missing_ranks import closed_up, cut, torn
from .neighbours import with_peers
from .pairing import (
    ABSENT,
    TOGETHER,
    Floats,
    Pairs,
    Sides,
    links_of,
    pair_by_pile,
    pair_by_time,
    pair_in_order,
    sides_of,
)
from .positions import NOWHERE, Places, Said, followers, labelled_positions, places_of
from .senses import with_senses
from .steps import in_one_count, plausible, with_steps
from .windows import windows_of

_MOST_CUT = 16  # devices that are tried without, one after the other: each try is as long as a whole merge
_MOST_NAMED = 4  # ranks whose rates are spelled out


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
    told, unsure = with_senses(sound)
    positions = labelled_positions(told, said) if told else None
    raw = in_one_count(with_peers(told, None if positions is None else followers(told, positions)))
    sides = sides_of(raw)
    pairs, clocks = _paired(raw, sides)
    places = places_of(_on_one_clock(raw, clocks), said) if raw else Places((), (), 0)
    clocks = with_replicas_joined(clocks, raw, places) if raw else clocks
    devices, how = directed(_on_one_clock(raw, clocks), places)
    if not any(len(device) for device in devices):
        raise Refusal(_nothing_told(given, [*unsure, *how, *places.remarks]))
    devices = with_steps([linked(split_backward(device)) for device in devices])
    devices, laid_out = with_chunks(devices, sides_of(devices), pairs, places, said.chunks or reading.chunks)
    windows, devices, where, beside = _whole(devices, places, said, reading.source)
    known = [device for device in devices if len(device)]
    final = aligned(windows, max((device.clock for device in known), key=list(Clock).index), _bounds(clocks, where))
    counted = _counted(sides_of(devices), devices, where, windows)
    return Observation(
        source=reading.source,
        windows=tuple(sorted(final.windows, key=lambda window: (window.step, window.replica))),
        remarks=(
            *reading.remarks,
            *unsure,
            *how,
            *_of_world(reading, known),
            *unsound,
            *where.remarks,
            *laid_out,
            *_about_pairs(pairs),
            *_about_clocks(raw, clocks),
            *final.remarks,
        ),
        gpus=len(known),
        clock_uncertainty_ns=final.uncertainty_ns,
        matched_share=_matched_share(sides, pairs, counted),
        links=links_of(sides, pairs, where, *(_level(sides, clocks, times) for times in (sides.start, sides.end))),
        torn=tuple(sorted({*beside, *torn(devices, where, sides, pairs, counted, world=reading.world)})),
        missing=where.missing,
        clocks=_device_clocks(raw, clocks),
        memory=_memory(devices, where),
    )


def _nothing_told(given: Sequence[RankOps], why: Sequence[str]) -> str:
    lacks = next((f"{device.source}: {device.untold}" for device in given if device.untold), "")
    return f"there is no pipeline to be seen here; {lacks}; nor do transfers: {why[0] if why else 'there are none'}"


def _of_world(reading: Reading, known: Sequence[RankOps]) -> list[str]:
    if reading.world is None or reading.world <= len(known):
        return []
    return [f"{len(known)} of {reading.world} ranks are here: what the others did is not known"]


# Pairs and clocks.


def _paired(devices: Sequence[RankOps], sides: Sides) -> tuple[Pairs, Clocks]:
    """Messages paired by their order, the clocks that these tell, and by them what order could not pair."""
    pairs = pair_by_pile(sides, pair_in_order(sides))
    clocks = clocks_of(devices, sides, pairs)
    spreads = [edge.spread for edge in clocks.edges]
    within = TOGETHER + 2 * float(np.median(spreads)) if spreads else 0.0
    return pair_by_time(sides, pairs, _level(sides, clocks, sides.end), clocks.part, within), clocks


def _level(sides: Sides, clocks: Clocks, times: Ints) -> Ints:
    """Times of all sides on the clock of the first device of each part."""
    level = times.copy()
    devices, first = np.unique(sides.device, return_index=True)  # a device's sides lie together
    bounds = np.append(first, len(sides))
    for i, device in enumerate(devices.tolist()):
        rows = slice(bounds[i], bounds[i + 1])
        level[rows] = clocks.shared(device, times[rows])
    return level


def _on_one_clock(devices: Sequence[RankOps], clocks: Clocks) -> tuple[RankOps, ...]:
    """The devices on the clock of the first of their part, if clocks of the part disagree by more than noise."""
    apart = clocks.disagree()
    moved = []
    for i, device in enumerate(devices):
        moved.append(device.retimed(partial(clocks.shared, i)) if apart[i] else device)
    return tuple(moved)


def _bounds(clocks: Clocks, where: Places) -> dict[int, Floats]:
    """By replica, the least offset of one position's clock against another's that messages leave possible."""
    found: dict[int, Floats] = {}
    apart = clocks.disagree()
    for edge in clocks.edges:
        here, there = ((where.replica[i], where.position[i]) for i in (edge.one, edge.other))
        if here[0] == there[0] != NOWHERE and here[1] != there[1]:
            least = found.setdefault(here[0], np.full((where.ranks, where.ranks), -np.inf))
            offset = 0 if apart[edge.one] else edge.offset
            p, q = here[1], there[1]
            least[p, q] = max(least[p, q], -offset - edge.spread)
            least[q, p] = max(least[q, p], offset - edge.spread)
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
        said = [f"rank {devices[i].rank} {1e6 * clocks.rate[i]:+.1f} +- {1e6 * clocks.doubt[i]:.1f}" for i in drifting]
        more = f" and {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
        remarks.append(
            "clocks drift, in millionths of the time on the first rank of a pipeline: "
            f"{', '.join(said[:_MOST_NAMED])}{more}; matched transfers told it, and it was taken out"
        )
    apart = clocks.disagree() & (np.abs(clocks.offset) > clocks.uncertainty + TOLERANCE)
    if apart.any() and all(device.clock is Clock.SHARED for device in devices):
        most = float(np.abs(clocks.offset[apart]).max()) / 1e6
        remarks.append(f"ranks disagree by {most:.3f} ms: their clocks were aligned by cause and effect of messages")
    return remarks


def _device_clocks(devices: Sequence[RankOps], clocks: Clocks) -> tuple[DeviceClock, ...]:
    """The clock of each device against the lowest one; none if no message tells any."""
    if not clocks.edges:
        return ()
    joined = clocks.part == clocks.part[0]
    return tuple(
        DeviceClock(
            device=device.rank,
            offset_ns=int(clocks.offset[i]) if joined[i] else None,
            rate_ppm=1e6 * float(clocks.rate[i]) if joined[i] else 0.0,
            uncertainty_ns=int(clocks.uncertainty[i]) if joined[i] else None,
        )
        for i, device in enumerate(devices)
    )


# Windows.


def _whole(
    devices: Sequence[RankOps], placed: Places, said: Said, source: str
) -> tuple[list[Window], tuple[RankOps, ...], Places, tuple[int, ...]]:
    """Every complete window, of all ranks or else of those that are left without one whose file was cut.

    Returns:
        Windows, devices and places as they were then counted, and global ranks beside one that is missing. The places'
        remarks say what was left out.

    Raises:
        InputError: no window is complete.
    """
    why: list[str] = []
    for without in (None, *cut(devices)[:_MOST_CUT]):
        closer, where, beside = closed_up(devices, placed, without)
        if without is not None and where is placed:  # another replica is whole without it, and had no window before
            continue
        found, left_out = windows_of(closer, where, said.steps, source)
        why = why or left_out
        if found:
            lost = why if without is not None else []
            return found, closer, replace(where, remarks=(*where.remarks, *lost, *left_out)), beside
    rule = "; ".join(why) or "no step of it is complete"
    raise InputError(Fault(source, rule, "give a trace with one whole step of every rank"))


def _counted(sides: Sides, devices: Sequence[RankOps], where: Places, windows: Sequence[Window]) -> Mask:
    """Which sides belong to windows that count, or to a step that nothing tells, bool[sides]."""
    first = np.cumsum([0, *(len(device) for device in devices)])
    of_ops = np.concatenate([*(device.step for device in devices), [UNKNOWN]])
    step = np.where(sides.op < 0, sides.step, of_ops[np.where(sides.op < 0, -1, first[sides.device] + sides.op)])
    replica = np.array(where.replica)[sides.device]
    counted: Mask = (step < 0) & (replica != NOWHERE)
    for q in {window.replica for window in windows}:
        steps = [window.step for window in windows if window.replica == q]
        counted |= (replica == q) & np.isin(step, steps)
    return counted


def _matched_share(sides: Sides, pairs: Pairs, counted: Mask) -> float:
    """Share of the sides that count whose other side was found; those of ranks that are not here cannot be."""
    possible = counted & (sides.peer != ABSENT)
    paired = np.zeros(len(sides), np.bool_)
    paired[pairs.send] = paired[pairs.receive] = True
    return float(paired[possible].mean()) if possible.any() else 1.0


def _memory(devices: Sequence[RankOps], where: Places) -> tuple[HeldMemory, ...]:
    found = []
    for device, position, replica in zip(devices, where.position, where.replica, strict=True):
        if device.memory is not None and position != NOWHERE:
            found.append(HeldMemory(device.rank, position, replica, device.memory.time, device.memory.held))
    return tuple(found)
