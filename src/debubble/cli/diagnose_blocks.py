"""What ``diagnose`` prints for people: the picture, why, when, what was found and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ..diagnose.report import Diagnosis
from ..draw.tables import duration
from .answers import granted, legend, letters, memory
from .blocks import Block, Picture, Sentences, Table
from .console import Look
from .report import PARTS

WHAT = {
    "ideal": "the mean work of a rank: even, no bubble",
    "schedule": "fill and drain in this order",
    "imbalance": "stages of unequal work",
    "variation": "ops of one stage that differ",
    "transfer": "hops between ranks",
    "unexplained": "late hosts, and all else",
}


def blocks(d: Diagnosis, look: Look) -> list[Block]:
    """Everything about a run, the answer first."""
    found: list[Block] = [Sentences(_title(d), d.verdict), _picture(d, look), _numbers(d), _why(d), _when(d)]
    if d.findings:
        found.append(Sentences("Findings", [_finding_line(d, index) for index in range(len(d.findings))]))
    if d.what_ifs:
        found += _what_if(d)
    if d.remarks:
        found.append(Sentences("Remarks", d.remarks))
    return found


def _title(d: Diagnosis) -> str:
    schedule = d.summary.window.timeline.program.schedule
    chunks = schedule.stages // schedule.ranks
    parts = f" x {chunks} chunks" if chunks > 1 else ""
    replicas = f", {d.summary.replicas} replicas" if d.summary.replicas > 1 else ""
    shape = f"{schedule.ranks} ranks{parts} x {schedule.microbatches} micro-batches"
    return f"{PurePath(d.run.source).name}: {d.order}, {shape}{replicas}, {d.summary.steps} steps"


def _picture(d: Diagnosis, look: Look) -> Picture:
    from ..draw.terminal import timeline_text

    window = d.summary.window
    text = timeline_text(window.timeline, look.width, utf8=look.utf8, colour=look.colour)
    return Picture(f"The median window: step {window.step}, replica {window.replica} (measured)", text)


def _numbers(d: Diagnosis) -> Table:
    shares = d.summary.idle_shares
    lengths = [each.window for each in d.summary.accounts]
    ratios = [each.bubble_ratio for each in d.summary.accounts]
    rows = [
        ["pipeline window", duration(d.summary.makespan_ns), duration(min(lengths)), duration(max(lengths)), "median"],
        ["idle share, idle / all", *map(_percent, (d.summary.idle_share, min(shares), max(shares))), "mean"],
        ["bubble ratio, idle / busy", *map(_percent, (d.summary.bubble_ratio, min(ratios), max(ratios))), "mean"],
        ["idle share if only the schedule idled", _percent(1 - d.causes.most_busy), "", "", "simulated"],
    ]
    if d.summary.step_ns is not None and d.summary.outside_ns is not None:
        rows.append(["whole step", duration(d.summary.step_ns), "", "", "median"])
        rows.append(["outside the pipeline", duration(d.summary.outside_ns), "", "", "median"])
    if d.run.predicted_ns is not None:
        rows.append(["window predicted before the run", duration(d.run.predicted_ns), "", "", "simulated"])
    return Table(f"{len(lengths)} windows (measured)", ["", "", "least", "most", ""], rows)


def _why(d: Diagnosis) -> Table:
    window = d.causes.window
    rows = [[name, _ms(cost), _percent(cost / window if window else 0), WHAT[name]] for name, cost in d.causes]
    rows.append(["window", _ms(window), "100.0 %", f"simulated again it takes {d.causes.resim_ratio:.3f} of that"])
    return Table("Why (by re-simulation, one change at a time)", ["", "ms", "of window", ""], _padded(rows))


def _padded(rows: list[list[str]]) -> list[list[str]]:
    """The last column to the left, by hand: all but the first are set to the right."""
    widest = max(len(row[-1]) for row in rows)
    return [[*row[:-1], f"  {row[-1].ljust(widest)}"] for row in rows]


def _when(d: Diagnosis) -> Table:
    account = d.summary.account
    headers = ["", *(part.replace("_", " ") for part in PARTS), "busy"]
    rows = [
        [
            f"rank {rank}",
            *(_ms(int(getattr(account, part)[rank])) for part in PARTS),
            _percent(int(account.compute[rank]) / account.window if account.window else 0),
        ]
        for rank in range(len(account.compute))
    ]
    return Table("When, ms of the median window (measured)", headers, rows)


def _finding_line(d: Diagnosis, index: int) -> str:
    found = d.findings[index]
    gain = f" ({found.gain_ratio:.2f} x with it, simulated)" if found.gain_ratio else ""
    remedy = f"; {found.remedy}{gain}" if found.remedy else ""
    return f"{duration(found.cost_ns)} ({found.evidence}): {found.sentence}{remedy}"


def _what_if(d: Diagnosis) -> Iterator[Block]:
    letter = letters(d.what_ifs)
    rows = [
        [
            answer.change,
            str(answer.microbatches),
            *memory(answer),
            duration(answer.step_ns),
            f"{answer.speedup:.2f}x",
            granted(answer, letter),
        ]
        for answer in d.what_ifs
    ]
    title = f"What would help, per sample (simulated; the replay fits to {_percent(abs(1 - d.causes.resim_ratio))})"
    yield Table(title, ["change", "m", "held", "memory", "step", "samples/s", "if"], rows)
    yield Sentences("", legend(letter))


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
