"""A diagnosis: everything that can be said of one measured run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..finding import Finding
from ..observation import Observation
from .causes import Causes, causes
from .findings import REMEDIES, findings
from .recognise import Recognised, recognise
from .replay import WhatIf
from .sides import replay_of
from .what_if import TRUSTED, what_ifs
from .windows import Summary, summarise

__all__ = ["REMEDIES", "Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """What was found.

    Args:
        run: what was measured.
        summary: of its windows.
        order: the schedule that the run shows.
        causes: of the median window; they sum to it.
        findings: in plain words, the dearest first.
        what_ifs: changes and what they would bring; empty where the replay cannot be trusted.
    """

    run: Observation
    summary: Summary
    order: Recognised
    causes: Causes
    findings: tuple[Finding, ...]
    what_ifs: tuple[WhatIf, ...]

    @property
    def remarks(self) -> list[str]:
        """What was left out, repaired or not offered, a sentence each."""
        return [*self.run.remarks, *_remarks(self)]

    @property
    def verdict(self) -> list[str]:
        """The run in sentences, the answer first."""
        return list(_verdict(self))


def diagnose(run: Observation) -> Diagnosis:
    """Account for a run's windows, say why they are as long as they are, and try what would shorten them.

    Raises:
        InputError: there is no complete step.
    """
    summary = summarise(run)
    timeline = summary.window.timeline
    order = recognise(timeline.program.schedule)
    found = causes(timeline)
    replay = replay_of(run, summary, order.name)
    tried = what_ifs(replay, found)
    return Diagnosis(run, summary, order, found, tuple(findings(run, summary, found, replay, tried)), tuple(tried))


def _remarks(d: Diagnosis) -> Iterator[str]:
    if d.summary.left_out:
        steps = ", ".join(map(str, d.summary.left_out))
        yield f"left out as warm-up, longer than 1.5 times the median: step {steps}"
    if abs(d.causes.resim_ratio - 1) > TRUSTED:
        yield f"no what-if: simulated again, the window takes {d.causes.resim_ratio:.2f} of what was measured"
    if d.run.matched_share < 1:
        yield f"{100 * (1 - d.run.matched_share):.0f} % of the transfers have no partner"
    if d.run.paced:
        yield "paced: ops were stretched to given durations"
    if d.order.name is not None and d.order.departure:
        yield f"{d.order.name}, but {d.order.departure}"
    elif d.order.nearest is not None and d.order.departure:
        yield f"no known schedule; nearest {d.order.nearest}, departs at {d.order.departure}"


def _verdict(d: Diagnosis) -> Iterator[str]:
    summary = d.summary
    step = summary.step_ns
    busy = 1 - summary.idle_share
    inside = busy * (summary.makespan_ns / step) if step else busy
    whole = "step" if step else "pipeline window"
    yield f"Its GPUs compute for {100 * inside:.0f} % of a {whole} (measured)."
    if d.run.predicted_ns:
        off = summary.makespan_ns / d.run.predicted_ns - 1
        more = f"{abs(100 * off):.1f} % {'more' if off >= 0 else 'less'}"
        yield f"The pipeline window took {more} than was simulated before the run."
    if d.findings:
        first = d.findings[0]
        share = first.cost_ns / (step or summary.makespan_ns)
        yield f"Most costs {first.cause}, {100 * share:.0f} % of a {whole} ({first.evidence}): {first.sentence}."
    better = [answer for answer in d.what_ifs if answer.speedup > 1]
    if better:
        best = better[0]
        yield f"Next: {best.change}, {best.speedup:.2f} times the samples per second (simulated)."
