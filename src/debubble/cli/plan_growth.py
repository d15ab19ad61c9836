"""``plan --rampup``: a batch that grows while the model trains, and what each of its sizes costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError
from ..drawing.tables import duration, table

if TYPE_CHECKING:
    from ..config.layout import Plan
    from ..config.question import Question
    from ..planning.arithmetic import Growth

SECOND = 1e9  # nanoseconds


@dataclass(frozen=True, slots=True)
class Grown:
    """One size of the batch, and the plan of the same layout with as many micro-batches; None where it is not whole."""

    growth: Growth
    plan: Plan | None = None


def sizes_of_growth(said: dict[str, Any], question: Question) -> list[Growth]:
    """The sizes that ``--rampup`` asks for, up to the one global batch.

    Raises:
        InputError: not three numbers, several global batches, or a batch that is not reached.
    """
    from ..planning.arithmetic import growth_table

    if len(said["rampup"]) != 3 or len(said["global_batch"]) != 1:
        value = ",".join(map(str, said["rampup"]))
        raise InputError(
            Fault(f"rampup = {value}", "it is start,increment,samples up to one global batch", "give three")
        )
    return growth_table(question, *said["rampup"])


def mean_idle(rows: list[Growth]) -> float | None:
    """Idle share over all samples while the batch grows: time is in steps, so small batches weigh most."""
    whole = [(row.samples / row.global_batch, row.bubbled) for row in rows if row.bubbled and row.samples]
    slots = sum(steps * one.slots for steps, one in whole)
    return 1 - sum(steps * one.layout.microbatches for steps, one in whole) / slots if slots else None


def growth_document(rows: list[Grown]) -> dict[str, Any]:
    """Keys that a growing batch adds to what ``--json`` prints of a search."""
    sizes = [
        {
            "global_batch": row.growth.global_batch,
            "samples": row.growth.samples,
            "microbatches": row.plan.layout.microbatches if row.plan else None,
            "idle_share": row.plan.idle_share if row.plan else None,
            "step_ms": row.plan.step / 1e6 if row.plan else None,
            "tokens_per_second_per_gpu": row.plan.tokens_per_second_per_gpu if row.plan else None,
            "reason": row.growth.reason or None,
        }
        for row in rows
    ]
    return {"sizes": sizes, "duration_ms": _whole(rows) / 1e6, "lost_share": _lost(rows)}


def growth_text(rows: list[Grown]) -> str:
    """The table of a growing batch with its durations, and which of its sizes cannot be run."""
    cells = [
        (
            str(row.growth.global_batch),
            f"{row.growth.samples:,.0f}",
            str(row.plan.layout.microbatches),
            f"{100 * row.plan.idle_share:.1f} %",
            duration(row.plan.step),
            f"{row.plan.tokens_per_second_per_gpu:,.0f}",
        )
        for row in rows
        if row.plan
    ]
    lines = [table(("batch", "samples", "m", "idle", "step", "tok/s/GPU"), cells)] if cells else []
    lost = _lost(rows)
    if lost is not None:
        lines.append(f"  growing takes {duration(_whole(rows))}, {100 * lost:.1f} % more than at the whole batch")
    return "\n".join([*lines, *_refused(rows)])


def _refused(rows: list[Grown]) -> list[str]:
    """How many sizes cannot be run, for which reason the first of them, and steps that all can."""
    refused = [row.growth for row in rows if row.plan is None]
    if not refused:
        return []
    said = f"  {len(refused)} of {len(rows)} sizes cannot be run, and count nowhere; the first: {refused[0].reason}"
    layout = next((row.plan.layout for row in rows if row.plan), None)
    unit = layout.micro_batch * layout.data if layout else 0
    if unit and all(one.global_batch % unit for one in refused):
        said += f"; start and grow by a multiple of {unit}, or try --micro-batch 1"
    return [said]


def _whole(rows: list[Grown]) -> float:
    """Nanoseconds of all steps while the batch grows."""
    return sum(row.plan.step * row.growth.samples / row.growth.global_batch for row in rows if row.plan)


def _lost(rows: list[Grown]) -> float | None:
    """How much longer the same samples take than at the last size, the whole batch; None where it is not known."""
    last = rows[-1].plan
    samples = sum(row.growth.samples for row in rows if row.plan)
    if last is None or not samples:
        return None
    return _whole(rows) / (last.step * samples / last.layout.global_batch) - 1
