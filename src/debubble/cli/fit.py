"""``fit``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import COUNT, FACTORS, SIZE, Verb, option
from .output import Output, output_options, warned
from .progress import working


@click.command(cls=Verb, short_help="Fit step times of a log.")
@click.argument("file")
@option("-p", "--ranks", type=COUNT, help="Ranks of the pipeline, if the log does not begin with them.")
@option("--data", type=COUNT, help="Data-parallel replicas: with --micro-batch turns batches into micro-batches.")
@option("--micro-batch", type=COUNT, help="Samples in one micro-batch.")
@option("--constant-batch", is_flag=True, help="All rows share one batch; micro-batches cut it finer.")
@option("--forecast", type=FACTORS, default=(), help="Settings to forecast, in the file's own unit: 4096,8192.")
@option("--capacity", type=SIZE, help="Memory of a device, as in 80GB: says which settings fit.")
@output_options()
def fit(file: str, output: Output, **given: Any) -> int:
    """Fit step times of FILE: a training log, or a CSV of batch or microbatches, and seconds.

    step = fixed + (m + p - 1) x slot. Phases, trends and lone slow steps are said first, and no number is given where
    no line holds. A column gb (peak memory) is fitted to the micro-batches in flight. Logs of Megatron-LM, DeepSpeed,
    nanotron, torchtitan, NeMo, GPT-NeoX, Primus, Hugging Face's Trainer and others are told by their content; one of
    Megatron-LM that begins with its arguments needs no options.

    \b
    debubble fit train.log
    debubble fit steps.csv -p 8 --data 4 --micro-batch 1 --forecast 4096
    """  # noqa: D301 - click wants the character, not two
    with working([file]):
        found = debubble.fit(file, **given)
    warned(found)
    return output.show(found)
