"""Options of verbs: how they are declared, read and completed, which verbs share them, and where an answer goes.

An option may have former names; a value that cannot be read is named with its option, and all faults come at once; the
shell completes names of schedules, devices, models and engines. One thing has one option everywhere: the groups at the
end are what verbs have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..core.errors import Fault, InputError
from ..core.results import Result
from ..verbs import arguments
from .console import Look, look, put, say, warn, wrote

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
        # click empties the list that it parses, and the second pass needs the words again.
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
        # So that all unknown names are left over, not only the first.
        parser.ignore_unknown_options = True
        taken, rest, _ = parser.parse_args(list(words))
        # Arguments take what is left over in front of them, unknown names as well: `diagnose --foo`.
        for parameter in self.params:
            if isinstance(parameter, click.Argument) and isinstance(taken.get(parameter.name), str | tuple):
                value = taken[parameter.name]
                rest += [value] if isinstance(value, str) else value
        known = [name for parameter in self.params if isinstance(parameter, click.Option) for name in parameter.opts]
        lines = []
        strange = [word.partition("=")[0] for word in words if word in rest and word.startswith("-") and len(word) > 1]
        for name in dict.fromkeys(strange):
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


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(where: str, *, files: bool = False) -> Completer:
    """Complete from a list of names.

    Args:
        where: ``module:function`` that returns the names, or ``module:NAME`` of a table with them as keys.
        files: whether the path of a file will do too.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
        # Imported when the shell asks: help must not wait for catalogs.
        module, name = where.split(":")
        known = getattr(import_module(module), name)
        listed: Iterable[str] = known() if callable(known) else known
        *before, last = typed.split(",")  # a list is completed at its last name
        found = [",".join([*before, each]) for each in listed if each.startswith(last)]
        # Without a match the shell may offer files, if the option takes one.
        items = [CompletionItem(each) for each in found]
        return items if items or not files else [CompletionItem(typed, type="file")]

    return complete


SCHEDULE = names("debubble.schedules.catalog:CATALOG", files=True)
FRAMEWORK = names("debubble.frameworks.catalog:FRAMEWORKS")
MODEL = names("debubble.estimate.read_model:known_models", files=True)
GPU = names("debubble.estimate.hardware:known_hardware", files=True)
ENGINE = names("debubble.frameworks.engines:ENGINES")


# Short letters are those of the papers: p ranks, m micro-batches, v chunks.
size_options = options(
    option("-p", "--ranks", type=COUNT, help="Ranks of the pipeline."),
    option("-m", "--microbatches", type=COUNT, help="Micro-batches per step."),
    option("-v", "--chunks", type=COUNT, help="Stages on each rank.  [default: what the schedule has]"),
    option("--group", type=COUNT, help="Micro-batches that pass a chunk before the next has its turn."),
    option("--slices", type=COUNT, help="Parts into which the sequence of a micro-batch is cut."),
)
# Defaults are in the help and not given to click: a verb must know what was said from what was not.
duration_options = options(
    option(
        "--forward", type=DURATION, help="Forward of one micro-batch on one rank (a chunk takes 1/V).  [default: 1ms]"
    ),
    option("--backward", type=DURATION, help="Backward, both halves.  [default: 2ms]"),
    option("--input", type=DURATION, help="Half of the backward that yields the gradient of the input."),
    option("--weight", type=DURATION, help="Half of the backward that yields the gradient of the weights."),
    option(
        "--transfer",
        type=HOP,
        former=("--hop",),
        help="One hop between ranks; 1ms,6-7=30ms by link; or one value for each boundary of stages.  [default: 0]",
    ),
    option(
        "--pair",
        metavar="D",
        help="An overlapped F and B together; 2.4ms,0=3ms by stage. With it, interleaved runs in pairs.  "
        "[default: their sum]",
    ),
)
scale_options = options(
    option("--stage-scale", type=FACTORS, default=(), help="A factor for each stage."),
    option("--microbatch-scale", type=FACTORS, default=(), help="A factor for each micro-batch."),
    option("--rank-scale", type=FACTORS, default=(), help="A factor for each rank."),
)
lengths_options = options(
    option(
        "--lengths",
        metavar="L",
        help="Lengths of samples, if they are unequal: p50=800,p95=6000, mean=1200,p95=4000, or a file of them.",
    ),
    option(
        "--packing",
        type=click.Choice(["whole", "cut", "none"]),
        help="How they fill micro-batches: whole, cut from a stream, or each by itself.  [default: whole]",
    ),
)
link_options = options(
    option("--link", type=GIGABYTES_A_SECOND, help="What a link between two ranks carries each way."),
    option("--bytes", type=SIZE, help="Bytes that one hop carries for a micro-batch."),
)
engine_option = option(
    "--engine",
    metavar="E",
    shell_complete=ENGINE,
    help="Who executes it, and so how it communicates: megatron, torch, deepspeed, ..  [default: ideal]",
)
engine_options = options(
    engine_option,
    option("--occupy", type=HOP, help="How long a hop takes up its sender before it begins, as --transfer."),
)
cap_options = options(
    option(
        "--release",
        type=click.Choice(["w", "half", "i"]),
        default="w",
        show_default=True,
        help="When a split backward frees activations: at W, half at I and half at W, or at I.",
    ),
    option(
        "--cap",
        former=("--memory",),
        metavar="CAP",
        help="Most activations on a rank, for zb-auto and zb-v-auto: 6, 1p, 1.5p or one for each rank.  [default: 1p]",
    ),
)
measurement_options = options(
    option("-p", "--ranks", type=COUNT, help="Positions in the pipeline, if the trace does not tell."),
    option("--data", type=COUNT, help="Data-parallel replicas, if the trace does not tell."),
    option("-v", "--chunks", type=COUNT, help="Stages a rank, if the trace does not tell."),
    option("--steps", type=STEPS, help="Use only these steps, both ends included."),
    option("--columns", help="What a table's columns are called: ours=theirs,.. (see docs/op-tables.md)."),
    option("--ray", is_flag=True, help="Read files of recordings and traces as Ray tasks."),
)


FILES = {
    "html": "Write a page to explore in a browser: one file, which needs no network.",
    "svg": "Write the picture as a figure.",
    "png": "Write the figure as PNG (the extra `plot`).",
    "pdf": "Write the figure as PDF (the extra `plot`).",
    "perfetto": "Write a trace that ui.perfetto.dev opens; gzipped where F ends in .gz.",
    "torch-csv": "Write the schedule in PyTorch's format.",
}
LOOKS = ("json", "markdown", "ascii", "no_color")


@dataclass(frozen=True, slots=True)
class Output:
    """What was asked of the answer.

    Args:
        as_json: one JSON object instead of text.
        as_markdown: Markdown instead of text.
        files: where to write what, by kind.
        look: what stdout can show.
    """

    as_json: bool
    as_markdown: bool
    files: Mapping[str, Path]
    look: Look

    def show(self, result: Result) -> int:
        """Write the files, print the answer, and return the exit status."""
        # Files first: a gate that fails must leave the page that tells why.
        for kind, path in self.files.items():
            result.write(kind, path)
            wrote(path)
        self.say(result)
        if result.refused:
            warn(f"debubble: {result.refused}")
        return result.exit_status

    def note(self, result: Result, sentence: str) -> int:
        """Say on stderr why there is no answer yet; what was done instead is the JSON."""
        warn(sentence)
        if self.as_json:
            self.say(result)
        return result.exit_status

    def say(self, result: Result, *, width: int | None = None) -> None:
        """Print the answer."""
        if self.as_json:
            put(result.json())  # escaped by JSON itself; say() would change its text
        elif self.as_markdown:
            say(result.markdown())
        else:
            say(result.text(width or self.look.width, utf8=self.look.utf8, colour=self.look.colour))


def output_options(*files: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add what every verb can do with its answer; the command takes it as ``output``, an ``Output``.

    Args:
        files: kinds of files that the verb can write, as ``FILES`` lists them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_output(
            *args: Any, as_json: bool, as_markdown: bool, as_ascii: bool, no_color: bool, **given: Any
        ) -> Any:
            # The verb takes no paths: files are written from its result.
            paths = {kind: given.pop(kind.replace("-", "_")) for kind in files}
            wanted = {kind: path for kind, path in paths.items() if path is not None}
            seen = look(ascii_only=as_ascii, no_colour=no_color)
            return command(*args, output=Output(as_json, as_markdown, wanted, seen), **given)

        for kind in reversed(files):  # decorators are applied from the last to the first
            # Not checked by click: a path that cannot be written is said by whoever writes it, with the reason.
            path = click.Path(path_type=Path)
            with_output = option(f"--{kind}", type=path, metavar="F", help=FILES[kind])(with_output)
        return with_output

    # Added last, the flags of looks are listed first: every verb has them, files only some.
    return lambda command: _looks(decorate(command))


def _looks(command: Callable[..., Any]) -> Callable[..., Any]:
    flags = (
        ("--ascii", "as_ascii", "Draw with letters only."),
        ("--no-color", "no_color", "Draw without colour, as NO_COLOR does."),
        ("--markdown", "as_markdown", "Print Markdown, for a pull request."),
        ("--json", "as_json", "Print one JSON object instead of text."),
    )
    for name, variable, sentence in reversed(flags):
        command = option(name, variable, is_flag=True, help=sentence)(command)
    return command


def warned(result: Result) -> None:
    """Print a result's warnings on stderr."""
    for sentence in getattr(result, "warnings", ()):
        warn(f"warning: {sentence}")
