"""Verbs about schedules: the options of ``show``, ``synth`` and ``check``."""

from __future__ import annotations

from typing import Any

import click

import debubble

from ..core.errors import Fault, InputError
from ..verbs.arguments import listening
from .console import warn
from .options import (
    COUNT,
    DURATION,
    ENGINE,
    FRAMEWORK,
    GPU,
    HOP,
    MODEL,
    PLACEMENT,
    SCHEDULE,
    SWEEP,
    WEIGHTS,
    Output,
    Verb,
    cap_options,
    duration_options,
    engine_options,
    lengths_options,
    link_options,
    option,
    output_options,
    scale_options,
    size_options,
    warned,
)

PIPED = 10_000  # columns where nobody watches: a line for each schedule


@click.command(cls=Verb, short_help="Draw a schedule.")
@click.argument("schedule", required=False, shell_complete=SCHEDULE)
@size_options
@duration_options
@scale_options
@link_options
@option(
    "--sends",
    type=click.Choice(["async", "blocking", "rendezvous"]),
    default="async",
    show_default=True,
    help="Whom a send keeps: nobody, the sender, or sender and receiver.",
)
@engine_options
@option("--against", metavar="B", shell_complete=SCHEDULE, help="Another schedule, to be held against it.")
@option("--sweep", type=SWEEP, help="Hops to try on one link of both, as in 6-7=0:60ms:5ms.")
@option("--forward-only", is_flag=True, help="Leave the backwards out (inference).")
@cap_options
@lengths_options
@option("--sequence", type=COUNT, help="Tokens that a micro-batch has room for, with --lengths.")
@option(
    "--attention-share",
    metavar="20%",
    help="Of the time of such a micro-batch that is one sample, how much grows with the square of its length.",
)
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
@option("--list", "list_them", is_flag=True, help="List the schedules.")
def show(schedule: str | None, output: Output, *, list_them: bool, **given: Any) -> int:
    """Draw SCHEDULE, say how big its bubble is, and where the time of each rank goes.

    SCHEDULE is a name (see --list) or a schedule file in PyTorch's CSV format. Durations (20ms, 35us, 1.5s; a bare
    number is ms) are per micro-batch and rank.

    \b
    debubble show 1f1b -p 4 -m 8
    debubble show zb-auto -p 4 -m 8 --input 12ms --weight 6ms --forward 10ms --transfer 1ms --cap 2p
    debubble show interleaved -p 4 -m 8 -v 2 --stage-scale 1,1,1,1,1,1,1,1.6
    debubble show 1f1b -p 8 -m 24 --engine megatron --against zb-h1 --sweep 6-7=0:5ms:500us
    """  # noqa: D301 - click wants the character, not two
    if list_them:
        # One line a schedule, however long: what is piped is searched.
        width = PIPED
        if output.look.terminal:
            width = max(80, output.look.width)
        output.say(debubble.catalog(), width=width)
        return 0
    if schedule is None:
        raise InputError(Fault("SCHEDULE", "it is required", "give a name (see show --list) or a file"))
    shown = debubble.show(schedule, **given)
    warned(shown)
    return output.show(shown)


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
@option(
    "--jitter",
    metavar="5%",
    help="How much ops vary, or measured; 5%,6-7=30ms@10% for a link that is slow at times.",
)
@option("--budget", default="30s", show_default=True, help="Time to search.")
@option("--evaluations", type=COUNT, help="Orders to simulate at most; then every machine finds the same.")
@option("--from", "from_", metavar="PATH", help="A recording or trace: costs, hops, engine and memory as measured.")
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
