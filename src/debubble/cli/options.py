"""Options of the verbs that are not ported yet; see ``command.py``, ``groups.py`` and ``output.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import Any

import click

from ..core.units import nanoseconds
from ..verbs.arguments import together
from ..verbs.schedule_argument import Sizes
from .command import COUNT, FACTORS, SIZE, Parsed, Verb

__all__ = ["COUNT", "DURATION", "FACTORS", "PLACE", "SIZE", "Parsed", "Verb", "json_option", "look_options", "together"]


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said about memory."""

    release: str = "w"
    cap: str | None = None


def _place(text: str, name: str) -> Any:  # noqa: ARG001 - the type's signature
    from ..readers.places import place

    return place(text)


DURATION = Parsed("duration", nanoseconds)  # -> float, nanoseconds
PLACE = Parsed("path", _place)  # -> Path, or what stands in for one at s3:// and other addresses

Command = Callable[..., Any]

_RATES = (
    ("--forward", DURATION, "Forward of one micro-batch on one rank (a chunk takes 1/V of it).  [default: 1ms]"),
    ("--backward", DURATION, "Backward, both halves.  [default: 2ms]"),
    ("--input", DURATION, "Half of the backward that yields the gradient of the input."),
    ("--weight", DURATION, "Half of the backward that yields the gradient of the weights."),
    ("--transfer", DURATION, "One hop between ranks.  [default: 0]"),
    ("--pair", DURATION, "An overlapped F and B together.  [default: their sum]"),
    ("--stage-scale", FACTORS, "A factor for each stage."),
    ("--microbatch-scale", FACTORS, "A factor for each micro-batch."),
    ("--rank-scale", FACTORS, "A factor for each rank."),
)


def rate_options(command: Command) -> Command:
    """Add the options that say how fast things are; the command takes them as ``rates``, a ``Rates``."""

    @wraps(command)
    def with_rates(*args: Any, **given: Any) -> Any:
        from ..core.costs import Rates  # NumPy: only when a verb runs

        names = [option[2:].replace("-", "_") for option, _, _ in _RATES]
        said = {name: value for name in names if (value := given.pop(name)) is not None}
        return command(*args, rates=Rates(**said), **given)

    for option, kind, sentence in reversed(_RATES):
        with_rates = click.option(option, type=kind, help=sentence)(with_rates)
    return with_rates


def look_options(command: Command) -> Command:
    """Add ``--ascii`` and ``--no-color``; the command takes them as ``look``, a ``console.Look``."""

    @wraps(command)
    def with_look(*args: Any, ascii: bool, no_color: bool, **given: Any) -> Any:  # noqa: A002 - the option's name
        from .console import look

        return command(*args, look=look(ascii_only=ascii, no_colour=no_color), **given)

    with_look = click.option("--no-color", is_flag=True, help="Draw without colour, as NO_COLOR does.")(with_look)
    return click.option("--ascii", is_flag=True, help="Draw with letters only.")(with_look)


json_option = partial(click.option, "--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")()


_SIZES = (
    (("-p", "--ranks"), "Ranks of the pipeline."),
    (("-m", "--microbatches"), "Micro-batches per step."),
    (("-v", "--chunks"), "Stages on each rank.  [default: what the schedule has]"),
    (("--group",), "Micro-batches that pass a chunk before the next has its turn."),
    (("--slices",), "Parts into which the sequence of a micro-batch is cut."),
)


def size_options(command: Command) -> Command:
    """Add the options that say how big a pipeline is; the command takes them as ``sizes``, a ``Sizes``."""

    @wraps(command)
    def with_sizes(*args: Any, **given: Any) -> Any:
        sizes = Sizes(**{field.name: given.pop(field.name) for field in fields(Sizes)})
        return command(*args, sizes=sizes, **given)

    for names, sentence in reversed(_SIZES):
        with_sizes = click.option(*names, type=COUNT, help=sentence)(with_sizes)
    return with_sizes


def memory_options(command: Command) -> Command:
    """Add ``--release`` and ``--memory``; the command takes them as ``memory``, a ``Memory``."""

    @wraps(command)
    def with_memory(*args: Any, release: str, memory: str | None, **given: Any) -> Any:
        return command(*args, memory=Memory(release, memory), **given)

    cap = "Most activations on a rank, for zb-auto and zb-v-auto: 6, 1p, 1.5p or one for each rank.  [default: 1p]"
    with_memory = click.option("--memory", metavar="CAP", help=cap)(with_memory)
    return click.option(
        "--release",
        type=click.Choice(["w", "half", "i"]),
        default="w",
        show_default=True,
        help="When a split backward frees activations: at W, half at I and half at W, or at I.",
    )(with_memory)
