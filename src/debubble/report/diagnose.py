"""What ``diagnose`` says: the answer, the picture, why, when, replicas, receives, findings, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..core.units import counted, percent
from ..drawing.tables import duration
from .causes import causes_section
from .changes import beyond_section, changes_section
from .figures import Cell, Unit, decimals
from .launch import files, launch, numbers, show_command
from .sections import Column, Figure, Figures, Picture, Ranks, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..diagnosis.diagnosis import Diagnosis, FindingCost, MemoryRow, ReplicaWork

MOST_REPLICAS = 8  # in a terminal; a page has all
MOST_STAGES = 6  # of which each has a column there
MOST_LINKS = 8
MOST_DEVICES = 16
HOT = 1.05  # work over the median of all stages, from which a cell is marked


def report(found: Diagnosis, *, detail: bool = False) -> Report:
    """The sections of a measured run."""
    sections: list[Section] = [
        median_window(found),
        _windows(found),
        causes_section(
            found.causes,
            found.makespan_ms,
            note=f"simulated again it takes {found.resim_ratio:.3f} of that",
            name=_where(found) if detail and not found.worst_is_median else "",
        ),
        Ranks("When, ms of the median window (measured)", found.per_rank, found.makespan_ms, peaks=detail),
    ]
    if detail:
        sections.insert(0, _tiles(found))
        sections += _slowest(found)
    if found.replicas > 1 or detail:
        sections.append(_replicas(found, detail))
    if found.transfers:
        sections.append(_transfers(found, detail))
    if found.findings:
        sections.append(Sentences("Findings", [_finding(each) for each in found.findings]))
    can = [each for each in found.what_if if each.bound or not each.demands]
    if can:
        off = f"the replay fits to {percent(abs(1 - found.resim_ratio))}"
        sections.append(changes_section(can, off, detail=detail))
    beyond = [(each.change, each.speedup, each.demands) for each in found.what_if if each not in can]
    if beyond:
        sections.append(beyond_section(beyond))
    if found.clocks:
        sections.append(_clocks(found, detail))
    if found.memory:
        sections.append(_memory(found.memory, detail))
    sections.append(_sure(found))
    if found.remarks:
        sections.append(Sentences("Remarks", found.remarks))
    if found.gate is not None:
        sections.append(Sentences("Gate", found.gate.reasons or ["passed"]))
    if not detail:
        return Report(_title(found), found.verdict, sections)
    order = found.timeline.program.schedule
    sections += [launch(order), *files(order), numbers(found)]
    return Report(
        title=_title(found),
        verdict=found.verdict,
        sections=sections,
        next=_next(found),
        sliders=found.sliders,
    )


def _clocks(found: Diagnosis, detail: bool) -> Table:
    """Clocks of devices against that of the lowest one."""
    rows = [(f"device {each.device}", each.offset_ms, each.rate_ppm, each.uncertainty_ms) for each in found.clocks]
    columns = [
        Column("", left=True),
        Column("ahead by ms", Unit.MILLISECONDS, digits=3),
        Column("faster by ppm", Unit.NUMBER),
        Column("sure to ms", Unit.MILLISECONDS, digits=3),
    ]
    shown = rows if detail else rows[:MOST_DEVICES]
    title = f"Clocks of {counted(len(rows), 'device')} by their messages (measured)"
    return Table(title, columns, shown)


def _memory(memory: Sequence[MemoryRow], detail: bool) -> Table:
    """The most that devices held, the fullest first."""
    fullest = sorted(memory, key=lambda each: -each.peak_bytes)
    rows = [
        (f"device {each.device}", f"rank {each.rank} of replica {each.replica}", each.peak_bytes)
        for each in (fullest if detail else fullest[:MOST_DEVICES])
    ]
    columns = [Column("", left=True), Column("", left=True), Column("peak GB", Unit.GIGABYTES)]
    return Table("Memory of devices, the most that each held (measured; over time in --json)", columns, rows)


def _title(found: Diagnosis) -> str:
    chunks = f" x {found.chunks} chunks" if found.chunks > 1 else ""
    replicas = f", {found.replicas} replicas" if found.replicas > 1 else ""
    shape = f"{counted(found.ranks, 'rank')}{chunks} x {counted(found.microbatches, 'micro-batch')}"
    return f"{found.source}: {found.schedule}, {shape}{replicas}, {counted(found.steps, 'step')} ({found.evidence})"


def _where(found: Diagnosis) -> str:
    window = found.examined.summary.window
    return f"step {window.step}, replica {window.replica}, the median window"


def median_window(found: Diagnosis, *, titled: bool = True) -> Picture:
    """The picture of the median window."""
    window = found.examined.summary.window
    title = f"The median window: step {window.step}, replica {window.replica} (measured)"
    return Picture(
        title=title if titled else "",
        name=_where(found),
        timeline=found.timeline,
        account=found.account,
        ranks=found.per_rank,
        caption=f"{found.source}: {found.schedule}, {_where(found)} (measured)",
    )


def _slowest(found: Diagnosis) -> Iterator[Section]:
    """The median window of the slowest replica with its causes, if it is another one."""
    if found.worst_is_median:
        return
    where = f"step {found.worst.step}, replica {found.worst.replica}, the median window of the slowest replica"
    yield Picture("", where, found.worst_timeline, found.worst_account, found.worst.per_rank)
    yield causes_section(found.worst_causes, found.worst.makespan_ms, name=where)


def _windows(found: Diagnosis) -> Table:
    """Lengths and shares over all windows, with the least and the most."""
    columns = [Column("", left=True), Column(""), Column("least"), Column("most"), Column("", left=True)]
    shares = (found.idle_share, found.idle_share_min, found.idle_share_max)
    ratios = (found.bubble_ratio, found.bubble_ratio_min, found.bubble_ratio_max)
    times = [found.makespan_ms, found.makespan_min_ms, found.makespan_max_ms]
    rows: list[list[str]] = [
        ["pipeline window", *(duration(1e6 * time) for time in times), "median"],
        ["idle share, idle / all", *map(percent, shares), "mean"],
        ["bubble ratio, idle / busy", *map(percent, ratios), "mean"],
        ["idle share if only the schedule idled", percent(found.schedule_idle_share), "", "", "simulated"],
    ]
    more = [
        ("whole step", found.step_ms, "median"),
        ("outside the pipeline", found.outside_ms, "median"),
        ("clocks of two ranks agree within", found.clock_uncertainty_ms or None, "measured"),
        ("window predicted before the run", found.predicted_ms, "simulated"),
    ]
    rows += [[name, duration(1e6 * time), "", "", how] for name, time, how in more if time is not None]
    return Table(f"{counted(found.windows, 'window')} (measured)", columns, rows)


def _tiles(found: Diagnosis) -> Figures:
    """The figures at the head of a page."""
    whole, length = ("pipeline window", found.makespan_ms) if found.step_ms is None else ("step", found.step_ms)
    count = f"measured, median of {found.steps} steps x {found.replicas} replicas"
    if found.outside_ms is not None:
        count += f", {duration(1e6 * found.outside_ms)} of it outside the pipeline"
    share, evidence = found.promised
    near = "close enough for what-ifs" if found.trusted else "too far off for what-ifs"
    return Figures(
        [
            Figure(whole, length, Unit.TIME, count),
            Figure("idle share", found.idle_share, Unit.SHARE, "", found.evidence),
            Figure("bubble ratio", found.bubble_ratio, Unit.SHARE, "", found.evidence),
            Figure(
                "what the schedule itself promises",
                f"{percent(share)} idle share",
                what=f"even stages, free transfers; {evidence}",
            ),
            Figure("simulated again it takes", found.resim_ratio, Unit.SHARE, f"of the measured window; {near}"),
        ]
    )


def _replicas(found: Diagnosis, detail: bool) -> Table:
    """The slowest replica, the median one, then the others: the work of each stage, or where it departs most."""
    ranked = sorted(found.heat, key=lambda each: -each.makespan_ms)
    stages = len(ranked[0].stage_ms)
    usual = median(work for each in ranked for work in each.stage_ms) or 1.0
    columns = [Column("", left=True), Column("window ms"), Column("idle share", Unit.SHARE)]
    shown, middle = ranked, ranked[len(ranked) // 2]
    if not detail:
        rest = [each for each in ranked[1:] if each is not middle]
        shown = list(dict.fromkeys([ranked[0], middle, *rest]))[:MOST_REPLICAS]
    digits = decimals([each.makespan_ms for each in ranked], least=1)
    rows: list[list[Cell]] = [
        [f"replica {each.replica}", f"{each.makespan_ms:,.{digits}f}", each.idle_share] for each in shown
    ]
    if detail or stages <= MOST_STAGES:
        columns += [Column(f"stage {stage} ms" if detail else f"s{stage}") for stage in range(stages)]
        rows = [[*row, *_work(each, usual, digits)] for row, each in zip(rows, shown, strict=True)]
    else:
        columns.append(Column("departs most", left=True))
        rows = [[*row, _departs(each, middle, digits)] for row, each in zip(rows, shown, strict=True)]
    left = f"; {len(ranked) - len(shown)} more" if len(shown) < len(ranked) else ""
    hint = (
        "Measured: the mean work of each stage in a step, the slowest replica first; darker is above the median stage "
        f"({usual:,.{digits}f} ms), ▲ by {percent(HOT - 1)} or more."
    )
    return Table(
        title="Replicas by stages",
        columns=columns,
        rows=rows,
        hint=hint,
        shades=_shades(shown, usual) if detail else (),
        name=f"Replicas x stages, ms (measured; the slowest, the median, the rest{left})",
    )


def _work(each: ReplicaWork, usual: float, digits: int) -> list[str]:
    return [f"{work:,.{digits}f}{' ▲' if work >= HOT * usual else ''}" for work in each.stage_ms]


def _departs(each: ReplicaWork, middle: ReplicaWork, digits: int) -> str:
    """The stage whose work is least like that of the same stage in the median replica."""
    pairs = zip(each.stage_ms, middle.stage_ms, strict=True)
    ratios = [work / (other or 1e-6) for work, other in pairs]
    stage = max(range(len(ratios)), key=lambda number: abs(ratios[number] - 1))
    return f"s{stage} {each.stage_ms[stage]:,.{digits}f} ({ratios[stage]:.2f} x the median replica's)"


def _shades(shown: Sequence[ReplicaWork], usual: float) -> list[list[float]]:
    """How far each stage is above the median one; differences below ``HOT`` are never dark."""
    most = max((work for each in shown for work in each.stage_ms), default=usual) / usual
    over = max(most, HOT) - 1
    return [[0.0, 0.0, 0.0, *(max(0.0, (work / usual - 1) / over) for work in each.stage_ms)] for each in shown]


def _transfers(found: Diagnosis, detail: bool) -> Table:
    """Receives, split by their sends: one that runs before its send has begun waits."""
    ranked = sorted(found.transfers, key=lambda each: -(each.waiting_ms + each.transfer_ms))
    shown = ranked if detail else ranked[:MOST_LINKS]
    rows = [
        (
            f"rank {each.sender} to {each.receiver}",
            each.receives,
            each.waiting_ms,
            each.transfer_ms,
            each.usual_transfer_ms,
            each.waiting_share,
        )
        for each in shown
    ]
    columns = [
        Column("", left=True),
        Column("receives", Unit.COUNT),
        Column("waiting", Unit.MILLISECONDS),
        Column("transfer at most", Unit.MILLISECONDS),
        Column("one transfer", Unit.MILLISECONDS, digits=3),
        Column("waiting", Unit.SHARE),
    ]
    hint = (
        "Measured, ms: a receive that runs before its send has begun waits; it does not transfer. Bars are the waiting."
    )
    if found.receive_waiting_share is not None:
        hint += f" Of all receives together {percent(found.receive_waiting_share)} is waiting."
    matched = "" if found.matched_share is None else f"; {percent(found.matched_share)} matched"
    return Table(
        title="Receives: waiting or transfer",
        columns=columns,
        rows=rows,
        hint=hint,
        bars=[each.waiting_share for each in shown],
        name=f"Receives split by their sends, ms of {counted(found.windows, 'window')} (measured{matched})",
    )


def _finding(each: FindingCost) -> str:
    gain = f" ({each.gain_ratio:.2f} x with it, simulated)" if each.gain_ratio else ""
    remedy = f". What to do: {each.remedy}{gain}" if each.remedy else ""
    return f"{duration(1e6 * each.cost_ms)} ({each.evidence}): {each.finding}{remedy}"


def _sure(found: Diagnosis) -> Table:
    """How far the figures can be trusted."""
    rows: list[tuple[str, str]] = [
        ("idle share of all windows pooled", percent(found.pooled_idle_share)),
        ("simulated again, of the window", percent(found.resim_ratio)),
        ("the same without transfers", percent(found.resim_without_transfer_ratio)),
        ("clocks of two ranks agree within", duration(1e6 * found.clock_uncertainty_ms)),
    ]
    if found.left_out_steps:
        rows.append(("steps left out as warm-up or cut off", _listed(found.left_out_steps)))
    if found.matched_share is not None:
        rows.append(("transfers whose two ends were matched", percent(found.matched_share)))
    if found.torn_ranks:
        rows.append(("torn: ranks that talk to ranks which were not measured", _listed(found.torn_ranks)))
    return Table("How sure this is", [Column("", left=True, long=True), Column("measured", left=True)], rows)


def _listed(numbers_: Sequence[int]) -> str:
    return ", ".join(map(str, numbers_[:16])) + (", .." if len(numbers_) > 16 else "")


def _next(found: Diagnosis) -> str:
    """The same pipeline in simulation, with twice the micro-batches."""
    schedule, name = found.timeline.program.schedule, found.examined.order.name
    if name is None or schedule.ranks == 1 or not found.trusted:
        return ""
    return show_command(schedule, found.rates, name=name, microbatches=2 * schedule.microbatches)
