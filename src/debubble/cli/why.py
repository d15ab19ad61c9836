"""``why``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import COUNT, SHARE, Verb, option
from .completion import FRAMEWORK
from .groups import measurement_options
from .output import Output, output_options
from .progress import working


@click.command(cls=Verb, short_help="Say why one run is slower than another.")
@click.argument("runs", nargs=-1, required=True, metavar="A [B] | SERIES")
@measurement_options
@option("--micro-batch", type=COUNT, help="Samples in one micro-batch, which logs do not tell.")
@option("--gate", type=SHARE, help="Exit 1 if B is slower by more than this, as in 3%.")
@option("--framework", shell_complete=FRAMEWORK, help="Who will run what is advised: megatron, torchtitan, torch, ..")
@output_options("html", "svg", "png", "pdf")
def why(runs: tuple[str, ...], output: Output, **given: Any) -> int:
    """Say why run B is slower (or faster) than run A, and what to change; of A alone, what its bubble costs.

    Each run is a job TOML (what you know of it), a launch script or configuration, a recording (the folder that
    `run --out` wrote), a trace or a folder of traces, or a log of steps of any framework, or CSV. A TOML with
    [[run]] tables is a series; each run of it is compared with the first. What traces and logs do not tell is taken
    from the options, for all of them.

    \b
    debubble why four.toml eight.toml
    debubble why traces/before traces/after --html why.html
    debubble why before.log after.log --gate 3% --markdown
    """  # noqa: D301 - click wants the character, not two
    with working(runs):
        found = debubble.why(*runs, **given)
    return output.show(found)
