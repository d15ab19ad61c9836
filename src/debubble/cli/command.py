"""A verb of the command line: options with former names, types that name what is wrong, all faults at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from ..verbs import arguments

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # older versions of click cannot be asked for a parameter


class Option(click.Option):
    """An option that also answers to the names it had before, of which help says nothing."""

    def __init__(self, *names: Any, former: Sequence[str] = (), **given: Any) -> None:
        super().__init__(*names, **given)
        self.former = tuple(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know every name; help and errors know the present ones."""
        # click has no aliases that help leaves out: the parser is handed them while it is being built.
        present = self.opts
        self.opts = [*present, *self.former]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = present


class Verb(click.Command):
    """A command that reads all its options before it complains about any."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; if that fails, go through all options once more and gather what is wrong."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            raise click.UsageError("\n".join(self._strange(ctx, given)), ctx) from None
        except (InputError, click.BadParameter):
            # click stops at the first value that is wrong; each is tried by itself here.
            options, rest, _ = self.make_parser(ctx).parse_args(given)
            faults = [fault for parameter in self.get_params(ctx) for fault in _faults(ctx, parameter, options, rest)]
            raise InputError(*faults) from None

    def _strange(self, ctx: click.Context, words: list[str]) -> list[str]:
        """A line for each option that there is not, with the nearest names."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        _, rest, _ = parser.parse_args(list(words))
        known = [name for parameter in self.params if isinstance(parameter, click.Option) for name in parameter.opts]
        lines = []
        for name in dict.fromkeys(word.partition("=")[0] for word in rest if word.startswith("-") and len(word) > 1):
            near = " or ".join(get_close_matches(name, known, n=3))
            hint = f" (did you mean {near}?)" if near else ""
            lines.append(f"No such option: {name}{hint}")
        return lines


def _faults(ctx: click.Context, parameter: click.Parameter, options: dict[str, Any], rest: list[str]) -> list[Fault]:
    try:
        parameter.handle_parse_result(ctx, options, rest)
    except InputError as error:
        return list(error.faults)
    except click.BadParameter as error:
        name = name_of(parameter)
        return [Fault(name, error.message.rstrip(".") or "it is required", "see --help")]
    return []


def name_of(parameter: click.Parameter | None) -> str:
    """The name of an option or argument, as faults quote it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if parameter else "value"


class Parsed(_Type):
    """A type made from a function that reads text and names what is wrong with it.

    Args:
        name: as help shows it.
        read: from text and the option's name.
        as_typed: whether the verb gets the text itself, which it reads again: its Python users type it too.
    """

    def __init__(self, name: str, read: Callable[[str, str], Any], *, as_typed: bool = False) -> None:
        self.name = name
        self._read = read
        self._as_typed = as_typed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Read text; a default that is not text passes as it is."""
        if not isinstance(value, str):
            return value
        found = self._read(value, name_of(param))  # raises if it cannot be
        return value if self._as_typed else found


DURATION = Parsed("duration", arguments.duration, as_typed=True)
HOP = Parsed("[d,]a-b=d,..", arguments.hop, as_typed=True)
SWEEP = Parsed("a-b=d:d:d", arguments.swept, as_typed=True)
SIZE = Parsed("size", arguments.size)
RATE = Parsed("rate", arguments.rate)
FACTORS = Parsed("a,b,..", arguments.factors)
COUNT = Parsed("n", arguments.count)
COUNTS = Parsed("n,n,..", arguments.counts)
PACE = Parsed("F=D,B=D", arguments.pace, as_typed=True)
PLACEMENT = Parsed("loop|v|0,1,..", arguments.placement)
WEIGHTS = Parsed("w,w*n,..", arguments.weight_list)
BLOCKS = Parsed("n,n,..", arguments.block_list)
SHARE = Parsed("share", arguments.share)
STEPS = Parsed("a:b", arguments.steps)
GIGABYTES_A_SECOND = Parsed("GB/s", arguments.gigabytes_a_second)


def option(*names: str, former: Sequence[str] = (), **given: Any) -> Callable[[Any], Any]:
    """An option of a verb; ``former`` are names that go on working, hidden."""
    return click.option(*names, cls=Option, former=former, **given)


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
