"""The entry point: finds the verb, imports it only when it is used, and turns errors into exit statuses.

0 done, 1 the answer is no, 2 bad input (one line each: value, rule, remedy), 70 a fault of ours (one line, and where a
report lies), 130 Ctrl-C, 141 nobody reads on (as of a tool that SIGPIPE ends).
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click

from ..core.errors import Fault, InputError, Refusal, nearest
from ..core.results import __version__, encoded
from ..report.errors import INTERNAL, Failure, failure_of, interrupted, unreadable
from .console import printable, put

PACKAGE = Path(__file__).resolve().parents[1]
UNREAD = 141  # 128 + SIGPIPE, as shells have it for a tool whose reader has gone

# Verb -> the file that declares its options, and what the list of verbs says of it: printing that list imports no file.
VERBS = {
    "show": ("schedule_verbs", "Draw a schedule, its two bubble numbers and where each rank's time goes."),
    "synth": ("schedule_verbs", "Search the best schedule for your costs, memory, links and engine."),
    "plan": ("planning_verbs", "Find the layout to launch: time, memory, bubble, and what was ruled out."),
    "check": ("schedule_verbs", "Prove a schedule or a configuration legal, or list every fault."),
    "split": ("planning_verbs", "Split uneven blocks over ranks, each split simulated."),
    "profile": ("planning_verbs", "Time one layer on the device here, for plan to know your hardware."),
    "run": ("run_verbs", "Train through a schedule on torch.distributed.pipelining and record it."),
    "record": ("run_verbs", "Record your own training job, with no line of it changed."),
    "watch": ("run_verbs", "Follow a recording while its job runs: idle share, slow rank, drift."),
    "diagnose": ("measurement_verbs", "Read a recording or a trace: how big is the bubble, and why."),
    "fit": ("measurement_verbs", "Fit step times of a log: slot, bubble, fixed time and a forecast."),
    "validate": ("planning_verbs", "Hold the planner against measured runs: errors, ranking, memory."),
    "why": ("measurement_verbs", "Say why one run is slower than another, and what to change."),
}

# Verb and option that once asked for what is a verb now: the verb, whether it keeps the option, and what it is made of.
FORMER = {
    ("run", "--profile"): ("profile", False, "--profile times a layer and no pipeline"),
    ("plan", "--weights"): ("split", True, "blocks and their weights are all that a split is made of"),
}


def command_of(verb: str) -> click.Command:
    """The command of a verb, whose file is imported."""
    file, _ = VERBS[verb]
    command: click.Command = getattr(import_module(f"debubble.cli.{file}"), verb)
    return command


class _Verbs(click.Group):
    """A group that knows its verbs by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            raise nearest(cmd_name, VERBS, "verb")
        return command_of(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, present_words(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in VERBS.items()])


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="debubble VERB --help tells the options of a verb. With --json every verb prints one JSON object.",
)
@click.version_option(__version__, message="%(version)s")
@click.option("--local_rank", hidden=True, help="deepspeed puts it before the verb; record hands it to the program.")
@click.pass_context
def debubble(ctx: click.Context, local_rank: str | None) -> None:
    """See, measure and shrink the pipeline bubble of a training job.

    Start with: debubble show 1f1b -p 4 -m 8
    """
    ctx.obj = local_rank
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def present_words(words: Sequence[str]) -> list[str]:
    """The words of a command line as they are written now: ``run --profile`` is ``profile``.

    Args:
        words: the verb and what follows it.

    Raises:
        InputError: options of the former verb that have no place in the present one, all of them.
    """
    # Before click parses: the former verb knows no such option any more.
    for (verb, option), (now, keeps, why) in FORMER.items():
        if words and words[0] == verb and any(word.partition("=")[0] == option for word in words):
            _refuse_others(words[1:], command_of(verb), command_of(now), why)
            return [now, *(word for word in words[1:] if keeps or word != option)]
    return list(words)


def _refuse_others(words: Sequence[str], former: click.Command, now: click.Command, why: str) -> None:
    kept: set[str] = set()
    for parameter in now.params:
        kept.update(_names(parameter))
    faults = []
    for word in words:
        name = word.partition("=")[0]
        for parameter in former.params:
            if name in _names(parameter) and name not in kept:
                faults.append(Fault(max(parameter.opts, key=len), why, "leave it out"))
    if faults:
        raise InputError(*faults)


def _names(parameter: click.Parameter) -> list[str]:
    if not isinstance(parameter, click.Option):
        return []
    return [*parameter.opts, *getattr(parameter, "former", ())]


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    # Kept beside what click reads: messages and crash reports quote them.
    words = list(sys.argv[1:] if args is None else args)
    stdout = sys.stdout  # as it is now: click swaps it if nobody reads on
    try:
        # Not standalone: click would print and exit by itself, and with a status of its own.
        status = debubble.main(words, prog_name="debubble", standalone_mode=False)
        if stdout is not None:
            stdout.flush()  # what cannot be written must fail here, where it has an exit status
    except (click.Abort, KeyboardInterrupt) as error:
        return _failed(interrupted(error.__cause__ or error), words)
    except BrokenPipeError:
        return UNREAD
    except click.ClickException as error:
        return _failed(unreadable(error.format_message()), words)
    except (InputError, Refusal, OSError) as error:
        return _failed(failure_of(error, words), words)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        sys.stdout = stdout  # click muffles it where nobody reads on, and leaves with 1, which is a verdict here
        return UNREAD
    except Exception as error:  # a fault of ours: exit 70, never 1, which is a verdict
        return _failed(crashed(error, words), words)
    if callable(status):  # the job of ``record``: what it raises is its own, and so is its exit status
        status()
    return status if isinstance(status, int) else 0  # help and --version return nothing


def _failed(failure: Failure, words: Sequence[str]) -> int:
    """Say what is wrong: lines on stderr, and one object on stdout where JSON was asked for."""
    for line in failure.lines if sys.stderr is not None else ():  # else print would take stdout
        print("debubble:", printable(line, sys.stderr), file=sys.stderr)
    if "--json" in words:
        with suppress(OSError):  # if stdout is what is wrong, stderr says so
            put(encoded(failure.document()))
    return failure.status


def crashed(error: BaseException, words: Sequence[str]) -> Failure:
    """The failure of an error that nobody expected, whose report lies in the temporary folder.

    Args:
        error: what nobody expected.
        words: of the command line.
    """
    place = f"{type(error).__name__} in {_place(error)}"
    report = _reported(error, words)
    remedy = "please send the command line"
    if report:
        remedy = f"the report is {report}; please send it with what you gave"
    fault = Fault(place, "a fault of debubble, and no answer", remedy)
    return Failure("internal", INTERNAL, [fault], [str(fault)], report)


def _place(error: BaseException) -> str:
    """The last line of this package that the error passed."""
    place = "debubble"
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(PACKAGE):
            place = f"{Path(frame.filename).relative_to(PACKAGE)}:{frame.lineno}"
    return place


def _reported(error: BaseException, words: Sequence[str]) -> str:
    """Write the traceback under a name that nothing has; its path, or nothing if it cannot be written."""
    lines = [
        f"debubble {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(['debubble', *words])}",
        "",
        *traceback.format_exception(error),
    ]
    try:
        # A new name each time: a report must not overwrite that of the run before, nor follow a link that lies there.
        handle, path = tempfile.mkstemp(prefix="debubble-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write("\n".join(line.rstrip("\n") for line in lines) + "\n")
    except OSError:
        return ""
    return path


if __name__ == "__main__":
    sys.exit(main())
