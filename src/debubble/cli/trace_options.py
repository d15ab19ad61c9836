"""Options that say what a trace does not: how many ranks and replicas, which steps, what a table's columns mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ..core.errors import Fault, InputError
from .options import COUNT, Parsed

Command = Callable[..., Any]


def _steps(text: str, name: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise InputError(Fault(f"{name} = {text}", "it is a first and a last step", "write it as in 10:20"))
    return int(first), int(last)


STEPS = Parsed("a:b", _steps)  # -> tuple[int, int]

_OPTIONS = (
    ("--ranks", COUNT, "Positions in the pipeline, where the trace does not tell."),
    ("--data", COUNT, "Data-parallel replicas, where the trace does not tell."),
    ("--chunks", COUNT, "Stages a rank, where the trace does not tell."),
    ("--steps", STEPS, "Use only these steps, both ends included."),
    ("--columns", str, "What a table's columns are called: ours=theirs,.. (see docs/op-tables.md)."),
)


def measurement_options(command: Command) -> Command:
    """Add the options that help to read a measurement; the command takes them as ``ask``, a ``source.Ask``."""

    @wraps(command)
    def asking(*args: Any, **given: Any) -> Any:
        from ..readers.columns import parse_mapping
        from ..readers.kineto.parallel import in_processes, on_ray
        from ..readers.source import Ask
        from ..reconstruct.positions import Said

        said = Said(**{name: given.pop(name) for name in ("ranks", "data", "chunks", "steps")})
        columns = given.pop("columns")
        ask = Ask(said, columns and parse_mapping(columns), on_ray if given.pop("ray") else in_processes)
        return command(*args, ask=ask, **given)

    asking = click.option("--ray", is_flag=True, help="Read Kineto and Chrome ranks as Ray tasks.")(asking)
    for option, kind, sentence in reversed(_OPTIONS):
        asking = click.option(option, type=kind, help=sentence)(asking)
    return asking
