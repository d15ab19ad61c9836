"""``show``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from ..core.errors import Fault, InputError
from .command import SWEEP, Verb, option
from .completion import SCHEDULE
from .groups import cap_options, duration_options, engine_options, link_options, scale_options, size_options
from .output import Output, output_options, warned

PIPED = 10_000  # columns where nobody watches: a line for each schedule


@click.command(cls=Verb, short_help="Draw a schedule.")
@click.argument("schedule", required=False, shell_complete=SCHEDULE)
@size_options
@duration_options
@scale_options
@link_options
@option(
    "--sends",
    type=click.Choice(["async", "blocking", "rendezvous"]),
    default="async",
    show_default=True,
    help="Whom a send keeps: nobody, the sender, or sender and receiver.",
)
@engine_options
@option("--against", metavar="B", shell_complete=SCHEDULE, help="Another schedule, to be held against it.")
@option("--sweep", type=SWEEP, help="Hops to try on one link of both, as in 6-7=0:60ms:5ms.")
@option("--forward-only", is_flag=True, help="Leave the backwards out (inference).")
@cap_options
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
@option("--list", "list_them", is_flag=True, help="List the schedules.")
def show(schedule: str | None, output: Output, *, list_them: bool, **given: Any) -> int:
    """Draw SCHEDULE, say how big its bubble is, and where the time of each rank goes.

    SCHEDULE is a name (see --list) or a schedule file in PyTorch's CSV format. Durations (20ms, 35us, 1.5s; a bare
    number is ms) are per micro-batch and rank.

    \b
    debubble show 1f1b -p 4 -m 8
    debubble show zb-auto -p 4 -m 8 --input 12ms --weight 6ms --forward 10ms --transfer 1ms --cap 2p
    debubble show interleaved -p 4 -m 8 -v 2 --stage-scale 1,1,1,1,1,1,1,1.6
    debubble show 1f1b -p 8 -m 24 --engine megatron --against zb-h1 --sweep 6-7=0:5ms:500us
    """  # noqa: D301 - click wants the character, not two
    if list_them:
        width = PIPED
        if output.look.terminal:
            width = max(80, output.look.width)
        output.say(debubble.catalog(), width=width)
        return 0
    if schedule is None:
        raise InputError(Fault("SCHEDULE", "it is required", "give a name (see show --list) or a file"))
    shown = debubble.show(schedule, **given)
    warned(shown)
    return output.show(shown)
