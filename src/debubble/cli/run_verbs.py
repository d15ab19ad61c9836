"""Verbs that are there while a job runs: the options of ``run``, ``record`` and ``watch``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

import debubble

from ..core.units import percent
from ..recorder.start import Program
from ..recorder.wishes import wish_of
from ..verbs.arguments import together
from ..verbs.self_test import self_test as tested
from .console import put, say, warn, working
from .options import (
    COUNT,
    DURATION,
    HOP,
    PACE,
    SCHEDULE,
    SHARE,
    Output,
    Parsed,
    Verb,
    cap_options,
    engine_option,
    option,
    options,
    output_options,
    size_options,
)

run_options = options(
    option("--schedule", metavar="S", required=True, shell_complete=SCHEDULE, help="A name, or a torch CSV file."),
    size_options,
    cap_options,
    option("--data", type=COUNT, default=1, help="Data-parallel replicas, each with a pipeline of its own."),
    option(
        "--global-batch",
        former=("--batch",),
        type=COUNT,
        help="Samples of all replicas in a step.  [default: one a micro-batch]",
    ),
    option("--steps", type=COUNT, default=5, show_default=True, help="Steps to measure, after one that is not."),
    option("--model", default="", metavar="PKG.MODULE:FUNCTION", help="Your own model, cut into stages."),
    option("--text", default="", metavar="FILE", help="What the built-in model learns.  [default: Python's help]"),
    option("--pace", type=PACE, help="Stretch ops to these durations, per micro-batch and rank."),
    option("--transfer", former=("--hop",), type=HOP, default="0", help="Delay of arrivals; 1ms,6-7=30ms by link."),
    engine_option,
    option("--check", is_flag=True, help="Compare loss and every gradient with one process without a pipeline."),
    option("--double", is_flag=True, help="Train in 64 bits."),
    option("--optimizer", type=click.Choice(["sgd", "adamw"]), default="sgd", help="What trains.  [default: sgd]"),
    option("--learning-rate", type=float, metavar="X", help="Of the optimizer.  [default: 0.1 of sgd, 0.001 of adamw]"),
    option("--weight-decay", type=float, default=0.0, metavar="X", help="Of the optimizer.  [default: 0]"),
    option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where to run."),
    option("--timeout", type=DURATION, default="5min", help="How long a rank waits for another.  [default: 5min]"),
    option("--out", required=True, metavar="DIR", help="Folder of the recording; an earlier one there is replaced."),
)


@click.command(cls=Verb, short_help="Train through a schedule and record it.")
@run_options
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
def run(output: Output, **given: Any) -> int:
    """Train a small transformer, or your own model, through a schedule, and record when every op ran.

    Starts one process a rank on this host, or joins those that torchrun started. The recording goes to `diagnose` and
    `why`. With --pace, 4 or 8 ranks on a laptop show the timeline that as many GPUs would.

    \b
    debubble run --schedule 1f1b -p 4 -m 8 --pace F=20ms,B=40ms --out four
    debubble run --schedule interleaved -p 4 -m 8 -v 2 --data 2 --check --out eight
    """  # noqa: D301 - click wants the character, not two
    with working():
        found = debubble.run(**given)
    return 0 if found is None else output.show(found)  # another process speaks for all that torchrun started


def _steps(text: str, name: str) -> str:  # noqa: ARG001 - the type's shape
    wish_of("", steps=text)
    return text


_STEPS = Parsed("a:b", _steps)


class _Record(Verb):
    """A command whose options end at the program: what follows is the program's own, as with ``python``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, module, program = self._split(args)
        flag = ["--module"] if module else []
        return super().parse_args(ctx, [*ours, *flag, "--", *program])

    def _split(self, words: list[str]) -> tuple[list[str], bool, list[str]]:
        # Options that take a value take the next word with them, even if that looks like a program.
        takes = {name: not each.is_flag for each in self.params if isinstance(each, click.Option) for name in each.opts}
        at = 0
        while at < len(words):
            word = words[at]
            if word in ("-m", "--module"):
                return words[:at], True, words[at + 1 :]
            if word == "--" or not word.startswith("-") or word == "-":
                return words[:at], False, words[at + (word == "--") :]
            at += 2 if takes.get(word, False) else 1
        return words, False, []


@click.command(
    cls=_Record,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Record your own training job, with no line changed.",
)
@option("--out", default="recording", show_default=True, metavar="DIR", help="Folder of the recording.")
@option("--steps", type=_STEPS, default="", help="First and last step.  [default: all but a pipeline's first]")
@option("--every", default="1", metavar="N", help="Record one step in so many.")
@option("--keep", default="", metavar="N|SIZE", help="Keep the newest N steps, or SIZE of each rank's files.")
@option("--replicas", default="", metavar="LIST", help="Record a sample of the replicas, as in 0,7.")
@option("--self-test", is_flag=True, help="Record a small pipeline on the GPUs here, and say what agrees.")
@option("--json", "as_json", is_flag=True, help="At the end, print one JSON object from the first process.")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("program", nargs=-1, metavar="FILE|MODULE [ARGS]...", type=click.UNPROCESSED)
@click.pass_context
def record(
    ctx: click.Context, /, program: tuple[str, ...], module: bool, as_json: bool, self_test: bool, **given: Any
) -> Callable[[], None] | int:
    """Record the pipeline of your own training job: start it as before, with this between launcher and program.

    Measures torch.distributed.pipelining, torchtitan, Megatron-Core and DeepSpeed from inside. The program runs as it
    is, with its own arguments, exit status and exceptions.

    \b
    torchrun --nproc-per-node 8 -m debubble record --out runs/now train.py --lr 1e-4
    srun python -m debubble record --out runs/now -m torchtitan.train --job.config_file c.toml
    debubble record --self-test                      # on a new machine: does what it says agree?
    DEBUBBLE_RECORD=runs/now deepspeed train.py      # for launchers that take no module
    """  # noqa: D301 - click wants the character, not two
    if self_test:
        found = tested()
        put(found.json() if as_json else found.text())
        return found.exit_status
    if not program:
        raise click.UsageError("Missing FILE or -m MODULE: what is to be run.", ctx)
    first = [f"--local_rank={ctx.obj}"] if ctx.obj is not None else []  # where deepspeed puts it: before the verb
    job = Program(program[0], (*first, *program[1:]), module)
    # Both before the recording begins: a job of many processes must not start half of them.
    together(lambda: wish_of(**given), job.check)
    recording = debubble.record(**given)

    def ended(raised: bool) -> None:
        recording.close(raised=raised)
        if as_json and (found := recording.result()) is not None:
            put(found.json())

    # main calls it outside of its error handling: what the job raises is the job's.
    return lambda: job.run(ended)


WIDE = 10_000  # columns: a step is one line, to be searched for


@click.command(cls=Verb, short_help="Follow a recording while its job runs.")
@click.argument("recording", metavar="DIR")
@option("--wait", type=DURATION, default="1min", help="For the first step, if nothing is there yet.  [default: 1min]")
@option("--gate", type=SHARE, help="End with status 1 once the last 10 steps idle more, as in 30%.")
@output_options()
def watch(output: Output, gate: float | None, **given: Any) -> int:
    """Follow a recording while its job runs: idle share, slow rank and drift of each step, as it is written.

    It reads what is new in each file and ends when the job has, or at the gate; it never touches the job.

    \b
    debubble watch runs/now
    debubble watch runs/now --json --gate 30%
    """  # noqa: D301 - click wants the character, not two
    last = None
    for last in debubble.watch(gate=gate, **given):
        if output.as_json:
            put(json.dumps(last.document()))
        else:
            say(last.text(WIDE))
    if gate is None or last is None or last.recent_idle_share <= gate:
        return 0
    shown, limit = percent(last.recent_idle_share), percent(gate)
    warn(f"debubble: idle share {shown} over the last {last.recent_steps} steps, the gate is {limit}")
    return 1
