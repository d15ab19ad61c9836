"""What ``show`` prints for people: picture, bubble numbers with formula and evidence, a table of ranks, a hint."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.op import Kind
from ..core.program import Sends
from ..core.units import counted
from ..drawing.tables import duration, table
from ..drawing.terminal import timeline_text
from ..schedules.auto.searched import ENTRIES
from .blocks import wrapped
from .console import Look
from .report import PARTS

if TYPE_CHECKING:
    from .shown import Shown

_FREED = {"w": "at W", "half": "half at I, half at W", "i": "at I"}
MOST_RANKS = 32  # with a line of their own in the table


def text(shown: Shown, look: Look) -> str:
    """Everything that ``show`` says about a schedule."""
    picture = timeline_text(shown.timeline, look.width, utf8=look.utf8, colour=look.colour)
    head = [*wrapped(title(shown), look.width), picture, *_numbers(shown, look.width)]
    blocks = [*head, "", _ranks(shown), "", *_hints(shown)]
    return "\n".join(blocks).rstrip()


def catalog(width: int | None = None) -> str:
    """The schedules that ``show`` knows by name, as a table; each on three lines where one is wider than ``width``."""
    headers = ("schedule", "placement", "needs", "idle time of a rank", "holds for", "peak activations", "paper")
    rows = [
        (
            entry.name,
            entry.placement,
            entry.needs or "-",
            entry.bubble or "-",
            entry.bubble_holds or "even stages",
            entry.activations,
            entry.paper or "-",
        )
        for entry in ENTRIES.values()
    ]
    legend = (
        "p ranks, m micro-batches, v chunks a rank, s slices, N micro-batches in a group (p where none is given); "
        "F, I, W, B: times of a micro-batch on a rank, F&B of an overlapped pair"
    )
    whole = table(headers, rows, left=len(headers))
    if width is None or len(whole.splitlines()[1]) <= width:
        return f"{whole}\n{legend}"
    return f"{_on_three_lines([headers, *rows])}\n\n{fill(legend, width)}"


def _on_three_lines(rows: Sequence[Sequence[str]]) -> str:
    """Name, placement and needs; below them idle time and when it holds; below these activations and paper."""
    parts = [rows, [("", *row[3:5]) for row in rows], [("", *row[5:]) for row in rows]]
    name = max(len(row[0]) for row in rows)
    blocks = [table([], [(row[0].ljust(name), *row[1:3]) for row in part], left=3).splitlines() for part in parts]
    return "\n".join(line for lines in zip(*blocks, strict=True) for line in lines)


def catalog_document() -> dict[str, Any]:
    """The same as one JSON object."""
    told = ("name", "placement", "needs", "bubble", "bubble_holds", "activations", "paper", "chunks", "not_on_torch")
    return {"schedules": [{name: getattr(entry, name) for name in told} for entry in ENTRIES.values()]}


def title(shown: Shown) -> str:
    """What was simulated, in one line."""
    schedule, rates = shown.schedule, shown.rates
    chunks = schedule.stages / schedule.ranks
    sizes = [counted(schedule.ranks, "rank")]
    sizes += [counted(chunks, "chunk")] if chunks != 1 else []
    sizes += [counted(schedule.microbatches, "micro-batch")]
    sizes += [counted(schedule.slices, "slice")] if schedule.slices > 1 else []
    spent = rates.by_kind()
    present = [kind for kind in (Kind.F, Kind.B, Kind.I, Kind.W) if (schedule.kind == kind).any()]
    parts = [schedule.name, " x ".join(sizes), *(f"{kind.name} {duration(spent[kind])}" for kind in present)]
    hop = rates.transfer + rates.payload / rates.link
    parts.append(f"transfer {duration(hop)}" if hop else "free transfers")
    parts += [f"{sends.value} sends"] if (sends := shown.timeline.program.sends) is not Sends.ASYNC else []
    for name in ("stage_scale", "microbatch_scale", "rank_scale"):
        parts += [f"{name.replace('_', ' ')} {_factors(scale)}"] if (scale := getattr(rates, name)) else []
    return f"{', '.join(parts)} ({shown.account.evidence})"


def _factors(scale: tuple[float, ...]) -> str:
    shown = [f"{factor:g}" for factor in scale[:8]]
    return ",".join(shown) + (",.." if len(scale) > len(shown) else "")


def _numbers(shown: Shown, columns: int) -> list[str]:
    """The bubble by every name, with its formula and evidence; memory and bound beside, or below where that is wide."""
    spent, closed = shown.account, shown.closed
    evidence = "exact" if closed else spent.evidence
    rows = [
        ("idle share", spent.idle_share, closed.share_text if closed else "idle / (p x makespan)", evidence),
        ("bubble ratio", spent.bubble_ratio, closed.ratio_text if closed else "idle / busy", evidence),
    ]
    if abs(spent.span_idle_share - spent.idle_share) > 5e-4:
        rows.append(("span idle", spent.span_idle_share, "longest rank, without a barrier", spent.evidence))
    left = table([], [(name, f"{_percent(value)} = {how}", word) for name, value, how, word in rows], left=3)
    right = [f"peak activations  {_peaks(shown)}", f"lower bound       {duration(shown.lower_bound)}", ""]
    width = max(map(len, left.splitlines()))
    if width + len(right[0]) + 6 > columns:
        return [f" {line}" for line in (*left.splitlines(), *right[:2])]
    return [f" {one:<{width}}     {two}".rstrip() for one, two in zip(left.splitlines(), right, strict=False)]


def _percent(value: float) -> str:
    """With one digit behind the point; nothing where there is no work to be compared with."""
    return f"{100 * value:5.1f} %" if isfinite(value) else "   no work"


def _peaks(shown: Shown) -> str:
    peaks = [f"{most:.3g}" for most in shown.peak]
    text = " ".join(peaks) if len(peaks) <= 8 else f"{shown.peak.max():.3g} (rank {int(shown.peak.argmax())})"
    return f"{text}, freed {_FREED[shown.release]}" if shown.schedule.splits else text


def _ranks(shown: Shown) -> str:
    spent = shown.account
    busy = spent.compute / max(spent.window, 1)
    chosen = _chosen(busy)
    unit, size = ("ms", 1e6) if spent.window >= 1e6 else ("us", 1e3)
    times = np.stack([getattr(spent, part)[chosen] for part in PARTS], axis=1) / size
    digits = _digits(times)
    rows = [
        (f"{rank}", *(f"{time:,.{digits}f}" for time in line), f"{100 * busy[rank]:.1f} %", f"{shown.peak[rank]:.3g}")
        for rank, line in zip(chosen, times.tolist(), strict=True)
    ]
    headers = (f"{unit} of rank", *(part.replace("_", "-") for part in PARTS), "busy", "peak")
    lines = table(headers, rows, left=0)
    if len(chosen) < len(busy):
        lines += f"\n{len(chosen)} of {len(busy)} ranks, the busiest and the idlest among them; all with --json"
    return "\n".join(f" {line}" for line in lines.splitlines())


def _chosen(busy: NDArray[np.float64]) -> list[int]:
    """All ranks, or evenly spaced ones and those that stand out."""
    step = -(-len(busy) // MOST_RANKS)
    chosen = set(range(0, len(busy), step)) | {len(busy) - 1}
    return sorted(chosen | ({int(busy.argmax()), int(busy.argmin())} if step > 1 else set()))


def _digits(times: NDArray[np.float64]) -> int:
    """Decimals that show all of these times exactly, if few do, else four digits of the longest."""
    enough = max(0, 3 - int(np.log10(max(times.max(), 1e-3))))
    return next((few for few in range(enough) if np.allclose(np.round(times, few), times, rtol=0, atol=1e-9)), enough)


def _hints(shown: Shown) -> list[str]:
    lines = []
    schedule, closed = shown.schedule, shown.closed
    p, m = schedule.ranks, schedule.microbatches
    if closed and closed.half_at and p > 1:
        half = closed.half_at + (-closed.half_at % p if schedule.name == "interleaved" else 0)
        hint = f"Half the idle share: -m {half}"
        if schedule.name in ("gpipe", "1f1b") and m % p == 0:
            hint += f"; as interleaved -v 2 it is {100 * (p - 1) / (2 * m + p - 1):.1f} %"
        lines.append(f" {hint}.")
    uneven = ",".join(["1"] * (min(schedule.stages, 8) - 1) + ["1.6"])
    options = [] if shown.rates.stage_scale else [f"--stage-scale {uneven}"]
    options += [] if shown.rates.transfer or shown.rates.payload else ["--transfer 100us"]
    return [*lines, f" More: {'   '.join([*options, '--html F', '--json'])}"]
