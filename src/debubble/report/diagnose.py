"""What is said of measured runs: by ``diagnose`` all, by ``watch`` a line a step, by ``--self-test`` what agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..core.engine import IDEAL
from ..core.units import counted, percent
from ..diagnosis.remedies import OWN_ORDER
from .advice import beyond_section, causes_section, changes_section, files, launch, numbers, page_sliders, show_change
from .sections import (
    Cell,
    Column,
    Figure,
    Figures,
    Paste,
    Picture,
    Ranks,
    Report,
    Section,
    Sentences,
    Table,
    Unit,
    decimals,
    milliseconds,
    span,
)

if TYPE_CHECKING:
    from ..diagnosis.diagnosis import Diagnosis, FindingCost, Gate, MemoryRow, PartOfRun, ReplicaWork
    from ..recorder.follow import WatchedStep
    from ..recorder.self_test import SelfTested


MOST_REPLICAS = 8  # in a terminal; a page has all
MOST_STAGES = 6  # of which each has a column there: as many as fit into 80
MOST_LINKS = 8  # that wait or transfer longest
MOST_DEVICES = 16  # the fullest, and those whose clocks are shown
MOST_ENGINES = 4  # of which a terminal tells
MOST_LISTED = 16  # steps or ranks in a list of numbers
# Work over the median of all stages, from which a cell is marked: even stages of one model differ by less from noise.
HOT = 1.05


def report(run: Diagnosis, *, detail: bool = False) -> Report:
    """The sections of a measured run."""
    # What asks for more than the run has (memory, batch, another engine) stands apart: it cannot be launched as it is.
    launchable, beyond = [], []
    for change in run.what_if:
        if change.bound or not change.demands:
            launchable.append(change)
        else:
            beyond.append((change.change, change.speedup, change.demands))
    fit = f"the replay fits to {percent(abs(1 - run.resim_ratio))}"
    again = f"simulated again it takes {run.resim_ratio:.3f} of that"
    # One window needs no name; of two, each says which it is.
    name = _where(run) if detail and not run.worst_is_median else ""
    sections: list[Section] = [
        median_window(run),
        _windows(run),
        causes_section(run.causes, run.makespan_ms, note=again, name=name),
        Ranks("When, ms of the median window (measured)", run.per_rank, run.makespan_ms, peaks=detail),
    ]
    if detail:
        sections = [_tiles(run), *sections, *_slowest(run)]
    # One replica has nothing to be held against; a page shows its stages all the same.
    if run.replicas > 1 or detail:
        sections.append(_replicas(run, detail))
    sections += [
        _transfers(run, detail),
        *_engines(run, detail),
        Sentences("Findings", list(map(_finding, run.findings))),
        changes_section(launchable, fit, detail=detail),
        _search(run),
        beyond_section(beyond),
        _clocks(run, detail),
        _memory(run.memory or (), detail),
        _sure(run),
        Sentences("Remarks", run.remarks),
        gate_section(run.gate),
    ]
    if not detail:
        return Report(_title(run), run.verdict, sections)
    order = run.timeline.program.schedule
    sections += [launch(order), *files(order), numbers(run)]
    return Report(_title(run), run.verdict, sections, _next(run), sliders=page_sliders(run.sliders))


def of_part(part: PartOfRun, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of traces of one host that were distilled, and cannot be diagnosed alone."""
    written = f"{part.folder}: {part.ranks} ranks, {part.bytes:,} bytes"
    return Report(written, (), [Sentences("", [part.reason], plain=True)])


def gate_section(gate: Gate | None) -> Sentences:
    """Why a run does not pass what was asked of it, or that it does; nothing if nothing was asked."""
    if gate is None:
        return Sentences("Gate", [])
    return Sentences("Gate", gate.reasons or ["passed"])


def _engines(run: Diagnosis, detail: bool) -> Iterator[Table]:
    """The window under each engine; a terminal has room for it where hops matter, and there for the best."""
    if run.engine == IDEAL.name and not detail:
        return
    columns = [
        Column("engine", left=True),
        Column("of the window", Unit.SHARE),
        Column("ops start off by", Unit.SHARE),
    ]
    fits = run.engine_fits if detail else run.engine_fits[:MOST_ENGINES]
    rows = [(fit.engine, fit.resim_ratio, fit.start_error_share) for fit in fits]
    yield Table("Simulated again under each engine, with the least hops seen", columns, rows)


def _clocks(run: Diagnosis, detail: bool) -> Table:
    """Clocks of devices against that of the lowest one."""
    clocks = run.clocks if detail else run.clocks[:MOST_DEVICES]
    columns = [
        Column("", left=True),
        Column("ahead by ms", Unit.MILLISECONDS, digits=3),
        Column("faster by ppm", Unit.NUMBER),
        Column("sure to ms", Unit.MILLISECONDS, digits=3),
    ]
    rows = [(f"device {clock.device}", clock.offset_ms, clock.rate_ppm, clock.uncertainty_ms) for clock in clocks]
    title = f"Clocks of {counted(len(run.clocks), 'device')} by their messages (measured)"
    return Table(title, columns, rows)


def _memory(memory: Sequence[MemoryRow], detail: bool) -> Table:
    """The most that devices held, the fullest first."""
    # The fullest device is the one that runs out of memory.
    fullest = sorted(memory, key=lambda device: -device.peak_bytes)
    columns = [Column("", left=True), Column("", left=True), Column("peak GB", Unit.GIGABYTES)]
    rows: list[list[Cell]] = []
    if not detail:
        fullest = fullest[:MOST_DEVICES]
    for held in fullest:
        rows.append([f"device {held.device}", f"rank {held.rank} of replica {held.replica}", held.peak_bytes])
    return Table("Memory of devices, the most that each held (measured; over time in --json)", columns, rows)


def _title(run: Diagnosis) -> str:
    shape = counted(run.ranks, "rank")
    if run.chunks > 1:
        shape += f" x {run.chunks} chunks"
    shape += f" x {counted(run.microbatches, 'micro-batch')}"
    if run.replicas > 1:
        shape += f", {run.replicas} replicas"
    return f"{run.source}: {run.schedule}, {shape}, {counted(run.steps, 'step')} ({run.evidence})"


def _where(run: Diagnosis) -> str:
    window = run.examined.summary.window
    return f"step {window.step}, replica {window.replica}, the median window"


def median_window(run: Diagnosis, *, titled: bool = True) -> Picture:
    """The picture of the median window."""
    window = run.examined.summary.window
    title = ""
    if titled:
        title = f"The median window: step {window.step}, replica {window.replica} (measured)"
    return Picture(
        title=title,
        name=_where(run),
        timeline=run.timeline,
        account=run.account,
        ranks=run.per_rank,
        caption=f"{run.source}: {run.schedule}, {_where(run)} (measured)",
    )


def _slowest(run: Diagnosis) -> Iterator[Section]:
    """The median window of the slowest replica with its causes, if it is another one."""
    if run.worst_is_median:
        return
    where = f"step {run.worst.step}, replica {run.worst.replica}, the median window of the slowest replica"
    yield Picture("", where, run.worst_timeline, run.worst_account, run.worst.per_rank)
    yield causes_section(run.worst_causes, run.worst.makespan_ms, name=where)


def _windows(run: Diagnosis) -> Table:
    """Lengths and shares over all windows, with the least and the most."""
    columns = [Column("", left=True), Column(""), Column("least"), Column("most"), Column("", left=True)]
    spans = (run.makespan_median_ms, run.makespan_min_ms, run.makespan_max_ms)
    shares = (run.idle_share, run.idle_share_min, run.idle_share_max)
    ratios = (run.bubble_ratio, run.bubble_ratio_min, run.bubble_ratio_max)
    rows: list[list[Cell]] = [
        ["pipeline window", *map(span, spans), "median"],
        ["idle share, idle / all", *map(percent, shares), "mean"],
        ["bubble ratio, idle / busy", *map(percent, ratios), "mean"],
        ["idle share if only the schedule idled", percent(run.schedule_idle_share), "", "", "simulated"],
    ]
    further = [
        ("whole step", run.step_ms, "median"),
        ("outside the pipeline", run.outside_ms, "median"),
        ("clocks of two ranks agree within", run.clock_uncertainty_ms or None, "measured"),
        ("window predicted before the run", run.predicted_ms, "simulated"),
    ]
    for name, time_ms, evidence in further:
        if time_ms is not None:
            rows.append([name, span(time_ms), "", "", evidence])
    return Table(f"{counted(run.windows, 'window')} (measured)", columns, rows)


def _tiles(run: Diagnosis) -> Figures:
    """The figures at the head of a page."""
    count = f"measured, median of {run.steps} steps x {run.replicas} replicas"
    if run.outside_ms is not None:
        count += f", {span(run.outside_ms)} of it outside the pipeline"
    length = Figure("step", run.step_ms, Unit.TIME, count)
    if run.step_ms is None:  # ops alone, without what begins and ends a step
        length = Figure("pipeline window", run.makespan_median_ms, Unit.TIME, count)
    share, evidence = run.promised
    own = Figure(
        "what the schedule itself promises",
        f"{percent(share)} idle share",
        what=f"even stages, free transfers; {evidence}",
    )
    near = "close enough for what-ifs" if run.trusted else "too far off for what-ifs"
    return Figures(
        [
            length,
            Figure("idle share", run.idle_share, Unit.SHARE, "", run.evidence),
            Figure("bubble ratio", run.bubble_ratio, Unit.SHARE, "", run.evidence),
            own,
            Figure("simulated again it takes", run.resim_ratio, Unit.SHARE, f"of the measured window; {near}"),
        ]
    )


def _replicas(run: Diagnosis, detail: bool) -> Table:
    """The slowest replica, the median one, then the others: the work of each stage, or where it departs most."""
    ranked = sorted(run.heat, key=lambda replica: -replica.makespan_ms)
    # By length of the window, as the median window is chosen.
    middle = ranked[len(ranked) // 2]
    usual = median(work for replica in ranked for work in replica.stage_ms) or 1.0  # ms; a ratio to nothing is none
    digits = decimals([replica.makespan_ms for replica in ranked], least=1)
    replicas = ranked
    if not detail:
        # The slowest beside the median one: what differs between these two is what is looked for.
        replicas = list(dict.fromkeys([ranked[0], middle, *ranked]))[:MOST_REPLICAS]

    stages = range(len(ranked[0].stage_ms))
    # A terminal has room for a column a stage only of short pipelines; of longer ones for the stage that stands out.
    by_stage = detail or len(stages) <= MOST_STAGES
    columns = [Column("", left=True), Column("window ms"), Column("idle share", Unit.SHARE)]
    if by_stage:
        for stage in stages:
            columns.append(Column(f"stage {stage} ms" if detail else f"s{stage}"))
    else:
        columns.append(Column("departs most", left=True))

    rows: list[list[Cell]] = []
    for replica in replicas:
        work = [_departs(replica, middle, digits)]
        if by_stage:
            work = _work(replica, usual, digits)
        name = f"replica {replica.replica}"
        rows.append([name, milliseconds(replica.makespan_ms, digits), replica.idle_share, *work])
    more = f"; {len(ranked) - len(replicas)} more" if len(replicas) < len(ranked) else ""
    return Table(
        title="Replicas by stages",
        columns=columns,
        rows=rows,
        hint="Measured: the mean work of each stage in a step, the slowest replica first; darker is above the median "
        f"stage ({milliseconds(usual, digits)} ms), ▲ by {percent(HOT - 1)} or more.",
        shades=_shades(replicas, usual) if detail else (),
        name=f"Replicas x stages, ms (measured; the slowest, the median, the rest{more})",
    )


def _work(replica: ReplicaWork, usual: float, digits: int) -> list[str]:
    """The work of each stage, marked if it is hot."""
    cells = []
    for work in replica.stage_ms:
        mark = " ▲" if work >= HOT * usual else ""
        cells.append(f"{milliseconds(work, digits)}{mark}")
    return cells


def _departs(replica: ReplicaWork, middle: ReplicaWork, digits: int) -> str:
    """The stage whose work is least like that of the same stage in the median replica."""
    pairs = zip(replica.stage_ms, middle.stage_ms, strict=True)
    ratios = [work / (usual or 1e-6) for work, usual in pairs]
    # Faster counts too: a replica with too little work is as much of a riddle as one with too much.
    stage = max(range(len(ratios)), key=lambda number: abs(ratios[number] - 1))
    work = milliseconds(replica.stage_ms[stage], digits)
    return f"s{stage} {work} ({ratios[stage]:.2f} x the median replica's)"


def _shades(replicas: Sequence[ReplicaWork], usual: float) -> list[list[float]]:
    """How far each stage is above the median one; differences below ``HOT`` are never dark."""
    most = max((work for replica in replicas for work in replica.stage_ms), default=usual) / usual
    # Else the largest of differences that mean nothing would be the darkest.
    range_ = max(most, HOT) - 1
    rows = []
    for replica in replicas:
        rows.append([0.0, 0.0, 0.0, *(max(0.0, (work / usual - 1) / range_) for work in replica.stage_ms)])
    return rows


def _transfers(run: Diagnosis, detail: bool) -> Table:
    """Receives, split by their sends: one that runs before its send has begun waits."""
    # Where most time goes is what is read first.
    links = sorted(run.transfers, key=lambda link: -(link.waiting_ms + link.transfer_ms))
    if not detail:
        links = links[:MOST_LINKS]
    columns = [
        Column("", left=True),
        Column("receives", Unit.COUNT),
        Column("waiting", Unit.MILLISECONDS),
        Column("transfer at most", Unit.MILLISECONDS),
        Column("one transfer", Unit.MILLISECONDS, digits=3),
        Column("waiting", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for link in links:
        times = [link.waiting_ms, link.transfer_ms, link.usual_transfer_ms]
        rows.append([f"rank {link.sender} to {link.receiver}", link.receives, *times, link.waiting_share])
    # A receive kernel that waits is 100 % busy to nvidia-smi: only its send tells when the data was there.
    hint = "Measured, ms: a receive that runs before its send has begun waits; it does not transfer. Bars: the waiting."
    if run.receive_waiting_share is not None:
        hint += f" Of all receives together {percent(run.receive_waiting_share)} is waiting."
    matched = "" if run.matched_share is None else f"; {percent(run.matched_share)} matched"
    return Table(
        title="Receives: waiting or transfer",
        columns=columns,
        rows=rows,
        hint=hint,
        bars=[link.waiting_share for link in links],
        name=f"Receives split by their sends, ms of {counted(run.windows, 'window')} (measured{matched})",
    )


def _finding(finding: FindingCost) -> str:
    sentence = f"{span(finding.cost_ms)} ({finding.evidence}): {finding.finding}"
    if finding.remedy:
        sentence += f". What to do: {finding.remedy}"
        if finding.gain_ratio:
            sentence += f" ({finding.gain_ratio:.2f} x with it, simulated)"
    return sentence


def _sure(run: Diagnosis) -> Table:
    """How far the figures can be trusted."""
    rows: list[tuple[str, str]] = [
        ("idle share of all windows pooled", percent(run.pooled_idle_share)),
        ("simulated again, of the window", percent(run.resim_ratio)),
        ("the same without transfers", percent(run.resim_without_transfer_ratio)),
        ("clocks of two ranks agree within", span(run.clock_uncertainty_ms)),
    ]
    if run.left_out_steps:
        rows.append(("steps left out as warm-up or cut off", _listed(run.left_out_steps)))
    if run.matched_share is not None:
        rows.append(("transfers whose two ends were matched", percent(run.matched_share)))
    if run.torn_ranks:
        rows.append(("torn: ranks that talk to ranks which were not measured", _listed(run.torn_ranks)))
    return Table("How sure this is", [Column("", left=True, long=True), Column("measured", left=True)], rows)


def _listed(values: Sequence[int]) -> str:
    words = list(map(str, values[:MOST_LISTED]))
    if len(values) > MOST_LISTED:
        words.append("..")
    return ", ".join(words)


def _search(run: Diagnosis) -> Paste:
    """The command that searches an order for these costs, with what it can bring; empty if that is not worth it."""
    gains = [change.speedup for change in run.what_if if change.change == OWN_ORDER]
    if run.search is None or not gains:
        return Paste("")
    title = f"A schedule of your own brings {gains[0]:.2f}x at most (simulated; the bound); search it:"
    return Paste(title, run.search)


def _next(run: Diagnosis) -> str:
    """The first recommendation in simulation, so that page, terminal and command give one piece of advice."""
    return show_change(run.examined.remedies.first)


def of_step(step: WatchedStep, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a step: none but its line."""
    return Report(f"{line_of(step)} (measured)", [], [])


def line_of(step: WatchedStep) -> str:
    """A step in one line."""
    words = [f"step {step.step}" if step.phase == "train" else f"step {step.step} ({step.phase})"]
    words.append(f"window {step.window_ms:.1f} ms")
    words.append(f"idle {percent(step.idle_share)}")
    words.append(f"slowest rank {step.slowest_rank} ({step.slowest_ratio:.2f} of the mean)")
    if abs(step.drift_share) >= 0.005:
        words.append(f"{100 * step.drift_share:+.1f} % against the first steps")
    if step.loss is not None:
        words.append(f"loss {step.loss:.4g}")
    return ", ".join(words)


def of_self_test(found: SelfTested, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a self-test: what was held against what, and whether they agree."""
    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks} ranks"
    title = f"1F1B of {ranks} on {found.device}, {found.microbatches} micro-batches, {found.steps} steps recorded"
    if found.device == "cpu":
        title += ": no GPU is here, so that events were not tried"
    idle, even = percent(found.idle_share), percent(found.even_idle_share)
    on, off = f"{found.on_ms:.2f} ms", f"{found.off_ms:.2f} ms"
    lines = [
        f"{_word(found.order_agrees)}: the order of ops on each rank is that of 1F1B as it is built here",
        f"{_word(found.parts_sum)}: compute, warm-up, waiting, transfer and cool-down add up to ranks x window",
        _of_messages(found),
        f"idle {idle} measured; {even} were the stages equal and messages free (exact)",
        f"step {on} with the recorder on, {off} with it off; {found.overhead_share:+.2%} (median of pairs)",
    ]
    return Report(title, (), [Sentences("What agrees", lines)])


def _word(agrees: bool) -> str:
    return "agrees" if agrees else "DIFFERS"


def _of_messages(found: SelfTested) -> str:
    if not found.messages:
        return "not tried: with one rank there is no message, and no second clock"
    if found.early_messages:
        early = f"{found.early_messages:,} of {found.messages:,} messages were used before they were made"
        return f"DIFFERS: {early}, by {found.earliest_ms:.3f} ms at most: the clocks are that far apart"
    return f"agrees: none of {found.messages:,} messages was used before it was made, by the clocks of both ranks"
