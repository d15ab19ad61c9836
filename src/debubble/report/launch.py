"""Things to take along: the command that shows a schedule again, flags to launch it with, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..core.costs import Rates
from ..core.results import Result
from ..core.schedule import Schedule
from ..core.units import Hops
from ..diagnosis.remedies import Sliders, mean_rates
from ..diagnosis.replay import WhatIf
from ..drawing.html import Sliders as PageSliders
from ..schedules.catalog import CATALOG
from .sections import Paste

MOST_OPS = 200_000  # of a run whose files a page can make: a browser holds the text, some 100 bytes an op, at once
_DURATIONS = ("forward", "backward", "input", "weight", "transfer", "occupy")
_SCALES = ("stage_scale", "microbatch_scale", "rank_scale")


def launch(schedule: Schedule) -> Paste:
    """How to launch the same order in frameworks that know it."""
    return Paste("Launch it: flags and configuration", "\n\n".join(_launch(schedule)), "launch.txt")


def files(schedule: Schedule, run: int = 0) -> list[Paste]:
    """Files that a page makes from the ops of a run.

    Args:
        schedule: of the run.
        run: its number on the page.
    """
    if len(schedule) > MOST_OPS:
        return []
    found = [
        Paste("A trace for ui.perfetto.dev, every gap with its reason", "", "trace.perfetto.json", "perfetto", run),
        Paste("Every op as CSV, start and end in nanoseconds", "", "ops.csv", "ops-csv", run),
    ]
    if schedule.slices == 1 and schedule.placement.shape[0] == 1:
        # The format has neither slices nor two copies of a model (Chimera, DualPipe).
        name = "The schedule as PyTorch's CSV (torchtitan: pipeline_parallel_schedule_csv)"
        found.insert(0, Paste(name, "", "schedule.csv", "torch-csv", run))
    return found


def numbers(result: Result) -> Paste:
    """The document that ``--json`` prints."""
    return Paste("All numbers as JSON", result.json(), "debubble.json")


def page_sliders(start: Sliders | None) -> PageSliders | None:
    """Where the sliders of a page start, op by op."""
    if start is None:
        return None
    replay, schedule = start.replay, start.replay.schedule
    # Op by op in the order of the schedule, as the page holds its ops.
    durations, hops = (table[schedule.kind, schedule.stage, schedule.unit] for table in replay.tables)
    return PageSliders(
        run=start.run,
        name=replay.name,
        durations=durations,
        hops=hops,
        outside=replay.outside,
        pair_scale=float(replay.costs.pair_scales().mean()),  # where stages differ, a page knows their mean alone
        input_share=replay.input_share,
        orders=start.orders,
        note=start.note,
    )


def _launch(schedule: Schedule) -> Iterator[str]:
    p, m, v = schedule.ranks, schedule.microbatches, schedule.stages // schedule.ranks
    # The two that Megatron-LM's options choose; it has none for another order.
    if schedule.name in ("1f1b", "interleaved"):
        flags = [f"--pipeline-model-parallel-size {p}"]
        if v > 1:
            flags.append(f"--num-virtual-stages-per-pipeline-rank {v}")
        batch = f"--global-batch-size is --micro-batch-size x data-parallel size x {m}"
        yield "\n".join(["# Megatron-LM", *flags, f"# {batch}"])
    elif schedule.name == "gpipe":
        yield f"# Megatron-LM runs 1F1B instead, which idles as long and holds fewer activations: -m {m} as it is"
    # torchtitan takes the names of torch.distributed.pipelining as they are, and any other order as its CSV.
    chosen = 'pipeline_parallel_schedule_csv="schedule.csv"'
    if schedule.name in CATALOG and CATALOG[schedule.name].torch:
        chosen = f'pipeline_parallel_schedule="{CATALOG[schedule.name].torch}"'
    degree = f"pipeline_parallel_degree={p}"
    yield f"# torchtitan\nParallelismConfig({degree}, {chosen}, num_pp_microbatches={m})"
    if schedule.name == "1f1b":
        yield f'# DeepSpeed: PipelineModule(num_stages={p}), and in the JSON\n"gradient_accumulation_steps": {m}'


def show_command(
    schedule: Schedule, rates: Rates, *, name: str = "", microbatches: int | None = None, engine: str = ""
) -> str:
    """The command line that shows a schedule at these rates.

    Args:
        schedule: whose sizes to name.
        rates: those that differ from the default are named.
        name: of the catalog; empty for that of the schedule, or of the file or class that it was read from.
        microbatches: another number of them.
        engine: who executes it, if that was said.
    """
    m = microbatches or schedule.microbatches
    # A file knows its own sizes; a class is built for those that it is given.
    read = not name and schedule.source != "generated"
    words = ["debubble", "show", name or (schedule.source if read else schedule.name)]
    if not read or ":" in schedule.source:
        words += ["-p", str(schedule.ranks), "-m", str(m)]
        chunks = int(schedule.chunks_of().max())
        if chunks > 1:
            words += ["-v", str(chunks)]
        if schedule.slices > 1:
            words += ["--slices", str(schedule.slices)]
    if engine:
        words += ["--engine", engine]
    return shlex.join([*words, *_rates(rates)])


def show_change(answer: WhatIf | None) -> str:
    """The command line that shows a pipeline with a change made; empty if there is none, or no pipeline after it."""
    if answer is None or answer.replay is None:
        return ""
    changed = answer.replay
    if changed.name is None or changed.schedule.ranks == 1:  # one rank waits for nobody
        return ""
    return show_command(changed.schedule, mean_rates(changed), name=changed.name)


def _rates(rates: Rates) -> Iterator[str]:
    # Defaults need not be said: a command is as short as what it differs in.
    usual = Rates()
    for name in _DURATIONS:
        value = getattr(rates, name)
        if value is not None and value != getattr(usual, name):
            yield from (f"--{name}", _duration(value))
    if rates.pair is not None or rates.pair_of_stage:
        every = [] if rates.pair is None else [_duration(rates.pair)]
        yield from (
            "--pair",
            ",".join([*every, *(f"{stage}={_duration(pair)}" for stage, pair in rates.pair_of_stage)]),
        )
    for name in _SCALES:
        if scale := getattr(rates, name):
            yield from (f"--{name.replace('_', '-')}", ",".join(f"{factor:g}" for factor in scale))


def _duration(value: float | Hops) -> str:
    """A duration, or one for each link, as options take them."""
    if not isinstance(value, Hops):
        return f"{value / 1e6:.6g}ms"
    if value.boundaries:
        return ",".join(map(_duration, value.boundaries))
    named = [f"{one}-{other}={_duration(hop)}" for one, other, hop in value.pairs]
    return ",".join([_duration(value.default), *named])
