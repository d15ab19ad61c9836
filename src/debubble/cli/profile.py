"""``profile``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import COUNT, Verb, option
from .completion import GPU, MODEL
from .output import Output, output_options
from .progress import working


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
