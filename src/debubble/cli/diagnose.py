"""``diagnose``: the options of the verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import debubble

from .command import SHARE, Verb, option
from .completion import ENGINE, FRAMEWORK, SCHEDULE
from .groups import measurement_options
from .output import Output, output_options
from .progress import working


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
    if isinstance(found, debubble.PartOfRun):
        return output.note(found, found.reason)
    return output.show(found)
