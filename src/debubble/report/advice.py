"""What costs, what would help and what to take along: causes of a window, changes, commands, flags, files.

A change has a letter for each thing that it presumes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..core.costs import Rates
from ..core.results import Result
from ..core.schedule import Schedule
from ..core.units import Hops, counted, percent
from ..diagnosis.remedies import Sliders, mean_rates
from ..diagnosis.replay import WhatIf
from ..drawing.html import Sliders as PageSliders
from ..schedules.catalog import CATALOG
from .sections import Cell, Column, Part, Parts, Paste, Sentences, Table, Unit

if TYPE_CHECKING:
    from ..core.packing import UnequalSamples
    from ..diagnosis.remedies import Change, WayOut


# Share of a window from which a cause is worth a remedy: below, it is within the scatter of most measurements.
WORTH = 0.01
WHAT = {
    "ideal": "the mean work of a rank: even, no bubble",
    "schedule": "fill and drain in this order",
    "imbalance": "stages of unequal work",
    "variation": "ops of one stage that differ",
    "transfer": "hops between ranks",
    "engine": "this schedule under this engine with these links: ranks stand still and transfers take turns",
    "unexplained": "late hosts, and all else",
}
MOST_BEYOND = 4  # changes that ask for more, in a terminal
MOST_CHANGES = 12  # in a terminal; a page and --json have more
LEGEND = "held: micro-batches in flight; memory: of their activations on the worst rank, with over without."
LIMITS = "A limit is what nobody can do: it shows what something costs."

AnyChange = TypeVar("AnyChange", "Change", "WayOut")


class Cost(Protocol):
    """A cause as results hold it (``diagnosis.causes.CauseCost``)."""

    @property
    def cause(self) -> str:
        """Its name."""

    @property
    def cost_ms(self) -> float:
        """Of the window."""

    @property
    def cost_share(self) -> float:
        """Of the window."""

    @property
    def evidence(self) -> str:
        """Of the figure."""

    @property
    def remedy(self) -> str:
        """What would help."""


def causes_section(costs: Sequence[Cost], window_ms: float, *, note: str = "", name: str = "") -> Parts:
    """The causes of a window; they sum to it.

    Args:
        costs: of each cause.
        window_ms: how long it is.
        note: on the window, a clause.
        name: of the run, if a report holds several.
    """
    parts = []
    for cost in costs:
        remedy = cost.remedy if cost.cost_share > WORTH else ""
        parts.append(Part(cost.cause, cost.cost_ms, cost.cost_share, cost.evidence, WHAT[cost.cause], remedy))
    title = "Why (by re-simulation, one change at a time)"
    return Parts(title, parts, "window", window_ms, note, name)


def first_changes(changes: Sequence[AnyChange], *, detail: bool) -> Sequence[AnyChange]:
    """Those that are shown: all, or as many as a terminal has room for."""
    return changes if detail else changes[:MOST_CHANGES]


def more_changes(count: int) -> list[str]:
    """A note on changes that are not shown; none if all are."""
    return [f"{counted(count, 'more change')} in --json"] if count else []


def letters(changes: Sequence[Change] | Sequence[WayOut]) -> dict[str, str]:
    """A letter for each assumption, in the order in which they appear."""
    letter: dict[str, str] = {}
    for change in changes:
        for assumption in change.assumes:
            # Twenty-six are more than any table has had; beyond them a question mark stands for the rest.
            if assumption not in letter and len(letter) < len(ascii_lowercase):
                letter[assumption] = ascii_lowercase[len(letter)]
    return letter


def granted(change: Change | WayOut, letter: Mapping[str, str]) -> str:
    """The letters of one answer."""
    return "".join(letter.get(assumption, "?") for assumption in change.assumes)


def legend(letter: Mapping[str, str]) -> list[str]:
    """What the columns and the letters mean, a line each."""
    return [LEGEND, *(f"{sign}: {assumption}" for assumption, sign in letter.items())]


def changes_section(changes: Sequence[Change], resim: str, *, detail: bool) -> Table:
    """What would help, per sample.

    Args:
        changes: the best first.
        resim: how well the replay fits, a clause.
        detail: whether all are shown.
    """
    first = first_changes(changes, detail=detail)
    letter = letters(first)
    columns = [
        Column("change", left=True, long=True),
        Column("kind", left=True),
        Column("m", Unit.COUNT),
        Column("held"),
        Column("memory", Unit.GAIN),
        Column("step", Unit.TIME),
        Column("samples/s", Unit.GAIN),
        Column("if", left=True),
    ]
    rows: list[list[Cell]] = []
    for change in first:
        # A limit is no advice, and stands among the changes only because its gain is read against theirs.
        kind = "limit" if change.bound else "change"
        held = f"{change.peak_activations:g}"
        row: list[Cell] = [change.change, kind, change.microbatches, held, change.activations_ratio, change.step_ms]
        rows.append([*row, change.speedup, granted(change, letter)])
    notes = legend(letter)
    if any(change.bound for change in first):
        notes.append(LIMITS)
    # Bars against the best of those that are shown, so that the longest fills its column.
    gains = [change.speedup for change in first]
    return Table(
        title="What would help",
        columns=columns,
        rows=rows,
        hint=f"Simulated from the measured durations, per sample; {resim}.",
        bars=[gain / max(gains) for gain in gains],
        notes=[*notes, *more_changes(len(changes) - len(first))],
        name=f"What would help, per sample (simulated; {resim})",
    )


def beyond_section(ways: Sequence[tuple[str, float, Sequence[str]]]) -> Sentences:
    """What asks for more than a run has.

    Args:
        ways: each change with its gain and what it demands, the best first.
    """
    lines = [f"{change}: {gain:.2f}x, if {' and '.join(demands)}" for change, gain, demands in ways[:MOST_BEYOND]]
    return Sentences("Beyond what it has (simulated)", [*lines, *more_changes(len(ways) - len(lines))])


PACKED = {
    "whole": "whole samples fill each row in turn",
    "cut": "rows are cut from a stream of samples",
    "none": "each row is one sample",
}


def unequal_section(found: UnequalSamples) -> Table:
    """What samples of unequal length cost, as they come and dealt out longest first."""
    columns = [
        Column("micro-batches", left=True),
        Column("makespan", Unit.TIME),
        Column("95 %", Unit.TIME),
        Column("idle", Unit.SHARE),
        Column("95 %", Unit.SHARE),
        Column("most tokens", Unit.COUNT),
    ]
    rows: list[Sequence[Cell]] = [["all alike", None, None, found.even_idle_share, None, found.sequence]]
    for name, steps in (("as they come", found.as_they_come), ("balanced", found.balanced)):
        rows.append(
            [
                name,
                steps.expected_makespan_ms,
                steps.p95_makespan_ms,
                steps.expected_idle_share,
                steps.p95_idle_share,
                steps.most_tokens,
            ]
        )
    notes = [
        f"{PACKED[found.packing]}, of room for {found.sequence:,} tokens; {found.samples:,.0f} samples fill "
        f"{percent(found.fill_share)} of a step's. Balanced: the same samples, longest first, into the row that has "
        f"least work.",
    ]
    title = f"Samples of unequal length, {found.lengths} ({found.evidence}: {found.draws} steps, seed {found.seed})"
    return Table(title, columns, rows, notes=notes)


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
