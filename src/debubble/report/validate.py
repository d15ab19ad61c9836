"""What ``validate`` says: errors of steps, how layouts are ranked, errors of memory, and which rows are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .figures import Cell
from .sections import Column, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.validate import SetScore, Validation

_STEP = ("set", "rows", "", "MAPE %", "after one scale %", "rank correlation", "top-1 regret %")
_MEMORY = (
    *("set", "ran", "called too large %", "ran out", "called so %", "rightly %"),
    *("peaks", "median error %", "MAPE %", "after one factor %"),
)
_FIGURES = ("mape_percent", "mape_after_scale_percent", "spearman", "top1_regret_percent")
# Lines of the first table, and how their figures are called.
_KINDS = (("generic", ""), ("calibrated on 5", "calibrated_"), ("constant MFU", "constant_mfu_"))


def report(found: Validation, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a validation."""
    steps, memory = list(_step_rows(found)), [_memory_row(each) for each in found.sets if each.ran_rows]
    sections: list[Section] = []
    if steps:
        sections.append(Table("step time", _columns(_STEP, 3), steps))
    if memory:
        sections.append(Table("memory", _columns(_MEMORY, 1), memory))
    remarks = list(_remarks(found))
    if remarks:
        sections.append(Sentences("rows", remarks))
    return Report("the planner beside measured runs", [], sections)


def _columns(titles: tuple[str, ...], left: int) -> list[Column]:
    return [Column(title, left=number < left and number != 1) for number, title in enumerate(titles)]


def _step_rows(found: Validation) -> Iterator[tuple[Cell, ...]]:
    for each in found.sets:
        for kind, prefix in _KINDS:
            mape, scaled, spearman, regret = (getattr(each, prefix + name) for name in _FIGURES)
            if mape is not None:
                yield each.name, each.rows, kind, _one(mape), _one(scaled), _two(spearman), _one(regret)


def _memory_row(each: SetScore) -> tuple[Cell, ...]:
    return (
        each.name,
        each.ran_rows,
        _percent(each.ran_called_too_large_share),
        each.out_of_memory_rows,
        _percent(each.out_of_memory_recall_share),
        _percent(each.out_of_memory_precision_share),
        each.memory_rows,
        _one(each.memory_median_error_percent),
        _one(each.memory_mape_percent),
        _one(each.memory_mape_after_scale_percent),
    )


def _remarks(found: Validation) -> Iterator[str]:
    """What was left out, taken as usual or not understood, set by set."""
    for each in found.sets:
        if not each.rows and not each.ran_rows:
            yield f"{each.name}: none of its rows can be scored"
        if each.left_out:
            reasons = "; ".join(f"{left.rows} {left.reason}" for left in each.left_out)
            yield f"{each.name}: left out: {reasons}"
        if each.taken_as_usual:
            columns = ", ".join(f"{usual.column} in {usual.rows} rows" for usual in each.taken_as_usual)
            yield f"{each.name}: unknown, and taken as usual: {columns}"
        if each.unknown_columns:
            yield f"{each.name}: columns that mean nothing here: {', '.join(each.unknown_columns)}"


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
