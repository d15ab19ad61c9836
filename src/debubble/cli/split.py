"""``split``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import BLOCKS, COUNT, COUNTS, WEIGHTS, Verb, option
from .completion import SCHEDULE
from .output import Output, output_options


@click.command(cls=Verb, short_help="Split uneven blocks over ranks.")
@option("--weights", type=WEIGHTS, required=True, help="Weights of the blocks in order: 1.5,1*70,1.5.")
@option("-p", "--pipeline", former=("--ranks",), type=COUNT, required=True, help="Ranks of the pipeline.")
@option("-m", "--microbatches", type=COUNTS, required=True, help="Micro-batches per step; several to compare.")
@option("--schedule", default="1f1b", show_default=True, shell_complete=SCHEDULE, help="The schedule that runs it.")
@option("--split", type=BLOCKS, multiple=True, help="A split to compare: 8,8,7,7; give it again for more.")
@output_options()
def split(output: Output, **given: Any) -> int:
    """Split blocks of unequal weight over the ranks of a pipeline: every split is simulated, the shortest first.

    \b
    debubble split --weights 1.5,1*70,1.5 --pipeline 12 --microbatches 64
    debubble split --weights 1*5 --pipeline 4 --microbatches 8 --split 2,2,1,0
    """  # noqa: D301 - click wants the character, not two
    return output.show(debubble.split(**given))
