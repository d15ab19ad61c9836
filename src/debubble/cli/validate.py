"""``validate``: the planner held against measured tables, with and without calibration, beside a constant MFU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from .options import Verb, json_option

if TYPE_CHECKING:
    from ..planning.validate import Errors, Score


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path), default=Path("."))
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown, as they stand in the documentation.")
@json_option
def validate(folder: Path, *, markdown: bool, as_json: bool) -> None:
    """Hold the planner against the measured tables in FOLDER (CSV files of published runs, known by their names).

    Nothing is fitted on rows that are tested: calibrated errors are means over 20 draws of 5 rows, tested on the rest.
    """
    from .console import say
    from .report import emit

    scores = _scores(folder)
    if as_json:
        emit({"sets": [document(score) for score in scores], "evidence": "estimated"})
    elif markdown:
        say("\n".join(_markdown(scores)))
    else:
        _show(scores)


def _scores(folder: Path) -> list[Score]:
    from ..planning.measured import TABLES, tables_in
    from ..planning.validate import validate as score

    if not folder.is_dir():
        raise InputError(Fault(str(folder), "no folder is there", "give the folder that holds the CSV files"))
    scores = [score(name, rows) for name, rows in tables_in(folder)]
    if not scores:
        names = ", ".join(sorted({table.file for table in TABLES}))
        raise InputError(Fault(str(folder), "none of the known tables lies there", f"known: {names}"))
    return scores


def document(score: Score) -> dict[str, Any]:
    """One set as JSON; keys end in their unit."""
    memory, calibrated = score.memory, score.calibrated
    found: dict[str, Any] = {"name": score.name, "rows": score.rows, **_keys(score.generic)}
    found |= {f"constant_mfu_{key}": value for key, value in _keys(score.constant_mfu).items()}
    found |= {f"calibrated_{key}": value for key, value in _keys(calibrated).items()} if calibrated else {}
    if memory:
        found |= {
            "memory_rows": memory.rows,
            "memory_mape_percent": memory.mape_percent,
            "memory_mape_after_scale_percent": memory.mape_after_scale_percent,
            "memory_median_ratio": memory.median_ratio,
            "failures": memory.failures,
            "out_of_memory_recall_share": memory.recall,
            "out_of_memory_precision_share": memory.precision,
            "recall_at_98_percent_precision_share": memory.recall_at_98,
        }
    return found


def _keys(errors: Errors) -> dict[str, float | None]:
    return {name: getattr(errors, name) for name in type(errors).__slots__}


_STEP = ("set", "rows", "", "MAPE %", "after one scale %", "rank correlation", "top-1 regret %")
_MEMORY = (
    "set",
    "rows",
    "MAPE %",
    "after one factor %",
    "median ratio",
    "failures",
    "recall %",
    "precision %",
    "recall % at 98",
)


def _step_rows(scores: list[Score]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for score in scores:
        lines = (
            ("generic", score.generic),
            ("calibrated on 5", score.calibrated),
            ("constant MFU", score.constant_mfu),
        )
        for name, errors in lines:
            if errors is not None:
                numbers = (
                    _figure(errors.mape_percent),
                    _figure(errors.mape_after_scale_percent),
                    _figure(errors.spearman, 2),
                    _figure(errors.top1_regret_percent),
                )
                found.append((score.name, str(score.rows), name, *numbers))
    return found


def _memory_rows(scores: list[Score]) -> list[tuple[str, ...]]:
    return [
        (
            score.name,
            str(m.rows),
            _figure(m.mape_percent),
            _figure(m.mape_after_scale_percent),
            _figure(m.median_ratio, 2),
            str(m.failures),
            _figure(m.recall and 100 * m.recall),
            _figure(m.precision and 100 * m.precision),
            _figure(m.recall_at_98 and 100 * m.recall_at_98),
        )
        for score in scores
        if (m := score.memory)
    ]


def _figure(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _markdown(scores: list[Score]) -> list[str]:
    lines = []
    for head, rows in ((_STEP, _step_rows(scores)), (_MEMORY, _memory_rows(scores))):
        lines += [_line(head), _line(["---", *["--:"] * (len(head) - 1)]), *map(_line, rows), ""]
    return lines


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _show(scores: list[Score]) -> None:
    from ..drawing.tables import table
    from .console import say

    for title, head, rows in (("step time", _STEP, _step_rows(scores)), ("peak memory", _MEMORY, _memory_rows(scores))):
        say(title)
        say(table(head, rows))
        say()
