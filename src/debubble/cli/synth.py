"""``synth``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from ..verbs.telling import listening
from .command import COUNT, HOP, WEIGHTS, Verb, option
from .completion import ENGINE
from .console import warn
from .output import Output, output_options


@click.command(cls=Verb, short_help="Search the best schedule for your costs, memory, links and engine.")
@option("-p", "--ranks", type=COUNT, help="Ranks of the pipeline.")
@option("-m", "--microbatches", type=COUNT, help="Micro-batches per step.")
@option("-v", "--chunks", type=COUNT, default=1, show_default=True, help="Stages on each rank.")
@option("--placement", type=click.Choice(["linear", "loop", "v"]), help="Where stages live.  [default: linear or loop]")
@option("--forward", metavar="D,..", help="Forward of a micro-batch on a rank, or of each stage.  [default: 1ms]")
@option("--input", metavar="D,..", help="Gradient of the input, likewise.  [default: 1ms]")
@option("--weight", metavar="D,..", help="Gradient of the weights, likewise.  [default: 1ms]")
@option("--transfer", type=HOP, help="One hop between ranks; 1ms,6-7=30ms by link.  [default: 0]")
@option("--engine", metavar="E", shell_complete=ENGINE, help="Who executes it: megatron, torch, ..  [default: ideal]")
@option("--cap", metavar="CAP", help="Most micro-batches on a rank: 6, 1.5p, one each; or bytes, 80GB.")
@option("--activation", metavar="BYTES,..", help="What a micro-batch keeps on a rank, with --cap in bytes.")
@option("--static", metavar="BYTES,..", default="0", help="What lies on a rank all the time, with --cap in bytes.")
@option("--release", type=click.Choice(["w", "half", "i"]), default="w", show_default=True, help="When it is freed.")
@option("--split-layers", type=WEIGHTS, help="Weights of layers, 0.3,1*32,1.5: search the split as well.")
@option(
    "--objective", type=click.Choice(["makespan", "span"]), default="makespan", show_default=True, help="What counts."
)
@option("--jitter", metavar="5%", help="How much ops vary; 5%,6-7=30ms@10% for a link that is slow now and then.")
@option("--budget", default="30s", show_default=True, help="Time to search.")
@option("--evaluations", type=COUNT, help="Orders to simulate at most; then every machine finds the same.")
@option("--from", "from_", metavar="PATH", help="A recording or trace: costs, hops and engine as measured.")
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
def synth(output: Output, **given: Any) -> int:
    """Search the schedule with the shortest step for these costs, this memory, these links and this engine.

    Durations (20ms, 35us; a bare number is ms) are per micro-batch and rank, or one for each stage. Ctrl-C keeps the
    best so far.

    \b
    debubble synth -p 8 -m 16 --cap 6 --budget 5s --torch-csv found.csv
    debubble synth -p 8 -m 24 --forward 10 --input 10 --weight 10 --transfer 0-1=30ms --engine megatron
    debubble synth --from runs/now --engine torch
    """  # noqa: D301 - click wants the character, not two
    with listening(warn):
        return output.show(debubble.synth(**given))
