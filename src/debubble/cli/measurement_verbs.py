"""Verbs about what was measured: the options of ``diagnose``, ``why`` and ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import debubble

from .console import working
from .options import (
    COUNT,
    ENGINE,
    FACTORS,
    FRAMEWORK,
    SCHEDULE,
    SHARE,
    SIZE,
    Output,
    Verb,
    measurement_options,
    option,
    output_options,
    warned,
)


@click.command(cls=Verb, short_help="Account for a measured run.")
@click.argument("run", metavar="PATH..", nargs=-1, required=True)
@measurement_options
@option("--expect", metavar="SCHEDULE", shell_complete=SCHEDULE, help="Exit 1 unless this schedule ran.")
@option("--gate", type=SHARE, help="Exit 1 if the run idles for more than this, as in 30%.")
@option("--strict", is_flag=True, help="Exit 1 if ranks are missing.")
@option("--framework", shell_complete=FRAMEWORK, help="Who will run what is advised: megatron, torchtitan, torch, ..")
@option("--engine", metavar="E", shell_complete=ENGINE, help="Who executed it.  [default: the one that fits]")
@option(
    "--distil",
    former=("--record",),
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep what the traces say as small tables in this folder, host by host.",
)
@output_options("html", "svg", "png", "pdf", "perfetto", "torch-csv")
def diagnose(run: tuple[str, ...], output: Output, **given: Any) -> int:
    """Say how big the bubble of a measured run is, and why.

    PATH is a recording (the folder that `run --out` or `--distil` wrote), a trace file or a folder of them (Kineto,
    Chrome, Nsight, Primus), or a table of ops; or an address such as s3://bucket/run. What it holds is told by its
    content. With --distil each host distils the traces of its own ranks into one folder, to be diagnosed as a whole.

    \b
    debubble diagnose traces/ --html report.html
    debubble diagnose traces/ --gate 30% --expect 1f1b --json
    debubble diagnose ops.csv --columns rank=worker,start_ms=begin
    """  # noqa: D301 - click wants the character, not two
    with working(run):
        found = debubble.diagnose(run, **given)
    # One host of many: its tables are kept, and the diagnosis is for whoever has all of them.
    if isinstance(found, debubble.PartOfRun):
        return output.note(found, found.reason)
    return output.show(found)


@click.command(cls=Verb, short_help="Say why one run is slower than another.")
@click.argument("runs", nargs=-1, required=True, metavar="A [B] | SERIES")
@measurement_options
@option("--micro-batch", type=COUNT, help="Samples in one micro-batch, which logs do not tell.")
@option("--gate", type=SHARE, help="Exit 1 if B is slower by more than this, as in 3%.")
@option("--framework", shell_complete=FRAMEWORK, help="Who will run what is advised: megatron, torchtitan, torch, ..")
@option("--engine", metavar="E", shell_complete=ENGINE, help="Who executed the runs.  [default: as they say, or fits]")
@output_options("html", "svg", "png", "pdf")
def why(runs: tuple[str, ...], output: Output, **given: Any) -> int:
    """Say why run B is slower (or faster) than run A, and what to change; of A alone, what its bubble costs.

    Each run is a job TOML (what you know of it), a launch script or configuration, a recording (the folder that
    `run --out` wrote), a trace or a folder of traces, or a log of steps of any framework, or CSV. A TOML with
    [[run]] tables is a series; each run of it is compared with the first. What traces and logs do not tell is taken
    from the options, for all of them.

    \b
    debubble why four.toml eight.toml
    debubble why traces/before traces/after --html why.html
    debubble why before.log after.log --gate 3% --markdown
    """  # noqa: D301 - click wants the character, not two
    with working(runs):
        found = debubble.why(*runs, **given)
    return output.show(found)


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
