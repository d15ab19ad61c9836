"""From devices to an observation: every complete window, by step and replica, on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.lower import lower
from ..core.observation import Observation, Window
from ..core.program import Program
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from .clocks import Alignment, align, lags
from .device_ops import Clock, RankOps, Reading
from .directions import directed
from .drift import steady
from .hops import hops
from .missing_neighbours import closed_up, cut
from .missing_ranks import torn
from .plausible import plausible
from .positions import Places, Said, places
from .steps import with_steps
from .windows import Row, rows_of, schedule_of, together, turns_back

_MOST_CUT = 16  # devices that are tried without, one after the other: each try is as long as a whole merge
_MOST_REASONS = 5  # for which windows were left out, that are spelled out


def observe(reading: Reading, said: Said | None = None) -> Observation:
    """Merge what was measured on devices into windows of whole pipelines.

    Devices of one position and replica (tensor, context parallel) become one rank; windows in which a rank lacks an
    op are left out; times of devices without a common clock are aligned by cause and effect.

    Args:
        reading: one or more files' devices.
        said: overrides, where inference fails.

    Raises:
        Refusal: there is no F, I, W or B, so no pipeline.
        InputError: no window is complete, or the overrides do not fit.
    """
    said = said or Said()
    devices, how = _devices(reading)
    sound, remarks = plausible(with_steps(devices))
    placed = places(sound, said)
    sound, drifted = steady(sound, placed)
    found, sound, where, beside = _whole(sound, placed, said, reading.source)
    remarks += [*where.remarks, *drifted]
    moves = hops(sound, where)
    clock = max((device.clock for device in sound), key=list(Clock).index)
    windows, uncertainty, aligned = _aligned(found, clock, moves.bounds)
    return Observation(
        source=reading.source,
        windows=tuple(sorted(windows, key=lambda window: (window.step, window.replica))),
        remarks=(*reading.remarks, *how, *remarks, *aligned),
        gpus=len(devices),
        clock_uncertainty_ns=uncertainty,
        matched_share=moves.matched_share,
        links=moves.links,
        torn=tuple(sorted({*beside, *torn(sound, where, moves.found, found, reading.world)})),
    )


def _devices(reading: Reading) -> tuple[list[RankOps], list[str]]:
    """The devices that have ops, with those whose directions the others tell, in order of their ranks; and remarks."""
    told, how = directed(reading.bare) if reading.bare else ([], [])
    devices = [*(device for device in reading.devices if len(device)), *told]
    if not devices and reading.bare:
        raise Refusal(f"there is no pipeline to be seen here; {reading.bare[0].why}; nor do transfers: {how[0]}")
    if not devices:
        rule = "there is no pipeline here: no forward and no backward of a micro-batch"
        raise Refusal(f"{reading.source}: {rule}; if one ran, name its ops with debubble.annotate")
    if not told:
        how = [f"{one.why}; it was left out" for one in reading.bare] + how
    if reading.world is not None and reading.world > len(devices):
        how.append(f"{len(devices)} of {reading.world} ranks are here: what the others did is not known")
    return sorted(devices, key=lambda device: device.rank), how


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
        found, left_out = _windows(closer, where, said, source)
        why = why or left_out
        if found:
            lost = why if without is not None else []
            return found, closer, replace(where, remarks=(*where.remarks, *lost, *left_out)), beside
    rule = "; ".join(why) or "no step of it is complete"
    raise InputError(Fault(source, rule, "give a trace with one whole step of every rank"))


def _windows(devices: Sequence[RankOps], where: Places, said: Said, source: str) -> tuple[list[Window], list[str]]:
    """Every complete window, each rank still on its own clock, and why the others are none."""
    ranks = max(where.position) + 1
    found: list[Window] = []
    faults: Counter[str] = Counter()
    spreads: list[int] = []
    programs: dict[bytes, Program] = {}
    members = where.members()
    for q in range(max(where.replica) + 1):
        held = [[devices[i] for i in members.get((q, position), ())] for position in range(ranks)]
        by_step = [[rows_of(device, ranks, said.chunks) for device in members] for members in held]
        lengths = [device.step_ns for members in held for device in members]
        for step in _steps(by_step, said):
            rows = [_rank(members, step) for members in by_step]
            lacking = [position for position, row in enumerate(rows) if row is None]
            if lacking:
                faults[f"replica {q} rank {lacking[0]} has no whole step there"] += 1
                continue
            whole = [row for row in rows if row is not None]
            try:
                program = _program(schedule_of(whole, source, turns=turns_back(whole)), programs)
            except Refusal as refusal:
                faults[f"replica {q}: {str(refusal).splitlines()[:2][-1].strip()}"] += 1  # its first violation
                continue
            spreads += [row.spread for row in whole]
            known = [length[step] for length in lengths if step in length]
            found.append(Window(step, q, _timeline(program, whole), max(known, default=None)))
    remarks = [f"{source}: {_counted(count)} left out: {why}" for why, count in faults.most_common(_MOST_REASONS)]
    if more := sum(faults.values()) - sum(count for _, count in faults.most_common(_MOST_REASONS)):
        remarks.append(f"{source}: {_counted(more)} left out for other reasons of that kind")
    if sum(at >= 0 for at in where.position) > ranks * (max(where.replica) + 1):
        spread = np.median(spreads) / 1e6 if spreads else 0.0
        remarks.append(f"devices of one stage were merged; their ends lie {spread:.3f} ms apart (median)")
    return found, remarks


def _counted(windows: int) -> str:
    return "1 window" if windows == 1 else f"{windows} windows"


def _steps(by_step: Sequence[Sequence[dict[int, Row]]], said: Said) -> Iterator[int]:
    first, last = said.steps or (None, None)
    for step in sorted({step for members in by_step for rows in members for step in rows}):
        if (first is None or step >= first) and (last is None or step <= last):
            yield step


def _rank(members: Sequence[dict[int, Row]], step: int) -> Row | None:
    """One position in one step, or None where a device of it lacks the step or differs from the others."""
    rows = [rows[step] for rows in members if step in rows]
    return together(rows) if rows and len(rows) == len(members) else None


def _program(schedule: Schedule, known: dict[bytes, Program]) -> Program:
    """Lower an order once, however many windows show it."""
    columns = (schedule.placement, schedule.offsets, schedule.kind, schedule.stage, schedule.unit)
    key = b"".join(column.tobytes() for column in columns)
    if key not in known:
        known[key] = lower(schedule)
    return known[key]


def _timeline(program: Program, rows: Sequence[Row]) -> Timeline:
    start, end = (np.concatenate([getattr(row, name) for row in rows]) for name in ("start", "end"))
    return Timeline(program, start, end, "measured")


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Windows whose ranks' offsets are the same, and what cause and effect say about them."""

    windows: list[Window]
    alignment: Alignment


def _aligned(
    windows: Sequence[Window], clock: Clock, bounds: dict[int, NDArray[np.float64]]
) -> tuple[list[Window], int, list[str]]:
    """Put the ranks of each window on one clock; its uncertainty in nanoseconds, and remarks."""
    groups: list[_Group] = []
    remarks: list[str] = []
    for some in _sharing(windows, clock):
        shared = _group(some, clock, bounds)
        alone = [] if shared.alignment.consistent else [_group([window], clock, {}) for window in some]
        apart = len(alone) > 1 and all(group.alignment.consistent for group in alone)
        groups += alone if apart else [shared]
        if apart and not remarks:
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
    moved = [_shift(window, group.alignment) for group in groups for window in group.windows]
    return moved, round(float(np.median([group.alignment.width for group in groups]))), remarks


def _sharing(windows: Sequence[Window], clock: Clock) -> Iterator[list[Window]]:
    """Windows of which all have the same offsets: of one replica, or single ones where clocks begin anew each step."""
    if clock is Clock.STEP:
        yield from ([window] for window in windows)
        return
    for q in sorted({window.replica for window in windows}):
        yield [window for window in windows if window.replica == q]


def _group(windows: list[Window], clock: Clock, bounds: dict[int, NDArray[np.float64]]) -> _Group:
    """Align by F and B, and more closely by transfers, as long as the two do not contradict each other."""
    least = lags(windows[0].timeline.program, windows[0].timeline.start, windows[0].timeline.end)
    for window in windows[1:]:
        np.maximum(least, lags(window.timeline.program, window.timeline.start, window.timeline.end), out=least)
    trust = clock is Clock.SHARED
    if clock is not Clock.STEP and windows[0].replica in bounds:
        closer = align(np.maximum(least, bounds[windows[0].replica]), trust=trust)
        if closer.consistent:
            return _Group(windows, closer)
    return _Group(windows, align(least, trust=trust))


def _shift(window: Window, alignment: Alignment) -> Window:
    timeline = window.timeline
    offset = alignment.offsets[timeline.program.schedule.rank_of()]
    if not offset.any():
        return window
    return replace(
        window, timeline=Timeline(timeline.program, timeline.start + offset, timeline.end + offset, "measured")
    )
