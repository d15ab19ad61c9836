"""A diagnosis: what costs a run its time, in plain words, each with where it shows, a remedy and its simulated gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.engine import IDEAL, Engine
from ..core.observation import Finding, Observation, OutsideParts, Span
from ..core.program import Timeline
from ..core.units import percent
from ..schedules.catalog import called
from .causes import REMEDIES, Causes, Summary, summarise
from .diagnosis import Examined
from .evidence import (
    Heavy,
    Late,
    Slow,
    dearest_hop,
    heavy_stage,
    latest_rank,
    lengths,
    replicas,
    slow_ranks,
    tail,
    work_of,
)
from .order import Recognised, recognise
from .remedies import HEAVY, enough_microbatches, measured_remedies, next_sentences
from .replay import (
    ALIKE,
    BALANCED,
    FREE,
    Launcher,
    Remedies,
    Replay,
    WhatIf,
    balanced_stages,
    faster_rank,
    other_schedule,
    replayed,
    without_hop,
)

FACTS = ("order",)  # said whatever they cost
SMALL = 0.01  # share of the window below which a cost is not worth a line
CROWDED = 1.1  # cores that processes want over those there are; a tenth is what schedulers' bookkeeping is off by
SMALL_TAIL = 0.02  # the same of a tail: jitter of 3 % an op alone makes replicas wait for up to half of this
MOST_STEPS_LISTED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """All that findings are drawn from.

    Args:
        run: what was measured.
        summary: of its windows.
        causes: of the median window.
        replay: of the median window.
        order: what its order was recognised as.
        asked: the schedule that was asked for; None if nobody said.
        slow: ranks that are slow, with what curing each would save; None if that cannot be simulated.
        heavy: the heaviest stage, if stages differ.
        remedies: changes and what they would bring.
    """

    run: Observation
    summary: Summary
    causes: Causes
    replay: Replay
    order: Recognised
    asked: str | None
    slow: Sequence[tuple[Slow, WhatIf | None]]
    heavy: Heavy | None
    remedies: Remedies

    @property
    def timeline(self) -> Timeline:
        """The median window."""
        return self.summary.window.timeline

    @property
    def fair(self) -> Replay:
        """The median window as it would be without the slow ranks that show in it."""
        window, fair = self.summary.window, self.replay
        for slow, _ in self.slow:
            # A rank that is slow in other steps is no part of this window.
            if slow.shows(window.replica, window.step):
                fair = faster_rank(fair, slow.rank, slow.factor)
        return fair


def findings(case: Case) -> list[Finding]:
    """Everything that costs more than a hundredth of the window, the dearest first.

    What is smaller than the uncertainty of the clocks is not claimed. A rank or stage that stands out is said whatever
    it costs: behind another fault, or in an order that suits it, it is a fault still, and one clock measured it.
    """
    # A cost that clocks could have made up is none, however large its share.
    least = max(SMALL * case.causes.window, case.run.clock_uncertainty_ns)
    whole = (_schedule, _asked_for, _transfer, _engine)  # of which torn pipelines cannot tell
    makers = (*(() if case.run.torn else whole), _slow, _imbalance, _variation, _host, _tail, _outside)
    found = [each for maker in makers for each in maker(case)]
    crowded = list(_crowded(case))
    worth = [each for each in found if each.cost_ns > least or each.cause in FACTS or _stands_out(each)]
    return [*crowded, *sorted(worth, key=lambda each: -each.cost_ns)]


def _crowded(case: Case) -> Iterator[Finding]:
    """Processes that want more cores than their host has: then the rest measures the processor, so it comes first.

    By what the system counted, never by the number of processes: stages that sleep or wait for a device want no core.
    """
    crowded = [host for host in case.run.hosts if host.wanted_share > CROWDED]
    if not crowded:
        return
    host = max(crowded, key=lambda each: each.wanted_share)
    sentence = (
        f"{host.processes} processes share {host.cores} cores of {host.host}: what is measured is the processor, which "
        f"they used for {percent(host.cpu_share)} of the time, and waited for in {percent(host.queued_share)} of it"
    )
    remedy = "give each process a core of its own, or measure where the device does the work"
    yield Finding("crowded", sentence, round(host.queued_share * case.causes.window), "measured", remedy)


def _stands_out(found: Finding) -> bool:
    return found.size_ratio is not None and found.size_ratio > HEAVY


def _schedule(case: Case) -> Iterator[Finding]:
    p, m = case.replay.schedule.ranks, case.replay.schedule.microbatches
    causes, busy = case.causes, f"{100 * case.causes.most_busy:.0f} %"
    enough, more = m, ""
    if causes.ideal:  # a window without work has no bubble that more micro-batches could thin out
        enough = enough_microbatches(m, causes.schedule / causes.ideal)
    if enough > m:
        more = f"; {enough} micro-batches bring its own idle share to a tenth"
    gain = case.remedies.gain(f"{2 * m} micro-batches")
    of = f"; the gain is that of {2 * m}, a batch twice as large" if gain else ""
    yield Finding(
        "schedule",
        f"fill and drain: {m} micro-batches for {p} ranks keep a rank busy for {busy} at best",
        causes.schedule,
        "simulated",
        f"{REMEDIES['schedule']}{more}{of}",
        gain_ratio=gain,
    )


def _asked_for(case: Case) -> Iterator[Finding]:
    """The order that ran is not the one that was asked for."""
    entry, order = called(case.asked or ""), case.order
    if entry is None or entry.name == order.name:
        return
    asked = entry.name
    shows = order.name or f"no known schedule (nearest {order.nearest}, departs at {order.departure})"
    meant = other_schedule(case.replay, asked, case.replay.schedule.stages // case.replay.schedule.ranks)
    cost = 0
    if meant is not None:
        cost = case.causes.resimulated - meant.again().window
    # Simulated over simulated: what the replay misses of the window cancels out.
    gain = case.causes.resimulated / (case.causes.resimulated - cost)
    sentence = f"{asked} was asked for, and the order shows {shows}"
    remedy = f"look how the schedule is chosen: {asked} did not run"
    yield Finding("order", sentence, cost, "simulated", remedy, gain_ratio=gain if meant is not None else None)


def _slow(case: Case) -> Iterator[Finding]:
    for slow, cured in case.slow:
        window = next(w for w in case.summary.windows if slow.shows(w.replica, w.step))
        where = f"rank {slow.rank}"
        if case.summary.replicas > 1:
            where += f" of replica {slow.replica}"
        cause, sentence, remedy = _blame(slow, where)
        share = len(slow.steps) / case.summary.steps if slow.steps else 1.0  # cost is of a mean step
        lost, evidence = _lost_in_its_steps(case.summary, slow) * share, "measured"
        if cured is not None:
            lost, evidence = (1 - 1 / cured.speedup) * share, "simulated"
        yield Finding(
            cause,
            sentence,
            round(case.causes.window * lost),
            evidence,
            remedy,
            _longest(window.timeline, slow.rank),
            gain_ratio=1 / (1 - lost) if cured is not None else None,
            rank=slow.rank,
            replica=slow.replica,
            step=slow.steps[0] if len(slow.steps) == 1 else None,
            size_ratio=slow.factor,
        )


def _blame(slow: Slow, where: str) -> tuple[str, str, str]:
    """Cause, sentence and remedy of a slow rank: all the time, in several steps, or in one."""
    remedy = f"look at the GPU of {where}: clocks, power, other work on its host"
    if not slow.steps:
        against = "the same stage in other replicas, and its neighbours do not"
        return "slow rank", f"slow rank: {where} takes {slow.factor:.2f} times as long as {against}", remedy
    steps = ", ".join(map(str, slow.steps[:MOST_STEPS_LISTED]))
    if len(slow.steps) > MOST_STEPS_LISTED:
        steps += ", .."
    against = f"in step {steps} as in the other steps, and its neighbours do not"
    if len(slow.steps) > 1:
        return "slow rank", f"slow rank: {where} takes {slow.factor:.2f} times as long {against}", remedy
    remedy = f"look at what ran beside it on the host of {where} in that step"
    return "straggler", f"straggler: {where} takes {slow.factor:.2f} times as long {against}", remedy


def _lost_in_its_steps(summary: Summary, slow: Slow) -> float:
    """Share of its windows by which they are longer than those that do not show it."""
    lengths_of = {True: [0.0][:0], False: [0.0][:0]}
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        lengths_of[slow.shows(window.replica, window.step)].append(float(account.window))
    shown, others = (float(np.median(lengths_of[key])) if lengths_of[key] else 0.0 for key in (True, False))
    if not others:  # every window shows it, so none tells how long one takes without
        return 0.0
    return max(0.0, 1 - others / shown)


def _imbalance(case: Case) -> Iterator[Finding]:
    heavy = case.heavy
    if heavy is None:
        return
    sentence, remedy = "unequal stages", REMEDIES["imbalance"]
    if heavy.factor > HEAVY:
        # Of stages, not ranks: in a V both ends of the model live on rank 0.
        ends = heavy.rank in (case.replay.schedule.placement[0, 0], case.replay.schedule.placement[0, -1])
        hint = " (an end of the model: embedding or loss head)" if ends else ""
        alone = f"stage {heavy.stage} on rank {heavy.rank}"
        who, what, many = alone, "stage", case.replay.schedule.stages
        if heavy.whole_rank:
            who, what, many = f"rank {heavy.rank}", "rank", case.replay.schedule.ranks
        sentence = f"unequal stages: {who} works {heavy.factor:.2f} times as long as the mean of the others{hint}"
        sentence += "".join(f"; stage {stage} {factor:.2f} times" for stage, factor in heavy.others)
        above = (heavy.factor - 1) * (many - 1) / many  # over the mean of all, in units of what another one holds
        layers = f"{100 * above:.0f} % of what another {what} holds, {10 * above:.1f} layers for every 10 there"
        remedy = f"move layers off {who}: {layers}"
        if case.summary.replicas == 1:
            sentence += "; one replica cannot tell more layers from a slow GPU"
    cost, fair = case.causes.imbalance, case.fair
    if fair is not case.replay:  # what the slow rank costs stands in its own finding
        cost = fair.again().window - balanced_stages(fair).again().window
    yield Finding(
        "imbalance",
        sentence,
        cost,
        "simulated",
        remedy,
        _longest(case.timeline, heavy.rank),
        case.remedies.gain(BALANCED),
        rank=heavy.rank,
        stage=heavy.stage,
        size_ratio=heavy.factor,
    )


def _longest(timeline: Timeline, rank: int) -> tuple[Span, ...]:
    """The longest op of a rank."""
    schedule = timeline.program.schedule
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    length = timeline.end[rows] - timeline.start[rows]
    if not len(length):
        return ()
    return (_span(timeline, rows.start + int(length.argmax()), rank),)


def _span(timeline: Timeline, row: int, rank: int) -> Span:
    first, schedule = timeline.window[0], timeline.program.schedule
    start, end = int(timeline.start[row]) - first, int(timeline.end[row]) - first
    return Span(rank, start, end, schedule.op(row).text(schedule.slices))


def _variation(case: Case) -> Iterator[Finding]:
    found, gain = lengths(case.summary), None
    if found is not None and found.differ:
        gain = case.remedies.gain(ALIKE)
        sentence = (
            f"micro-batches differ in length: on all stages alike, by {100 * found.spread:.0f} %; micro-batch "
            f"{found.longest} takes {found.factor:.2f} times the mean"
        )
        remedy = "batch samples of like length, or pack sequences, so that micro-batches take equally long"
    else:
        sentence, remedy = "ops of one stage differ, on each stage in its own way: jitter", "look at hosts and clocks"
    yield Finding("variation", sentence, case.causes.variation, "simulated", remedy, gain_ratio=gain)


def _transfer(case: Case) -> Iterator[Finding]:
    hop = dearest_hop(case.timeline)
    if hop is None:
        return
    what = "activations" if hop.forward else "gradients"
    sentence = (
        f"exposed transfers: most between rank {hop.sender} and rank {hop.receiver}, {what}, "
        f"{hop.usual_ns / 1e6:.2f} ms from the end of an op to the start of the next (median)"
    )
    alone = without_hop(case.replay, hop.sender, hop.receiver, forward=hop.forward).again().window
    if (cost := case.replay.again().window - alone) > 0:
        sentence += f", {cost / 1e6:.1f} ms of the window by themselves"
    remedy = REMEDIES["transfer"]
    link = next((e for e in case.run.links if (e.sender, e.receiver) == (hop.sender, hop.receiver)), None)
    # The larger part of the delay is then not on the wire.
    if link is not None and link.usual_ns < hop.usual_ns / 2:
        sentence += f"; a matched transfer takes at most {link.usual_ns / 1e6:.2f} ms of it, the rest is a late launch"
        remedy = "post receives earlier, and look at the host: the link itself is fast enough"
    if not case.run.links and not case.run.hop_ns:
        sentence += "; no transfer was measured, so a slow link and a late host cannot be told apart"
        remedy = f"trace the sends and receives too; then {remedy}"
    spans = (_span(case.timeline, hop.row, hop.receiver),)
    yield Finding("transfer", sentence, case.causes.transfer, "simulated", remedy, spans, case.remedies.gain(FREE))


def _engine(case: Case) -> Iterator[Finding]:
    """What the engine makes ranks wait for beyond the hops themselves."""
    if not case.causes.engine:
        return
    name = case.replay.engine.name
    sentence = f"this schedule under {name} with these links: ranks stand still, and transfers take turns"
    yield Finding("engine", sentence, case.causes.engine, "simulated", REMEDIES["engine"])


def _host(case: Case) -> Iterator[Finding]:
    late = latest_rank(case.timeline) if not case.run.torn else None
    if case.run.torn:
        sentence = "time that the ranks at hand do not explain: waiting for ranks that are not here, or late hosts"
        yield Finding("unexplained", sentence, case.causes.unexplained, "measured", "trace all ranks of a pipeline")
        return
    sentence, spans = "time that no op, order or hop explains", tuple[Span, ...]()
    if late is not None:
        sentence, spans = _late(case, late), (_span(case.timeline, late.row, late.rank),)
    yield Finding("unexplained", sentence, case.causes.unexplained, "measured", REMEDIES["unexplained"], spans)


def _late(case: Case, late: Late) -> str:
    op = case.timeline.program.schedule.op(late.row).text(case.timeline.program.schedule.slices)
    return (
        f"host gaps: ops start late though their rank is free and their input is there, most on rank {late.rank}: "
        f"{late.late_ns / 1e6:.1f} ms in all, {late.row_ns / 1e6:.1f} ms of it before {op}"
    )


def _tail(case: Case) -> Iterator[Finding]:
    found = tail(case.summary, [slow for slow, _ in case.slow])
    # Below it even equal replicas wait for each other: the longest of several is longer than their mean.
    if found is None or found.cost_ns < SMALL_TAIL * case.causes.window:
        return
    sentence = f"data-parallel tail: replicas wait {found.cost_ns / 1e6:.1f} ms of a step for the slowest (mean)"
    if found.always_the_same:
        sentence += f", which is replica {found.slowest} in {found.times} of {found.steps} steps"
    replica = None
    if found.always_the_same:
        replica = found.slowest
    if found.slow is not None:
        replica = found.slow.replica
        sentence += f"; rank {found.slow.rank} of replica {replica} is slow"
        remedy = f"see to rank {found.slow.rank} of replica {replica}: most of the tail is its"
    elif found.lengths_share > 0.5:
        sentence += "; its micro-batches are longer, on all ranks alike" if replica is not None else ""
        remedy = "give replicas micro-batches of like length"
    else:
        sentence += "; micro-batches are alike and no rank is slow throughout"
        remedy = "look at the hosts" if replica is None else f"look at the hosts of replica {replica}"
    yield Finding("tail", sentence, round(found.cost_ns), "measured", remedy, replica=replica)


def _parts_outside(parts: OutsideParts | None) -> str:
    """What that is, with how long it takes where an engine was asked."""
    if parts is None:
        return "reduction, optimizer, data loading"
    named = {"data loading": parts.load, "reduction": parts.reduction, "optimizer": parts.optimizer}
    return ", ".join(f"{name} {value / 1e6:.1f} ms" for name, value in named.items() if value is not None)


def _outside(case: Case) -> Iterator[Finding]:
    summary = case.summary
    if summary.outside_ns and summary.step_ns:
        share = summary.outside_ns / summary.step_ns
        sentence = f"{100 * share:.0f} % of a step lies outside the pipeline: {_parts_outside(case.run.outside)}"
        remedy = "overlap the reduction with the backward, or do more micro-batches for each"
        yield Finding("outside", sentence, round(summary.outside_ns), "measured", remedy)


FAR = 0.05  # share of the window by which free transfers may fall short without a word


def diagnose(
    run: Observation, asked: str | None = None, launcher: Launcher | None = None, engine: Engine | None = None
) -> Examined:
    """Account for a run's windows, say why they are as long as they are, and try what would shorten them.

    Args:
        run: what was measured.
        asked: the schedule that was asked for; None for what the run itself says of it, if anything.
        launcher: the framework that will run what is advised; None if nobody knows.
        engine: that executed it; None for the one that fits, if hops cost enough to tell.

    Raises:
        InputError: there is no complete step, or the engine does not run its order.
    """
    summary = summarise(run)
    schedule = summary.window.timeline.program.schedule
    order = Recognised(None, None)
    if not run.torn:  # the order of some ranks alone may be that of many schedules
        order = recognise(schedule)
    again = replayed(run, summary, order.name, engine)
    work = work_of(summary)
    slow = slow_ranks(work)
    helpful, cured = measured_remedies(run, summary, again.replay, slow, launcher)
    heavy, wanted = heavy_stage(work, slow), asked or schedule.name
    case = Case(run, summary, again.causes, again.replay, order, wanted, cured, heavy, helpful)
    found = Examined(
        run=run,
        summary=summary,
        order=order,
        causes=again.causes,
        findings=tuple(findings(case)),
        remedies=helpful,
        replicas=replicas(summary),
        replay=again.replay,
        engines=again.fits,
    )
    return replace(found, remarks=(*run.remarks, *_remarks(found)), verdict=tuple(_verdict(found)))


def _remarks(d: Examined) -> Iterator[str]:
    if d.summary.left_out:
        steps = ", ".join(map(str, d.summary.left_out))
        yield f"left out as warm-up, longer than 1.5 times the median: step {steps}"
    if d.run.torn:
        yield "no what-if: ranks are missing"
    elif not d.causes.trusted:
        yield f"no what-if: simulated again, the window takes {d.causes.resim_ratio:.2f} of what was measured"
    short = 1 - d.causes.resim_without_transfer_ratio
    if abs(short) > FAR and not d.run.torn:
        model = "and what-ifs are not offered"
        if d.what_ifs:
            model = "so hops were fitted as they were measured"
        if d.replay.engine != IDEAL:
            model = f"and {d.replay.engine.name} with the least hops seen explains it"
        ratio = 1 / d.causes.resim_without_transfer_ratio
        yield f"the window is {ratio:.3f} times what is simulated with free transfers, {model}"
    if d.replay.engine != IDEAL:
        yield (
            f"changes are simulated under {d.replay.engine}, so the page has no sliders: they know hops that are only "
            "latencies"
        )
    if d.run.matched_share < 1:
        yield f"{100 * (1 - d.run.matched_share):.3g} % of the transfers have no partner"
    if d.run.paced:
        yield "paced: ops were stretched to given durations"
    if d.order.searched is not None:
        yield from _searched(d.order)
    elif d.order.name is not None and d.order.departure:
        yield f"{d.order.name}, but {d.order.departure}"
    elif d.order.nearest is not None and d.order.departure:
        yield f"no known schedule; nearest {d.order.nearest}, departs at {d.order.departure}"


def _searched(order: Recognised) -> Iterator[str]:
    """What a searched order is the same as, or most like."""
    if order.name is not None:
        yield f"{order.searched}: at this size and these costs its order is that of {order.name}"
    elif order.nearest is not None:
        yield f"{order.searched} is searched: the nearest published order is {order.nearest}"


def _receives(d: Examined) -> Iterator[str]:
    """What receives were: a kernel that waits counts as busy elsewhere."""
    waiting, transfer = (sum(getattr(link, name) for link in d.run.links) for name in ("waiting_ns", "transfer_ns"))
    if waiting + transfer:
        share = waiting / (waiting + transfer)
        said = f"{100 * share:.3g} % waiting for the sender's compute, at most {100 * (1 - share):.3g} % transfer"
        yield f"Receives were {said} (measured)."


def _listed(ranks: Sequence[int]) -> str:
    shown = [str(rank) for rank in ranks[:8]]
    if len(ranks) > len(shown):
        shown.append("..")
    return ", ".join(shown)


def _verdict(d: Examined) -> Iterator[str]:
    summary = d.summary
    step = summary.step_ns
    busy = 1 - summary.idle_share
    inside, whole = busy, "pipeline window"
    if step:  # a GPU does no F, I, W or B work outside the window, so its share of the step is smaller
        inside, whole = busy * (summary.makespan_ns / step), "step"
    if d.run.torn:
        sure = "no order or cause is sure without them"
        if d.run.missing:
            yield f"Ranks are missing: {_listed(d.run.missing)}, to which rank {_listed(d.run.torn)} talks; {sure}."
        else:
            yield f"Ranks are missing: rank {_listed(d.run.torn)} talks to others that are not here, and {sure}."
    yield f"Its GPUs compute for {100 * inside:.0f} % of a {whole} (measured)."
    if d.run.predicted_ns:
        off = summary.makespan_ns / d.run.predicted_ns - 1
        more = f"{abs(100 * off):.1f} % {'more' if off >= 0 else 'less'}"
        yield f"The pipeline window took {more} than was simulated before the run."
    if d.findings:
        first = d.findings[0]
        share = first.cost_ns / (step or summary.makespan_ns)
        yield f"Most costs {first.cause}, {100 * share:.0f} % of a {whole} ({first.evidence}): {first.sentence}."
    yield from _receives(d)
    yield from next_sentences(d.remedies)
