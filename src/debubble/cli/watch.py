"""``watch``: the options of the verb."""

from __future__ import annotations

import json
from typing import Any

import click

import debubble

from ..core.units import percent
from .command import DURATION, SHARE, Verb, option
from .console import put, say, warn
from .output import Output, output_options

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
