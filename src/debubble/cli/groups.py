"""Options that several verbs share, by what they are about: one thing has one name everywhere."""

from __future__ import annotations

import click

from .command import COUNT, DURATION, FACTORS, GIGABYTES_A_SECOND, HOP, SIZE, STEPS, option, options
from .completion import ENGINE

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
    option("--pair", type=DURATION, help="An overlapped F and B together.  [default: their sum]"),
)
scale_options = options(
    option("--stage-scale", type=FACTORS, default=(), help="A factor for each stage."),
    option("--microbatch-scale", type=FACTORS, default=(), help="A factor for each micro-batch."),
    option("--rank-scale", type=FACTORS, default=(), help="A factor for each rank."),
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
    option("--ray", is_flag=True, help="Read Kineto and Chrome ranks as Ray tasks."),
)
