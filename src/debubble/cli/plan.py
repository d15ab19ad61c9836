"""``plan``: the layout to launch, by batch arithmetic or with a model and devices; and splits of weighted blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..core.errors import Fault, InputError
from ..core.units import count_bytes
from .options import COUNT, Parsed, Verb, json_option
from .pictures import picture_options

LONGEST_LIST = 2000


def _counts(text: str, name: str) -> tuple[int, ...]:
    parts = text.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**12 for part in parts):
        rule = "counts are whole numbers, not below 1, with commas between them"
        raise InputError(Fault(f"{name} = {text[:60]}", rule, "write them as in 4,8,16"))
    return tuple(int(part) for part in parts[:LONGEST_LIST])


def _weights(text: str, name: str) -> tuple[float, ...]:
    """``1.458,1*70,1.458``: a number, or a number and how often it comes."""
    found: list[float] = []
    for part in text.replace(" ", "").split(","):
        number, _, times = part.partition("*")
        try:
            weight, many = float(number), int(times or 1)
        except ValueError:
            weight, many = -1.0, 0
        if not (0 < weight < 1e15 and 0 < many <= LONGEST_LIST and len(found) + many <= LONGEST_LIST):
            rule = f"weights are numbers above 0, at most {LONGEST_LIST} of them"
            raise InputError(Fault(f"{name} = {text[:60]}", rule, "write them as in 1.5,1*70,1.5"))
        found += [weight] * many
    return tuple(found)


def _split(text: str, name: str) -> tuple[int, ...]:
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() for part in parts):
        raise InputError(Fault(f"{name} = {text[:60]}", "it is a list of whole numbers", "write it as in 8,8,7,7"))
    return tuple(int(part) for part in parts)


COUNTS = Parsed("n,n,..", _counts)  # -> tuple[int, ...]

_OPTIONS = (
    (("--gpus",), COUNTS, "Devices of the whole job; several to compare: 4,8,16,32."),
    (("--model",), str, "Name of a model, or its config.json; without it, bubbles alone."),
    (("--gpu",), str, "Name of the device, or your own TOML file of it."),
    (("--global-batch",), COUNTS, "Samples of all replicas in a step."),
    (("--sequence",), COUNT, "Tokens in a sample.  [default: 4096]"),
    (("--nodes",), COUNT, "Hosts; else as the vendor sells the device."),
    (("--nic",), Parsed("bytes/s", count_bytes), "Bandwidth of a device to other hosts, a second: 50GB."),
    (("--price",), float, "Of one device for an hour, for the cost of a billion tokens."),
    (("--tensor",), COUNTS, "Devices that share each layer; with a model, the ones to try."),
    (("-p", "--pipeline", "--ranks"), COUNTS, "Ranks of a pipeline, the ones to try."),
    (("--data",), COUNT, "Data-parallel replicas."),
    (("--context",), COUNTS, "Devices that share each sequence, the ones to try."),
    (("--expert",), COUNTS, "Devices over which experts are spread, the ones to try."),
    (("--expert-tensor",), COUNTS, "Devices that share each expert, the ones to try.  [default: as tensor, and 1]"),
    (("-v", "--chunks"), COUNTS, "Stages on each rank, the ones to try."),
    (("--micro-batch",), COUNTS, "Samples in a micro-batch, the ones to try."),
    (("-m", "--microbatches"), COUNTS, "Micro-batches per pipeline and step, instead of a global batch."),
    (("--schedule",), str, "Schedules to try, with commas between them."),
    (("--precision",), click.Choice(["bf16", "fp16", "fp8", "fp4"]), "Of the matrix products.  [default: bf16]"),
    (("--zero",), click.IntRange(0, 3), "What replicas share out: 1 optimizer, 2 gradients, 3 weights.  [default: 1]"),
    (("--save-calibration",), str, "Write the calibration to this file."),
    (("--launched",), str, "Configuration with which the recordings and traces of --calibrate were launched."),
    (("--top",), COUNT, "Layouts to print.  [default: 10]"),
    (("--emit",), str, "Print what to paste: megatron, torchtitan, torch, deepspeed, nemo or nanotron."),
    (("--rampup",), COUNTS, "A batch that grows: start,increment,samples."),
    (("--weights",), Parsed("w,w*n,..", _weights), "Weights of blocks to split over the ranks: 1.5,1*70,1.5."),
)


def _with_options(command: Any) -> Any:
    for names, kind, sentence in reversed(_OPTIONS):
        command = click.option(*names, type=kind, help=sentence)(command)
    return command


@click.command(cls=Verb, short_help="Find the layout to launch.")
@click.argument("job", required=False)
@_with_options
@click.option(
    "--calibrate",
    multiple=True,
    help="Measured rows as CSV, logs of Megatron-LM, recordings, traces, or a file of --save-calibration or "
    "`run --profile`; give it again for more.",
)
@click.option("--split", type=Parsed("n,n,..", _split), multiple=True, help="With --weights: a split to compare.")
@picture_options
@json_option
def plan(job: str | None, as_json: bool, pictures: dict[str, Path], **said: Any) -> int:
    """Find the layout to launch: every legal one, ranked, with where its time and memory go.

    Without a model and a device, the batch and the bubbles alone: micro-batches, idle share, how many GPUs' worth
    of work is done. With --weights, the best split of uneven blocks over ranks. JOB is a job TOML or a launch
    script, from which devices, batch and sequence are taken where no option says them; its other degrees are free
    again, but for those that share a layer or a sequence where there is no model.

    \b
    debubble plan --model llama3-70b --gpu h100 --gpus 64 --global-batch 512 --sequence 8192
    debubble plan --model llama3-8b --gpu h100 --gpus 8 --global-batch 32 --html plan.html
    debubble plan --model ./config.json --gpu h100 --gpus 8,16,32 --global-batch 256 --price 2.5
    debubble plan --gpus 384 --tensor 4 --pipeline 12 --micro-batch 2 --global-batch 16,192,2048
    debubble plan --weights 1.5,1*70,1.5 --pipeline 12 --microbatches 64
    """  # noqa: D301 - click wants the character, not two
    if job is not None:
        from .plan_job import filled

        said = filled(said, job)
    if pictures and (said["weights"] is not None or (said["model"] is None and said["gpu"] is None)):
        rule = "without a model and a device there are no durations to draw"
        remedy = "give --model and --gpu, or draw a schedule with debubble show"
        raise InputError(*(Fault(f"--{kind}", rule, remedy) for kind in pictures))
    if said["weights"] is not None:
        from .plan_split import plan_split

        return plan_split(said, as_json=as_json)
    if said["model"] is None and said["gpu"] is None:
        from .plan_batch import plan_batch

        return plan_batch(said, as_json=as_json)
    from .plan_layout import plan_layout

    return plan_layout(said, as_json=as_json, pictures=pictures)
