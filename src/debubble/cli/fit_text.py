"""What ``fit`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..drawing.tables import duration, table
from .console import say, warn

if TYPE_CHECKING:
    from ..diagnosis.fit_steps import StepFit
    from .fit_document import Fitted

_MOST_OUTLIERS = 10


def show_fit(fitted: Fitted, document: dict[str, Any]) -> None:
    """Print the model, its parts, a table of settings, forecasts and the verdict."""
    for remark in document["remarks"]:
        warn(remark)
    if fitted.steps is not None:
        say(_parts(fitted.steps))
        say()
        say(_settings(document["rows"]))
        say()
        for line in (*map(_forecast, document["forecast"]), *_outliers(document["outliers"])):
            say(line)
    if "memory" in document:
        for line in _memory(document["memory"]):
            say(line)
    for sentence in document["verdict"]:
        say(sentence)


def _parts(steps: StepFit) -> str:
    """The model, why it, and what the line says, each with its name."""
    from ..diagnosis.fit_steps import ONE_POINT

    named = {"overhead per micro-batch" if steps.times.constant else "slot": steps.slot, "intercept": steps.intercept}
    if steps.model == ONE_POINT:
        named |= {"bubble at most": steps.intercept}  # what is fixed in it cannot be told
    elif steps.bubble is not None:
        named |= {"bubble": steps.bubble, "fixed": steps.fixed}
    parts = "   ".join(f"{name} {duration(seconds * 1e9)}" for name, seconds in named.items())
    return f"{steps.model} ({steps.why})\n{parts}   ({steps.evidence})"


def _settings(rows: list[dict[str, Any]]) -> str:
    headers = ("batch", "micro-batches", "steps", "measured", "fitted", "bubble")
    cells = [
        (
            "-" if row["batch"] is None else f"{row['batch']:g}",
            f"{row['microbatches']:g}",
            str(row["steps"]),
            duration(row["step_ms"] * 1e6),
            duration(row["fitted_ms"] * 1e6),
            "-" if row["bubble_share"] is None else f"{100 * row['bubble_share']:.1f} %",
        )
        for row in rows
    ]
    return table(headers, cells, left=0)


def _forecast(row: dict[str, Any]) -> str:
    setting = f"{row['microbatches']:g} micro-batches" if row["batch"] is None else f"batch {row['batch']:g}"
    line = f"{setting}: forecast {duration(row['step_ms'] * 1e6)}"
    if row["measured_ms"] is None:
        return line
    off = f"{100 * row['error_share']:+.1f} %"
    return f"{line} from the smaller ones, measured {duration(row['measured_ms'] * 1e6)} ({off})"


def _outliers(outliers: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"row {one['row']} set aside: {duration(one['step_ms'] * 1e6)} is {one['reason']}"
        for one in outliers[:_MOST_OUTLIERS]
    ]
    return lines + ([f".. and {len(outliers) - len(lines)} more"] if len(outliers) > len(lines) else [])


def _memory(memory: dict[str, Any]) -> list[str]:
    lines = []
    if memory["bytes_per_in_flight"] is not None:
        each = memory["bytes_per_in_flight"] / 1e9
        lines.append(f"peak memory {memory['base_bytes'] / 1e9:.1f} GB + {each:.2f} GB a micro-batch in flight")
    for row in memory["forecast"]:
        peak = "unknown" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.1f} GB"
        fits = {None: "", True: ", fits", False: ", does not fit"}[row["fits"]]
        lines.append(f"{row['microbatches']:g} micro-batches: {row['in_flight']} in flight, {peak}{fits}")
    return lines
