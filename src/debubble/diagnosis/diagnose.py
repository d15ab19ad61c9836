"""A diagnosis: everything that can be said of one measured run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.finding import Finding
from ..core.observation import Observation
from .causes import REMEDIES, Causes, causes
from .evidence.replicas import Replica, replicas
from .evidence.slowness import heavy_stage, slow_ranks, work_of
from .findings import Case, findings
from .recognise import Recognised, recognise
from .remedies import Launcher, Remedies, measured_remedies, next_sentences
from .replay import Replay, WhatIf, replay_of
from .windows import Summary, median_window, summarise

__all__ = ["REMEDIES", "Examined", "diagnose"]

FAR = 0.05  # share of the window by which free transfers may fall short without a word


@dataclass(frozen=True, slots=True, eq=False)
class Examined:
    """What was found.

    Args:
        run: what was measured.
        summary: of its windows.
        order: the schedule that the run shows.
        causes: of the median window; they sum to it.
        findings: in plain words, the dearest first.
        remedies: changes and what they would bring; none if the replay cannot be trusted.
        replicas: side by side.
        replay: of the median window, on which changes are tried.
    """

    run: Observation
    summary: Summary
    order: Recognised
    causes: Causes
    findings: tuple[Finding, ...]
    remedies: Remedies
    replicas: tuple[Replica, ...]
    replay: Replay

    @property
    def what_ifs(self) -> tuple[WhatIf, ...]:
        """Every change that was tried and is worth a line, the best first."""
        return self.remedies.every

    @property
    def worst(self) -> int:
        """Index of the median window of the replica whose windows take longest."""
        slowest = max(self.replicas, key=lambda each: each.makespan_ns).number
        mine = [i for i, window in enumerate(self.summary.windows) if window.replica == slowest]
        return median_window(self.summary, mine)

    @property
    def remarks(self) -> list[str]:
        """What was left out, repaired or not offered, a sentence each."""
        return [*self.run.remarks, *_remarks(self)]

    @property
    def verdict(self) -> list[str]:
        """The run in sentences, the answer first."""
        return list(_verdict(self))


def diagnose(run: Observation, asked: str | None = None, launcher: Launcher | None = None) -> Examined:
    """Account for a run's windows, say why they are as long as they are, and try what would shorten them.

    Args:
        run: what was measured.
        asked: the schedule that was asked for; None for what the run itself says of it, if anything.
        launcher: the framework that will run what is advised; None if nobody knows.

    Raises:
        InputError: there is no complete step.
    """
    summary = summarise(run)
    schedule = summary.window.timeline.program.schedule
    order = Recognised(None, None) if run.torn else recognise(schedule)
    found = causes(summary.window.timeline)
    replay = replay_of(run, summary, order.name)
    work = work_of(summary)
    slow = slow_ranks(work)
    helpful, cured = measured_remedies(run, summary, replay, slow, launcher)
    case = Case(run, summary, found, replay, order, asked or schedule.name, cured, heavy_stage(work, slow), helpful)
    return Examined(run, summary, order, found, tuple(findings(case)), helpful, replicas(summary), replay)


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
        model = "so hops were fitted as they were measured" if d.what_ifs else "and what-ifs are not offered"
        ratio = 1 / d.causes.resim_without_transfer_ratio
        yield f"the window is {ratio:.3f} times what is simulated with free transfers, {model}"
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
    return ", ".join(map(str, ranks[:8])) + (", .." if len(ranks) > 8 else "")


def _verdict(d: Examined) -> Iterator[str]:
    summary = d.summary
    step = summary.step_ns
    busy = 1 - summary.idle_share
    inside = busy * (summary.makespan_ns / step) if step else busy
    whole = "step" if step else "pipeline window"
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
