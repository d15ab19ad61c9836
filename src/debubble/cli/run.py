"""``run``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import COUNT, DURATION, HOP, PACE, Verb, option, options
from .completion import SCHEDULE
from .groups import cap_options, engine_option, size_options
from .output import Output, output_options
from .progress import working

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
