"""What ``diagnose`` prints for people: the picture, why, when, what was found and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ..core.units import counted, percent
from ..diagnosis.diagnose import Diagnosis
from ..diagnosis.evidence.replicas import Replica
from ..diagnosis.replay import WhatIf
from ..drawing.tables import duration
from .answers import granted, legend, letters, memory
from .blocks import Block, Picture, Sentences, Table
from .console import Look
from .report import PARTS

MOST_CHANGES = 12  # what-ifs in the text; --json has all
MOST_REPLICAS = 8
MOST_STAGES = 6  # of which each has a column
MOST_LINKS = 8

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
    if d.summary.replicas > 1:
        found.append(_replicas(d))
    if d.run.links:
        found.append(_transfers(d))
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
    ranks = counted(schedule.ranks, "rank")
    shape = f"{ranks}{parts} x {counted(schedule.microbatches, 'micro-batch')}"
    return f"{PurePath(d.run.source).name}: {d.order}, {shape}{replicas}, {counted(d.summary.steps, 'step')}"


def _picture(d: Diagnosis, look: Look) -> Picture:
    from ..drawing.terminal import timeline_text

    window = d.summary.window
    text = timeline_text(window.timeline, look.width, utf8=look.utf8, colour=look.colour)
    return Picture(f"The median window: step {window.step}, replica {window.replica} (measured)", text)


def _numbers(d: Diagnosis) -> Table:
    shares = d.summary.idle_shares
    lengths = [each.window for each in d.summary.accounts]
    ratios = [each.bubble_ratio for each in d.summary.accounts]
    rows = [
        ["pipeline window", duration(d.summary.makespan_ns), duration(min(lengths)), duration(max(lengths)), "median"],
        ["idle share, idle / all", *map(percent, (d.summary.idle_share, min(shares), max(shares))), "mean"],
        ["bubble ratio, idle / busy", *map(percent, (d.summary.bubble_ratio, min(ratios), max(ratios))), "mean"],
        ["idle share if only the schedule idled", percent(1 - d.causes.most_busy), "", "", "simulated"],
    ]
    if d.summary.step_ns is not None and d.summary.outside_ns is not None:
        rows.append(["whole step", duration(d.summary.step_ns), "", "", "median"])
        rows.append(["outside the pipeline", duration(d.summary.outside_ns), "", "", "median"])
    if d.run.clock_uncertainty_ns:
        rows.append(["clocks of two ranks agree within", duration(d.run.clock_uncertainty_ns), "", "", "measured"])
    if d.run.predicted_ns is not None:
        rows.append(["window predicted before the run", duration(d.run.predicted_ns), "", "", "simulated"])
    return Table(f"{counted(len(lengths), 'window')} (measured)", ["", "", "least", "most", ""], rows)


def _why(d: Diagnosis) -> Table:
    window = d.causes.window
    rows = [[name, _ms(cost), percent(cost / window if window else 0), WHAT[name]] for name, cost in d.causes]
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
            percent(int(account.compute[rank]) / account.window if account.window else 0),
        ]
        for rank in range(len(account.compute))
    ]
    return Table("When, ms of the median window (measured)", headers, rows)


def _replicas(d: Diagnosis) -> Table:
    """The worst replica, the median one, then the others; the work of each stage, or where it departs most."""
    ranked = sorted(d.replicas, key=lambda each: -each.makespan_ns)
    middle = ranked.pop(len(ranked) // 2)
    first = [ranked.pop(0)] if ranked else []
    shown = [*first, middle, *ranked][:MOST_REPLICAS]
    stages = len(middle.stage_ns)
    rows = [
        [f"replica {each.number}", _ms(round(each.makespan_ns)), percent(each.idle_share), *_stages(each, middle)]
        for each in shown
    ]
    columns = [f"s{stage}" for stage in range(stages)] if stages <= MOST_STAGES else ["departs most"]
    left = f"; {len(d.replicas) - len(shown)} more" if len(d.replicas) > len(shown) else ""
    title = f"Replicas x stages, ms (measured; the slowest, the median, the rest{left})"
    return Table(title, ["", "window", "idle", *columns], rows)


def _stages(each: Replica, middle: Replica) -> list[str]:
    if len(each.stage_ns) <= MOST_STAGES:
        return [_ms(round(work)) for work in each.stage_ns.tolist()]
    ratio = each.stage_ns / middle.stage_ns.clip(min=1)
    stage = int(abs(ratio - 1).argmax())
    return [f"s{stage} {_ms(round(float(each.stage_ns[stage])))} ({ratio[stage]:.2f} x the median replica's)"]


def _transfers(d: Diagnosis) -> Table:
    """Receives, split by their sends."""
    longest = sorted(d.run.links, key=lambda each: -each.transfer_ns)[:MOST_LINKS]
    rows = [
        [
            f"rank {each.sender} to {each.receiver}",
            str(each.receives),
            _ms(each.waiting_ns),
            _ms(each.transfer_ns),
            percent(each.waiting_ns / max(1, each.waiting_ns + each.transfer_ns)),
            f"{each.usual_ns / 1e6:.2f}",
        ]
        for each in longest
    ]
    windows = counted(len(d.summary.windows), "window")
    title = f"Receives split by their sends, ms of {windows} (measured; {percent(d.run.matched_share)} matched)"
    return Table(title, ["", "receives", "waiting", "transfer", "waiting", "one transfer"], rows)


def _finding_line(d: Diagnosis, index: int) -> str:
    found = d.findings[index]
    gain = f" ({found.gain_ratio:.2f} x with it, simulated)" if found.gain_ratio else ""
    remedy = f". What to do: {found.remedy}{gain}" if found.remedy else ""
    return f"{duration(found.cost_ns)} ({found.evidence}): {found.sentence}{remedy}"


def _what_if(d: Diagnosis) -> Iterator[Block]:
    shown = d.what_ifs[:MOST_CHANGES]
    letter = letters(shown)
    rows = [row for answer in shown for row in _change(answer, letter)]
    more = [f"{len(d.what_ifs) - len(shown)} more changes in --json"] if len(d.what_ifs) > len(shown) else []
    title = f"What would help, per sample (simulated; the replay fits to {percent(abs(1 - d.causes.resim_ratio))})"
    yield Table(title, ["change", "m", "held", "memory", "step", "samples/s", "if"], rows)
    yield Sentences("", [*legend(letter), *more])


def _change(answer: WhatIf, letter: dict[str, str]) -> list[list[str]]:
    """One row; changes that go together stand below each other."""
    *before, last = answer.change.split(" + ")
    figures = [duration(answer.step_ns), f"{answer.speedup:.2f}x", granted(answer, letter)]
    rows = [[f"{part} and", "", "", "", "", "", ""] for part in before]
    return [*rows, [last, str(answer.microbatches), *memory(answer), *figures]]


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.1f}"
