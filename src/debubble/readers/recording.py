"""Recordings: what ``run`` and ``record`` measured, one file a process, read back as an observation.

A recording is a folder with ``rank-00000.msgpack`` and so on (their form: ``recording_file``), or several such folders
of one run, a host each. Every file holds its process's own order of ops, so that schedules can be put together again
and proved legal from nothing but the files. A file that is missing or damaged costs its replica, and is named; steps of
other orders (evaluation, another number of micro-batches, another model) are counted apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.observation import HostLoad, Observation, OtherSteps, OutsideParts, Window
from ..core.schedule import Kind
from ..reconstruct.clocks import aligned
from ..reconstruct.device_ops import Clock
from ..reconstruct.positions import Said
from .files import listed, place
from .recording_file import (
    FORMAT,
    MAGIC,
    TRAIN,
    VERSION,
    Part,
    Process,
    Step,
    Track,
    former_frames,
    frames,
    track_files,
    track_path,
)
from .recording_windows import Made, Replica, StepKind, kinds_of, replicas_of, windows_of

MOST_BYTES = 1 << 31  # of all files together
_MOST_NAMED = 8
Each = Callable[[Sequence[Path]], Sequence[object]]


def is_recording(path: str | Path) -> bool:
    """Whether a folder holds at least one process's file."""
    return bool(track_files(place(path)))


def read_recording(
    path: str | Path | Sequence[Path], said: Said | None = None, each: Each | None = None
) -> Observation:
    """All windows of a recording: each step that every rank has, for each replica.

    Args:
        path: the folder, or the folders of several hosts.
        said: how many replicas there are, where the files do not tell.
        each: maps ``track_or_fault`` over the files, to read them elsewhere; one after the other by default.

    Raises:
        InputError: no recording, only files that are cut or of another version, files of several runs, or no whole
            replica.
    """
    folders = [place(path)] if isinstance(path, str | Path) else list(path)
    tracks, remarks = read_tracks(folders, each)
    source = ", ".join(map(str, folders))
    found: list[Observation] = []
    faults: list[Fault] = []
    for _, starts in groupby(tracks, key=lambda track: track.process.restart):
        try:
            found.append(_observed(source, list(starts), said or Said()))
        except InputError as error:
            faults += error.faults
    if not found:
        raise InputError(*faults)
    for fault in faults:
        remarks.append(f"a start of the job is left out: {fault.rule}")
    whole = found[0]
    if len(found) > 1:
        whole = _joined(found)
    return replace(whole, remarks=(*remarks, *whole.remarks))


def read_tracks(folders: Path | Sequence[Path], each: Each | None = None) -> tuple[list[Track], list[str]]:
    """The files of a recording by restart and rank, and what was left out of it.

    Args:
        folders: one, or one a host.
        each: maps ``track_or_fault`` over the files.

    Raises:
        InputError: as for ``read_recording``; all bad files at once.
    """
    several = [folders] if isinstance(folders, Path) else list(folders)
    files: list[Path] = []
    for folder in several:
        files += track_files(folder)
    source = ", ".join(map(str, several))
    if not files:
        raise _fault(source, "no recording is here", "give a folder that `debubble run` or `record` wrote")
    size = sum(file.stat().st_size for file in files)
    if size > MOST_BYTES:
        raise _fault(source, f"{size:,} bytes are more than are read at once ({MOST_BYTES:,})", "record fewer steps")
    tracks: list[Track] = []
    faults: list[Fault] = []
    for one in map(track_or_fault, files) if each is None else each(files):
        if isinstance(one, Track):
            tracks.append(one)
        elif isinstance(one, Fault):
            faults.append(one)
    if not tracks:
        raise InputError(*faults)
    run, remarks = _one_run(source, tracks)
    mine = _segments_joined([track for track in tracks if track.process.run == run])
    # A rank that lacks costs its replica. Without a whole one there is no answer, and the bad files are why.
    if faults and not _lacks_only_replicas(mine):
        raise InputError(*faults)
    for fault in faults:
        remarks.append(f"{fault.value}: {fault.rule}; its replica is left out")
    return mine, remarks


def track_or_fault(file: Path) -> Track | Fault:
    """One file, or what is wrong with it."""
    try:
        return _read_track(file)
    except InputError as error:
        return error.faults[0]


def _read_track(file: Path) -> Track:
    """Decode one file; what is whole before a damaged place is kept."""
    again = "run again, or leave this recording out"
    found: list[object] = []
    damage = ""
    try:
        data = file.read_bytes()
        # Version 1, or something else: it says so itself.
        if not data.startswith(MAGIC):
            _check_version(file, data)
            return _sorted_out(file, former_frames(data))
        try:
            for each, _ in frames(data, len(MAGIC)):
                found.append(each)
        except ValueError as error:  # frames before the damaged one are whole: each has its own checksum
            damage = str(error)
        return _sorted_out(file, found, damage)
    except OSError as error:
        raise _fault(file, f"it cannot be read ({error.strerror})", "look at its permissions") from None
    except msgspec.DecodeError as error:  # a ValueError, too
        raise _fault(file, f"the file is cut or damaged ({error})", again) from None
    except ValueError as error:
        raise _fault(file, f"the file is damaged: {error}", again) from None


class _Head(msgspec.Struct):
    """The two keys that version 1 and everything else begin with."""

    format: str = ""
    version: int = 0


def _check_version(file: Path, data: bytes) -> None:
    if data.startswith(FORMAT.encode()):  # what comes after version 2 begins as it does
        line = data[:64].partition(b"\n")[0].decode(errors="replace")
        version = line.removeprefix(FORMAT).strip()
        if MAGIC.startswith(data[: len(MAGIC)]):
            raise msgspec.DecodeError("it ends in its first line")
    else:
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.format != FORMAT:
            raise _fault(file, "this is not a debubble recording", "give a folder that `debubble run --out` wrote")
        if head.version == 1:
            return
        version = str(head.version)
    remedy = f"this debubble reads version 1 and {VERSION}: record again, or install the one that wrote it"
    raise _fault(file, f"the recording is of version {version}", remedy)


def _sorted_out(file: Path, found: Iterable[object], damage: str = "") -> Track:
    """The frames of one file as a track."""
    process: Process | None = None
    parts: dict[int, Part] = {}
    steps: list[Step] = []
    for each in found:
        if isinstance(each, Process):
            process = each
        elif isinstance(each, Part):
            parts[each.number] = each
        # A step whose order is lost (its frame came before a damaged place) tells nothing.
        elif isinstance(each, Step) and each.part in parts:
            steps.append(each)
    if process is None:
        raise msgspec.DecodeError(damage or "it says not whose it is")
    if not 0 <= process.rank < process.world:
        raise ValueError(f"rank {process.rank} of {process.world}")
    return Track(file, process, parts, steps, damage)


def _segments_joined(tracks: Sequence[Track]) -> list[Track]:
    """One track for each process and restart; a long recording is cut into files of which the oldest may be gone."""
    by_process: dict[tuple[int, int], list[Track]] = defaultdict(list)
    for track in tracks:
        by_process[track.process.restart, track.process.rank].append(track)
    joined = []
    for key in sorted(by_process):
        first, *more = sorted(by_process[key], key=lambda track: track.process.segment)
        parts, steps = dict(first.parts), list(first.steps)
        damage = first.damage
        for track in more:
            by = len(parts)  # each file numbers its parts from 0
            for number, part in track.parts.items():
                parts[number + by] = part
            for step in track.steps:
                steps.append(msgspec.structs.replace(step, part=step.part + by))
            damage = damage or track.damage
        joined.append(Track(first.file, first.process, parts, steps, damage))
    return joined


def _one_run(source: str, tracks: Sequence[Track]) -> tuple[str, list[str]]:
    """The run that counts among those whose files lie here: the only one, or the newest that is whole.

    A new run writes beside the one before and replaces it once its first step is on disk: killed in between, it
    leaves files of both, and the one that has steps of all its ranks is the recording.
    """
    runs: dict[str, list[Track]] = defaultdict(list)
    for track in tracks:
        runs[track.process.run].append(track)
    if len(runs) == 1:
        return tracks[0].process.run, []
    begun = {}
    for run, some in runs.items():
        if _is_whole(some):
            begun[run] = max(track.process.wall_ns for track in some)
    if not begun:
        raise _fault(source, "files of two runs lie here (they differ in run)", "move one of them elsewhere")
    newest = max(begun, key=begun.__getitem__)
    left = len(tracks) - len(runs[newest])
    return newest, [f"{left} files of another run lie beside it and are left out"]


def _is_whole(tracks: Sequence[Track]) -> bool:
    """Whether all ranks of a run are here, with a step each."""
    ranks = {track.process.rank for track in tracks if track.steps}
    return len(ranks) == tracks[0].process.world


def _lacks_only_replicas(tracks: Sequence[Track]) -> bool:
    """Whether some replica is whole without the files that could not be read."""
    first = tracks[0].process.restart  # they are sorted by restarts, each of which has files of its own
    for kind in kinds_of([track for track in tracks if track.process.restart == first]):
        if any(replica.whole for replica in replicas_of(kind, Said())[0]):
            return True
    return False


def _observed(source: str, tracks: Sequence[Track], said: Said) -> Observation:
    """One start of a job as an observation.

    Raises:
        InputError: no replica is whole, or no step of it is.
    """
    kinds = kinds_of(tracks)
    if not kinds:
        raise _fault(source, "no step is there", "run again with more steps, or wait for one")
    # Training before evaluation, whatever took longer; of several trainings the one that took longest.
    main = max(kinds, key=lambda kind: (kind.phase == TRAIN, kind.time_ns))
    replicas, remarks = replicas_of(main, said)
    remarks = [*_about_files(tracks, main, replicas), *remarks]
    whole = [replica for replica in replicas if replica.whole]
    if not whole:
        raise _fault(source, _missing(tracks, main) or "no replica is whole", "copy all files of the run here")
    process, hosts = tracks[0].process, host_loads(tracks)
    others = tuple(_others(source, kinds, main, said))
    made = windows_of(source, main, whole)
    for track in tracks:
        track.steps.clear()  # a job of 10,000 ranks is a gigabyte of them, and windows hold what counts
    remarks += [*_besides(others), *_quirks(main, made)]
    windows, uncertainty = made.windows, made.uncertainty_ns
    # Times of day of two hosts agree to milliseconds at best (NTP): causes put them closer.
    if made.clocks > 1 and process.anchor_ns is None:
        final = aligned(windows, Clock.SHARED, {})
        windows, uncertainty = final.windows, final.uncertainty_ns
        remarks += [f"clocks of {made.clocks} hosts were put on one by their time of day", *final.remarks]
    return Observation(
        source=source,
        windows=tuple(sorted(windows, key=lambda window: (window.step, window.replica))),
        remarks=(*remarks, *made.remarks),
        gpus=process.world,
        samples=process.samples,
        tokens=process.tokens,
        paced=process.paced,
        predicted_ns=process.predicted_ns,
        hop_ns=process.hop_ns,
        clock_uncertainty_ns=uncertainty,
        links=made.receives.links(),
        engine=main.engine or None,
        hosts=hosts,
        outside=outside_parts(made.outside),
        others=others,
    )


def _besides(others: Sequence[OtherSteps]) -> Iterable[str]:
    """Steps that are not among the windows, a sentence for each kind."""
    for other in others:
        what = other.schedule or "another pipeline"
        if other.phase != TRAIN:
            what = "evaluation"
        remark = f"apart from these: {other.steps} steps of {what} with {other.microbatches} micro-batches"
        if other.makespan_ns:
            remark += f", median window {other.makespan_ns / 1e6:.1f} ms"
        yield remark


def _quirks(main: StepKind, made: Made) -> Iterable[str]:
    """What an engine does by itself, and no stage is to blame for."""
    timeline = made.windows[0].timeline
    schedule = timeline.program.schedule
    length = timeline.end - timeline.start
    inputs = length[(schedule.kind == Kind.I) & (schedule.stage == 0)]
    weights = length[(schedule.kind == Kind.W) & (schedule.stage == 0)]
    # Ten times: no split of a backward in two halves is as uneven.
    if main.engine.startswith("torch") and len(inputs) and 10 * median(inputs) < median(weights):
        yield "torch computes all of stage 0's backward in W, as nothing lies before it: its I takes no time, no fault"


def _joined(found: Sequence[Observation]) -> Observation:
    """Several starts of one job: steps go on counting, and the last start says the rest."""
    windows: list[Window] = []
    said: dict[str, None] = {}  # remarks in order, each once: every start says the same of its files
    uncertainty = 0
    for each in found:
        by = 0
        if windows:
            by = windows[-1].step + 1 - each.windows[0].step  # windows are sorted by step
        windows += [replace(window, step=window.step + by) for window in each.windows]
        said |= dict.fromkeys(each.remarks)
        uncertainty = max(uncertainty, each.clock_uncertainty_ns)
    remarks = [f"the job was started {len(found)} times: steps of all starts, counted on", *said]
    return replace(found[-1], windows=tuple(windows), remarks=tuple(remarks), clock_uncertainty_ns=uncertainty)


def _others(source: str, kinds: Sequence[StepKind], main: StepKind, said: Said) -> Iterable[OtherSteps]:
    """What else ran: evaluation, other numbers of micro-batches, other models."""
    for other in kinds:
        if other is main:
            continue
        whole = [replica for replica in replicas_of(other, said)[0] if replica.whole]
        lengths: list[int] = []
        if whole:
            with suppress(InputError):  # an order that is no legal schedule: it is counted, and has no window
                lengths += [window.timeline.makespan for window in windows_of(source, other, whole).windows]
        length = round(median(lengths or [0]))
        yield OtherSteps(other.phase, other.schedule, other.microbatches, other.steps, length)


def _about_files(tracks: Sequence[Track], main: StepKind, replicas: Sequence[Replica]) -> list[str]:
    """What is missing, damaged or was not recorded, a sentence each."""
    said = []
    for track in tracks:
        if track.damage:
            said.append(f"{track.file}: {track.damage}; what lies before it is used")
    if tracks[0].process.sample is not None:
        said.append(f"replicas {', '.join(map(str, tracks[0].process.sample))} were recorded, a sample")
    elif missing := _missing(tracks, main):
        broken = [replica.number for replica in replicas if not replica.whole]
        if broken:
            missing += f"; replica {listed(broken)} is left out"
        said.append(missing)
    return said


def _missing(tracks: Sequence[Track], main: StepKind) -> str:
    """Which ranks have no file; empty if all have one."""
    here = {track.process.rank for track in tracks}
    world = tracks[0].process.world
    if len(here) >= world:
        return ""
    of_main = set().union(*main.ranks)
    expected: Iterable[int] = range(world)  # a file says how many: it may be any number, and is not looped over
    if len(of_main) >= world:
        expected = sorted(of_main)
    lost = islice((rank for rank in expected if rank not in here), _MOST_NAMED + 1)
    names = [track_path(Path(), rank).name for rank in lost]
    return f"{world} ranks took part and {listed(names, _MOST_NAMED)} is missing"


def _fault(path: Path | str, rule: str, remedy: str) -> InputError:
    return InputError(Fault(str(path), rule, remedy))


# What lies beside the pipeline.


def outside_parts(steps: Sequence[tuple[float | None, ...]]) -> OutsideParts | None:
    """What steps hold beside their pipeline, as far as an engine shows it.

    Args:
        steps: loading, reduction and optimizer of each step of each replica, nanoseconds.
    """
    means: list[float | None] = []
    for column in zip(*steps, strict=True):
        known = [value for value in column if value is not None]
        means.append(fmean(known) if known else None)
    if all(part is None for part in means):
        return None
    return OutsideParts(*means)


def host_loads(tracks: Sequence[Track]) -> tuple[HostLoad, ...]:
    """How much of each host's cores the processes of the run used while it ran."""
    hosts: dict[str, list[tuple[Process, NDArray[np.float64]]]] = defaultdict(list)
    for track in tracks:
        told = [(step.cpu, step.queued or 0, step.since) for step in track.steps if step.cpu is not None and step.since]
        if told and track.process.cores:
            spent = np.array(told, np.float64).sum(axis=0)
            hosts[track.process.clock].append((track.process, spent))
    loads = []
    for some in hosts.values():
        first = some[0][0]
        used, queued, over = np.array([spent for _, spent in some]).T  # nanoseconds, of each process
        cores, processes = first.cores or 1, max(first.processes or 0, len(some))
        seen = processes / len(some)  # a sample of the processes stands for all
        busy = seen * float(used.sum()) / (float(over.max()) * cores)
        loads.append(HostLoad(first.host, processes, cores, busy, float((queued / over).mean())))
    return tuple(loads)
