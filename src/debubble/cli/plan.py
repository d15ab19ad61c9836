"""``plan``: the options of the verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import debubble

from ..core.errors import Fault, InputError
from .command import COUNT, COUNTS, SIZE, Verb, option, options
from .completion import FRAMEWORK, GPU, MODEL, SCHEDULE
from .output import Output, output_options
from .progress import working

plan_options = options(
    option("--gpus", type=COUNTS, help="Devices of the whole job; several to compare: 4,8,16,32."),
    option("--model", shell_complete=MODEL, help="Name of a model, or its config.json; without it, bubbles alone."),
    option("--gpu", shell_complete=GPU, help="Name of the device, or your own TOML file of it."),
    option("--global-batch", type=COUNTS, help="Samples of all replicas in a step."),
    option("--sequence", type=COUNT, help="Tokens in a sample.  [default: 4096]"),
    option("--nodes", type=COUNT, help="Hosts; else as the vendor sells the device."),
    option("--nic", type=SIZE, help="Bandwidth of a device to other hosts, a second: 50GB."),
    option("--price", type=float, help="Of one device for an hour, for the cost of a billion tokens."),
    option("--tensor", type=COUNTS, help="Devices that share each layer; with a model, the ones to try."),
    option("-p", "--pipeline", former=("--ranks",), type=COUNTS, help="Ranks of a pipeline, the ones to try."),
    option("--data", type=COUNT, help="Data-parallel replicas."),
    option("--context", type=COUNTS, help="Devices that share each sequence, the ones to try."),
    option("--expert", type=COUNTS, help="Devices over which experts are spread, the ones to try."),
    option(
        "--expert-tensor",
        type=COUNTS,
        help="Devices that share each expert, the ones to try.  [default: as tensor, and 1]",
    ),
    option("-v", "--chunks", type=COUNTS, help="Stages on each rank, the ones to try."),
    option("--micro-batch", type=COUNTS, help="Samples in a micro-batch, the ones to try."),
    option("-m", "--microbatches", type=COUNTS, help="Micro-batches per pipeline and step, instead of a global batch."),
    option("--schedule", shell_complete=SCHEDULE, help="Schedules to try, with commas between them."),
    option(
        "--precision",
        type=click.Choice(["bf16", "fp16", "fp8", "fp4"]),
        help="Of the matrix products.  [default: bf16]",
    ),
    option(
        "--zero",
        type=click.IntRange(0, 3),
        help="What replicas share out: 1 optimizer, 2 gradients, 3 weights.  [default: 1]",
    ),
    option(
        "--calibrate",
        multiple=True,
        help="Measured rows as CSV, logs of Megatron-LM, recordings, traces, or a file of --save-calibration or "
        "`profile`; give it again for more.",
    ),
    option("--save-calibration", metavar="F", help="Write the calibration to this file."),
    option("--launched", metavar="F", help="Configuration with which the traces of --calibrate were launched."),
    option("--top", type=COUNT, help="Layouts to print.  [default: 10]"),
    option("--framework", shell_complete=FRAMEWORK, help="Who is to launch it: nothing else is planned."),
    option(
        "--emit",
        shell_complete=FRAMEWORK,
        help="The same, and print what to paste: megatron, torchtitan, torch, deepspeed, nemo or nanotron.",
    ),
    option("--rampup", type=COUNTS, help="A batch that grows: start,increment,samples."),
)


@click.command(cls=Verb, short_help="Find the layout to launch.")
@click.argument("job", required=False, type=click.Path(path_type=Path))
@plan_options
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
def plan(job: Path | None, output: Output, **given: Any) -> int:
    """Find the layout to launch: every legal one, ranked, with where its time and memory go.

    Without a model and a device, the batch and the bubbles alone: micro-batches, idle share, how many GPUs' worth
    of work is done. JOB is a job TOML or a launch script, from which devices, batch and sequence are taken if no
    option says them; its other degrees are free again, but for those that share a layer or a sequence if there is no
    model.

    \b
    debubble plan --model llama3-70b --gpu h100 --gpus 64 --global-batch 512 --sequence 8192
    debubble plan --model llama3-8b --gpu h100 --gpus 8 --global-batch 32 --html plan.html
    debubble plan --model ./config.json --gpu h100 --gpus 8,16,32 --global-batch 256 --price 2.5
    debubble plan --gpus 384 --tensor 4 --pipeline 12 --micro-batch 2 --global-batch 16,192,2048
    """  # noqa: D301 - click wants the character, not two
    if output.files and given["model"] is None and given["gpu"] is None:
        rule = "without a model and a device there are no durations to draw"
        remedy = "give --model and --gpu, or draw a schedule with debubble show"
        raise InputError(*(Fault(f"--{kind}", rule, remedy) for kind in output.files))
    with working():
        found = debubble.plan(job, **given)
    return output.show(found)
