"""Options that several verbs share, and a command class that reports every bad option at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from ..core.units import count_bytes, nanoseconds


class Verb(click.Command):
    """A command that reads all its options before it complains about any."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; where that fails, go through all options once more and gather what is wrong."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except (InputError, click.BadParameter):
            options, rest, _ = self.make_parser(ctx).parse_args(given)
            faults = [fault for parameter in self.get_params(ctx) for fault in _faults(ctx, parameter, options, rest)]
            raise InputError(*faults) from None


def _faults(ctx: click.Context, parameter: click.Parameter, options: dict[str, Any], rest: list[str]) -> list[Fault]:
    try:
        parameter.handle_parse_result(ctx, options, rest)
    except InputError as error:
        return list(error.faults)
    except click.BadParameter as error:
        name = _name(parameter)
        return [Fault(name, error.message.rstrip(".") or "it is required", "see --help")]
    return []


def _name(parameter: click.Parameter | None) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if parameter else "value"


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # older versions of click cannot be asked for a parameter


class Parsed(_Type):
    """A parameter type made from a function that reads text and names what is wrong with it."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Read text; a default that is not text passes as it is."""
        return self._read(value, _name(param)) if isinstance(value, str) else value


def _factors(text: str, name: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        factors = (math.nan,)
    if not all(0 <= factor < math.inf for factor in factors):
        rule = "factors are finite numbers, not below 0, with commas between them"
        raise InputError(Fault(f"{name} = {text}", rule, "write them as in 1,1,1,1.6"))
    return factors


def _count(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise InputError(Fault(f"{name} = {text}", "a count is a whole number, not below 1", "give 1 or more"))
    return int(text)


def _place(text: str, name: str) -> Any:  # noqa: ARG001 - the type's signature
    from ..readers.places import place

    return place(text)


DURATION = Parsed("duration", nanoseconds)  # -> float, nanoseconds
SIZE = Parsed("size", count_bytes)  # -> int, bytes
FACTORS = Parsed("a,b,..", _factors)  # -> tuple[float, ...]
COUNT = Parsed("n", _count)  # -> int, 1 or more
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


def together(*makers: Callable[[], Any]) -> list[Any]:
    """Call all makers, and raise the faults of all that fail as one error.

    Raises:
        InputError: with every fault that any of them raised.
    """
    made = []
    faults: list[Fault] = []
    for make in makers:
        try:
            made.append(make())
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    return made
