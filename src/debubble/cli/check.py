"""``check``: the options of the verb."""

from __future__ import annotations

from typing import Any

import click

import debubble

from .command import COUNT, DURATION, PLACEMENT, Verb, option
from .completion import FRAMEWORK, GPU, MODEL, SCHEDULE
from .groups import duration_options, scale_options, size_options
from .output import Output, output_options


@click.command(
    cls=Verb, short_help="Prove a schedule or a configuration legal.", context_settings={"ignore_unknown_options": True}
)
@click.argument("what", nargs=-1, type=click.UNPROCESSED, metavar="SCHEDULE|FILE|LAYOUT|FLAGS", shell_complete=SCHEDULE)
@size_options
@option(
    "--sends",
    type=click.Choice(["async", "blocking", "rendezvous"]),
    multiple=True,
    default=("async", "rendezvous"),
    help="Ways of sending to try; give it again for more.  [default: async and rendezvous]",
)
@option("--makespan", type=DURATION, help="A makespan that somebody claims: can it be?")
@option("--placement", type=PLACEMENT, help="Where your stages live: does it fit?")
@option(
    "--local-batch",
    former=("--batch",),
    type=COUNT,
    help="Samples that your micro-batches are cut from: is it divisible?",
)
@option(
    "--framework",
    former=("--backend",),
    shell_complete=FRAMEWORK,
    help="Whose: megatron, torchtitan, torch, deepspeed, nemo, nanotron, internevo, maxtext; or what wraps "
    "Megatron-Core: swift, slime, verl, primus, accelerate.",
)
@option("--model", shell_complete=MODEL, help="Name or config.json of the model, for its layers and heads.")
@option("--gpu", shell_complete=GPU, help="Device, to tell whether there is room without recomputation.")
@duration_options
@scale_options
@output_options()
def check(what: tuple[str, ...], output: Output, **given: Any) -> int:
    """Prove a schedule or a configuration legal, or list every fault with its place and a remedy.

    SCHEDULE is a schedule file in PyTorch's CSV format, with SEND and RECV cells or without, or a name. Each op must
    be there once, where its stage lives and after what it builds on; each send must meet its receive; and no rank
    may wait for ever, whether sends wait or not.

    A configuration is a FILE (launch script, YAML, JSON, TOML, Python), Megatron's LAYOUT string, or FLAGS, the
    framework's own or plain ones (--gpus --tensor --pipeline --data --context --expert --layers --heads --kv-heads
    --experts --sequence --micro-batch --global-batch --split). All that it breaks is listed, each with the nearest
    legal values and the idle share that they cost. Exit status 1 if something is wrong, 2 if something is open.

    \b
    debubble check schedule.csv
    debubble check 1f1b -p 8 -m 32 --forward 1 --backward 1 --makespan 71
    debubble check pretrain.sh --framework megatron
    debubble check --framework megatron --layers 64 --pipeline 7
    """  # noqa: D301 - click wants the character, not two
    return output.show(debubble.check(*what, **given))
