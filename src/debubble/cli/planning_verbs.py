"""Verbs before a launch: the options of ``plan``, ``split``, ``profile`` and ``validate``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import debubble

from ..config.config import SWITCHES
from ..config.fields import KINDS
from ..core.errors import Fault, InputError
from .console import working, wrote
from .options import (
    BLOCKS,
    COUNT,
    COUNTS,
    ENGINE,
    FRAMEWORK,
    GPU,
    HOP,
    MODEL,
    RATE,
    SCHEDULE,
    WEIGHTS,
    Output,
    Verb,
    lengths_options,
    option,
    options,
    output_options,
)

# How a layer runs and what is kept of it: each as the job key of the same name.
RECIPE = {
    "recompute": "What is run again in the backward.  [default: as little as fits]",
    "recompute_modules": "Parts of a layer that selective recomputation runs again: layernorm,moe_act.",
    "gradient_precision": "Of gradients as they are kept and reduced.",
    "optimizer_precision": "Of Adam's moments.",
    "gradient_copies": "Bytes a parameter of further copies of the gradients.",
    "bucket": "Bytes of gradients that replicas reduce in one call.",
    "offload_layers": "Layers of each stage whose activations wait on the host.",
    "offload_optimizer": "The optimizer's state and update on the host.",
    "pieces": "Products into which each one beside a tensor collective is cut.",
    "sequence_parallel": "Norms and dropout split over the tensor group.",
    "overlap": "Gradients reduced beside the last backward.",
    "overlap_gather": "Weights gathered beside the first forward.",
    "gather_by_tensor": "Weights gathered after the update, a call for each tensor.",
    "tensor_overlap": "Tensor collectives beside matrix products.",
    "expert_overlap": "Tokens travel beside the products of another micro-batch.",
    "flex_dispatch": "A token crosses to each node once (DeepEP).",
    "keep_gathered": "What sequence parallelism gathers is kept for the backward.",
    "weights_are_master": "fp32 weights alone, cast for each product (FSDP).",
    "fused_attention": "Scores of attention stay on the chip.",
    "fused_kernels": "Element-wise work is fused.",
    "fused_loss": "The loss works on the logits in place.",
    "graphs": "The device replays recorded graphs (CUDA graphs of whole iterations).",
    "blocking_sends": "A rank sends and receives in turn and waits for each.",
    "blocking_launches": "The host waits for each kernel.",
    "scattered_sends": "Each member of a tensor group sends its share of a hop.",
}


def _of_recipe(name: str) -> Callable[[Any], Any]:
    """An option by the kind of its field."""
    # What an option takes is said once, in the field of the configuration that it sets.
    kind, text = KINDS[name], name.replace("_", "-")
    if name in SWITCHES:
        return option(f"--{text}/--no-{text}", default=None, help=RECIPE[name])
    if kind.form == "words":
        return option(f"--{text}", metavar="A,B", help=RECIPE[name])
    typed: Any = {"word": click.Choice(list(kind.words)), "count": int, "number": float}[kind.form]
    return option(f"--{text}", type=typed, help=RECIPE[name])


plan_options = options(
    option("--gpus", type=COUNTS, help="Devices of the whole job; several to compare: 4,8,16,32."),
    option("--model", shell_complete=MODEL, help="Name of a model, or its config.json; without it, bubbles alone."),
    option(
        "--gpu",
        shell_complete=GPU,
        help="Name of the device, or your own TOML file of it; h100*4,a100*4 if stages lie on several kinds.",
    ),
    option("--global-batch", type=COUNTS, help="Samples of all replicas in a step."),
    option("--sequence", type=COUNT, help="Tokens in a sample.  [default: 4096]"),
    option("--nodes", type=COUNT, help="Hosts; else as the vendor sells the device."),
    option("--nic", type=RATE, help="Bandwidth of a device to other hosts: 50GB/s, or 400Gb/s."),
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
        "--transfer",
        type=HOP,
        help="One hop between ranks as measured; 1ms,6-7=30ms by link.  [default: estimated]",
    ),
    option(
        "--engine",
        metavar="E",
        shell_complete=ENGINE,
        help="How pipelines communicate: megatron, torch, deepspeed, ..  [default: as --framework, else ideal]",
    ),
    option(
        "--precision",
        type=click.Choice(list(KINDS["precision"].words)),
        help="Of the matrix products.  [default: bf16]",
    ),
    option(
        "--zero",
        type=click.IntRange(0, 3),
        help="What replicas share out: 1 optimizer, 2 gradients, 3 weights.  [default: 1]",
    ),
    *map(_of_recipe, RECIPE),
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
        help="The same, and print what to paste: megatron, torchtitan, torch, deepspeed, nemo, nanotron, ..",
    ),
    option("--rampup", type=COUNTS, help="A batch that grows: start,increment,samples."),
    lengths_options,
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
    # Asked here and not in the verb: it knows nothing of files.
    if output.files and given["model"] is None and given["gpu"] is None:
        rule = "without a model and a device there are no durations to draw"
        remedy = "give --model and --gpu, or draw a schedule with debubble show"
        raise InputError(*(Fault(f"--{kind}", rule, remedy) for kind in output.files))
    with working():
        found = debubble.plan(job, **given)
    return output.show(found)


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


@click.command(cls=Verb, short_help="Time one layer of a model on the device here.")
@option("--model", required=True, shell_complete=MODEL, help="Name of the model, or its config.json.")
@option("--gpu", required=True, shell_complete=GPU, help="The device here: its name, or your own TOML file of it.")
@option("--out", required=True, metavar="F.toml", help="Where to write the factors for plan --calibrate.")
@option("--tensor", type=COUNT, default=1, show_default=True, help="Devices that share each layer.")
@option("--expert", type=COUNT, default=1, show_default=True, help="Devices over which experts are spread.")
@option("--micro-batch", type=COUNT, default=1, show_default=True, help="Samples in a micro-batch.")
@option("--sequence", type=COUNT, default=4096, show_default=True, help="Tokens in a sample.")
@option("--repeats", type=COUNT, default=20, show_default=True, help="How often the layer is timed.")
@option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where to run.")
@option("--force", is_flag=True, help="Take what is here for the device of --gpu.")
@output_options()
def profile(output: Output, **given: Any) -> int:
    """Time one layer of a model on the device that is here, and write factors with which plan knows your hardware.

    \b
    debubble profile --model llama3-8b --gpu h100 --tensor 2 --sequence 8192 --out h100.toml
    debubble plan --model llama3-8b --gpu h100 --gpus 16 --global-batch 128 --calibrate h100.toml
    """  # noqa: D301 - click wants the character, not two
    with working():
        found = debubble.profile(**given)
    return output.show(found)


@click.command(cls=Verb, short_help="Hold the planner against measured runs.")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS.csv..")
@option(
    "--rows", type=click.Path(path_type=Path), metavar="F", help="Write every run, predicted beside measured, as CSV."
)
@output_options("html")
def validate(tables: tuple[Path, ...], output: Output, **given: Any) -> int:
    """Hold the planner against RUNS.csv.., tables of measured runs, each a set by itself.

    A table has one run a line: model, gpu, gpus, its degrees and batch, and what was seen of it. Nothing is fitted on
    rows that are tested: calibrated errors are means over 20 draws of 5 rows, tested on the others.

    \b
    debubble validate runs.csv
    debubble validate ours.csv theirs.csv --rows predicted.csv
    """  # noqa: D301 - click wants the character, not two
    found = debubble.validate(*tables, **given)
    if given["rows"] is not None:  # the verb writes it, since it is no rendering of the result
        wrote(given["rows"])
    return output.show(found)
