"""``validate``: the options of the verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import debubble

from .command import Verb, option
from .console import wrote
from .output import Output, output_options


@click.command(cls=Verb, short_help="Hold the planner against measured runs.")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS.csv..")
@option(
    "--rows", type=click.Path(path_type=Path), metavar="F", help="Write every run, predicted beside measured, as CSV."
)
@output_options("html")
def validate(tables: tuple[Path, ...], output: Output, **given: Any) -> int:
    """Hold the planner against RUNS.csv.., tables of measured runs, each a set by itself.

    A table has one run a line: model, gpu, gpus, its degrees and batch, and what was seen of it. Nothing is fitted on
    rows that are tested: calibrated errors are means over 20 draws of 5 rows, tested on the others.

    \b
    debubble validate runs.csv
    debubble validate ours.csv theirs.csv --rows predicted.csv
    """  # noqa: D301 - click wants the character, not two
    found = debubble.validate(*tables, **given)
    if given["rows"] is not None:  # the verb writes it, since it is no rendering of the result
        wrote(given["rows"])
    return output.show(found)
