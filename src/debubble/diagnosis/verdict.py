"""Verdicts: what a comparison means, in sentences; none blames the bubble, or what did not change, for a loss.

A launch that says how it was made (a script, a log that begins with its arguments) leaves little to guess: what is the
same in both cannot be why one is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..config.config import FIGURES, Config, Value
from ..core.units import counted, percent
from .compared import MICROBATCHES, STEPS, Compared, ComparedRun
from .log_run import history_sentences
from .remedies import next_sentences

# Fields that decide how fast a step is, the most telling first, under their usual words.
TELLING = {
    "gpus": "GPUs",
    "pipeline": "pipeline",
    "data": "data-parallel replicas",
    "tensor": "tensor",
    "context": "context",
    "expert": "expert",
    "chunks": "chunks a rank",
    "schedule": "schedule",
    "micro_batch": "micro-batch",
    "microbatches": "micro-batches",
    "global_batch": "global batch",
    "sequence": "sequence",
    "recompute": "recomputation",
    "sequence_parallel": "sequence parallelism",
    "overlap": "overlapped reduction",
    "overlap_gather": "overlapped gathering",
    "tensor_overlap": "overlapped tensor collectives",
    "precision": "precision",
    "zero": "ZeRO",
    "layers": "layers",
    "hidden": "hidden size",
}
_SKIPPED = {"name", "framework", "engine", "split", "microbatches", *FIGURES}
# Words of an argument's name that say where, when or what was learnt, not how fast.
_NO_MATTER = {
    "path", "dir", "save", "load", "log", "logs", "wandb", "tensorboard", "seed", "name", "exit", "eval", "lr", "decay",
    "warmup", "rank", "port", "addr", "iters", "samples", "date", "adam", "beta1", "beta2", "eps", "file", "merge",
    "id", "tokenizer", "prefix", "ckpt", "checkpoint", "init", "timeout", "timing", "clip", "scale", "weight",
    "interval", "start", "consumed", "project", "run", "runs", "resume", "retro",
}  # fmt: skip
MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class Changed:
    """An argument that two launches were told differently.

    Args:
        key: our word for it, or the framework's own.
        a: what the first was told; ``-`` if nothing.
        b: what the second was told.
    """

    key: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.key} {self.a} -> {self.b}"


def both_launched(a: Config, b: Config) -> bool:
    """Whether both say how they were launched, in a framework's own words."""
    return a.framework is not None and b.framework is not None


def changed_arguments(a: Config, b: Config) -> tuple[Changed, ...]:
    """What may bear on speed and differs, the most telling first; empty unless both say how they were launched."""
    if not both_launched(a, b):
        return ()
    here, there = a.known(), b.known()
    fields = [*TELLING, *(name for name in (*here, *there) if name not in TELLING)]
    found = []
    for name in dict.fromkeys(fields):
        if name not in _SKIPPED and here.get(name) != there.get(name):
            found.append(
                Changed(TELLING.get(name, name.replace("_", " ")), _text(here.get(name)), _text(there.get(name)))
            )
    for name in sorted({*a.own, *b.own}):
        if a.own.get(name) != b.own.get(name) and not _NO_MATTER & set(name.replace("-", "_").split("_")):
            found.append(Changed(name, _text(a.own.get(name)), _text(b.own.get(name))))
    return tuple(found)


def change_sentences(a: Config, b: Config) -> list[str]:
    """What changed between two launches, and what that does to the micro-batches of a pipeline."""
    changed = changed_arguments(a, b)
    if not both_launched(a, b):
        return []
    if not changed:
        return ["Both were launched with the same arguments."]
    listed = [str(each) for each in changed[:MOST_LISTED]]
    if a.microbatches and b.microbatches and a.microbatches != b.microbatches:
        effect = f"m {a.microbatches} -> {b.microbatches}"
        if a.global_batch and a.global_batch == b.global_batch:
            effect = f" at the same global batch: {effect}"
        else:
            effect = f": {effect}"
        keys = [each.key for each in changed[:MOST_LISTED]]
        place = len(keys) - 1
        if TELLING["micro_batch"] in keys:  # it is what m follows from, so m is said right after it
            place = keys.index(TELLING["micro_batch"])
        listed[place] += effect
    if len(changed) > MOST_LISTED:
        listed.append(f"and {len(changed) - MOST_LISTED} more")
    return [f"What changed: {'; '.join(listed)}."]


def _no_less(*names: str) -> Callable[[Config, Config], bool]:
    """Whether fields are known in both, and b has no less of any."""

    def holds(a: Config, b: Config) -> bool:
        here, there = a.known(), b.known()
        return all(_number(here.get(name)) <= _number(there.get(name)) for name in names)

    return holds


def _no_more(*names: str) -> Callable[[Config, Config], bool]:
    """Whether fields are known in both, and b has no more of any."""
    swapped = _no_less(*names)
    return lambda a, b: swapped(b, a)


def _same(*names: str) -> Callable[[Config, Config], bool]:
    """Whether fields are known in both, and equal."""
    return lambda a, b: all(name in a.known() and a.known().get(name) == b.known().get(name) for name in names)


def _number(value: Value) -> float:
    if isinstance(value, int | float):
        return float(value)
    return math.nan  # what is not known is never less and never more, so it clears nobody


def _kernels_no_smaller(a: Config, b: Config) -> bool:
    return _no_less("micro_batch", "sequence")(a, b) and _no_more("tensor")(a, b)


# Which arguments clear a suspect, by how its sentence in ``verdict.CHECKS`` begins.
_CLEARED: dict[str, Callable[[Config, Config], bool]] = {
    "smaller kernels": _kernels_no_smaller,
    "exposed hops": _no_more("gpus", "pipeline", "chunks"),
    "unequal stages": _same("pipeline", "chunks", "layers"),
    "recomputation": _same("recompute"),
    "a smaller batch": _no_less("global_batch"),
}


def still_suspect(suspects: list[str], a: Config, b: Config) -> list[str]:
    """Suspects that the arguments do not refute, in their order."""
    if not both_launched(a, b):
        return suspects
    return [each for each in suspects if not _refuted(each, a, b)]


def _refuted(suspect: str, a: Config, b: Config) -> bool:
    return any(suspect.startswith(begins) and equal(a, b) for begins, equal in _CLEARED.items())


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(_text(each) for each in value)
    return str(value)


NOTICEABLE = 0.03  # factors nearer to 1 than this are not worth a sentence
MOST_PHASES = 6  # in a sentence
UNREALISED = 0.1  # share of a possible gain below which something must be wrong

# What costs work in a busy second, and what only looks like it while nothing was measured op by op; likeliest first.
IN_BUSY_SECONDS = (
    "smaller kernels: a smaller micro_batch, a shorter sequence or more tensor parallelism",
    "recomputation that was switched on (state recompute)",
    "slower GPUs: clocks, power limits, other kernels beside these",
)
CHECKS = (
    IN_BUSY_SECONDS[0],
    "exposed hops: more ranks, or ranks that now sit on other nodes (state transfer)",
    "unequal stages: the embedding and the loss head weigh more where stages are thin",
    "a slow rank, which all ranks of its pipeline wait for",
    *IN_BUSY_SECONDS[1:],
    "a smaller batch: reduction and optimizer cost as much for fewer tokens",
)
PARTS = {
    "outside": "time outside the pipeline",
    "imbalance_and_transfer": "imbalance, transfers and late hosts",
    "work_rate": "work in a busy second",
}


def verdict(c: Compared) -> list[str]:
    """The comparison in sentences, the answer first."""
    return [
        *_headline(c),
        *change_sentences(c.a.job, c.b.job),
        *_phases(c),
        *_bubble(c),
        *_recomputation(c),
        *_left_over(c),
        *_overstated(c),
        *_batch(c),
        *_tie(c),
        *_ceiling(c),
        *_no_way_out(c.b),
        *next_sentences(c.remedies),
    ]


def checks(c: Compared) -> list[str]:
    """What may have cost work in a busy second, the likeliest first; empty where nothing is left over."""
    bounds = c.left_over
    if bounds is None or bounds[1] / c.recompute_ratio > 1 - NOTICEABLE:
        return []
    if c.left_over_parts.get("work_rate", 0) > 1 - NOTICEABLE:
        return []
    suspects: tuple[str, ...] = CHECKS
    if c.a.measured and c.b.measured:  # then hops, imbalance and slow ranks have factors of their own
        suspects = IN_BUSY_SECONDS
    return still_suspect(list(suspects), c.a.job, c.b.job)


def times(value: float) -> str:
    """A ratio with as many digits as a verdict needs."""
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.3g}"


def _headline(c: Compared) -> Iterator[str]:
    if c.ratio is None:
        yield "Neither throughput was stated, so only what the schedules themselves would do can be compared."
        return
    gpus, each = c.factors.get("gpus", 1), ""
    if gpus != 1:
        each = f", on {times(gpus)} times the GPUs"
    kind = f"{c.unit}, {c.ratio.evidence}"
    yield f"{c.b.name} has {times(c.ratio.value)} times the throughput of {c.a.name} ({kind}){each}."
    # Steps and micro-batches are no measure of work until their samples are known.
    if c.unit == STEPS:
        yield "It holds if steps of both have as many samples."
    elif c.unit == MICROBATCHES and c.a.job.micro_batch is None:
        yield "It holds if micro-batches of both have as many samples."
    step_a, step_b = (run.job.step for run in (c.a, c.b))
    if step_a and step_b and step_b > step_a and c.ratio.value > 1:
        yield f"Its steps take {times(step_b / step_a)} times as long because they hold more: it is not slower."


def _phases(c: Compared) -> Iterator[str]:
    """What the steps of logged runs did over time, and which phase of a is to be held against which of b."""
    for run in (c.a, c.b):
        if run.history is not None:
            yield from (f"In {run.name}, {sentence}." for sentence in history_sentences(run.history))
    if c.a.history is None or c.b.history is None:
        return
    here, there = c.a.history.phases, c.b.history.phases
    if not here or not there or len(here) == len(there) == 1:
        return
    pairs = []
    for mine in there[:MOST_PHASES]:
        # The nearest in time a step: phases of two runs need not come in the same order, or as many.
        theirs = min(here, key=lambda phase: abs(phase.mean_ms - mine.mean_ms))
        ratio = times(mine.mean_ms / theirs.mean_ms)
        pairs.append(f"{mine.first_step} to {mine.last_step} {ratio} times {theirs.first_step} to {theirs.last_step}")
    yield f"Phase by phase, steps of {c.b.name} against the nearest of {c.a.name}: {', '.join(pairs)}."


def _overstated(c: Compared) -> Iterator[str]:
    runs = [run for run in (c.a, c.b) if run.overstated]
    if not runs:
        return
    which = " and ".join(_stated(run) for run in runs)
    they = "it was"
    if len(runs) == 2:
        they = "they were"
        yield f"Both stated utilisations are more than their schedules can reach: {which}."
    else:
        yield f"One stated utilisation is more than its schedule can reach: {which}."
    yield f"So {they} measured over something else than the step; a rank that waits in a receive kernel counts as busy."


def _stated(run: ComparedRun) -> str:
    if run.busy is None or run.own is None:
        return run.name
    return f"{run.name} {percent(run.busy.value)}, at most {percent(run.own.busy[1])} ({run.own.evidence})"


def _bubble(c: Compared) -> Iterator[str]:
    if c.explains is None:
        unknown = " and ".join(run.name for run in (c.a, c.b) if run.job.pipeline is None)
        if unknown:
            yield f"What the bubble explains of it cannot be said: the pipeline of {unknown} is not known."
        return
    low, high = c.explains
    if low != high:
        yield from _bounded_bubble(c, low)
        return
    yield from _own_change(c)
    whole = f"{c.b.name} {times(low)} times as fast as {c.a.name} ({_own_evidence(c)})"
    # The founding case: more devices, a larger bubble, and yet it is not the bubble.
    if c.ratio is not None and low >= 1 > c.ratio.value + NOTICEABLE:
        yield f"The bubble did not make it slower: alone, it would still have made {whole}."
    else:
        yield f"The bubble alone would have made {whole}."
    yield from _realised(c)


def _own_change(c: Compared) -> Iterator[str]:
    """By how much the schedules' own idle time differs, and which sizes made it so."""
    a, b = c.a.own, c.b.own
    if a is None or b is None or abs(a.most - b.most) < NOTICEABLE:
        return
    moved = []
    for word, name in (("ranks", "pipeline"), ("micro-batches", "microbatches"), ("chunks", "chunks")):
        here, there = getattr(c.a.job, name), getattr(c.b.job, name)
        if here and there and here != there:
            moved.append(f"{word} {here} -> {there}")
    sizes, word = "", "grew"
    if moved:
        sizes = f" ({', '.join(moved)})"
    if b.most < a.most:
        word = "shrank"
    factor = (1 - b.most) / (1 - a.most)
    yield (
        f"Its bubble {word} from {percent(a.most)} to {percent(b.most)} of GPU time{sizes}: "
        f"a factor of {factor:.3f} for each GPU ({_own_evidence(c)})."
    )


def _own_evidence(c: Compared) -> str:
    """Of the two schedules' own idle time: simulated where either was."""
    kinds = {run.own.evidence for run in (c.a, c.b) if run.own is not None}
    if kinds == {"exact"}:
        return "exact"
    return "simulated"


def _realised(c: Compared) -> Iterator[str]:
    """On as many GPUs: how much of what removing the bubble can bring was seen."""
    realised, ceiling = c.realised_share, c.a.ceiling_barrier_ratio
    if realised is None or ceiling is None or c.ratio is None or c.explains is None:
        return
    if c.explains[0] <= 1 + NOTICEABLE and c.ratio.value <= 1:
        return
    can = f"Removing the bubble of {c.a.name} can bring {percent(ceiling - 1)}, with the barrier that ends a step"
    # More than all of it cannot come from the bubble.
    if realised > 1:
        yield f"{can}; {percent(c.ratio.value - 1)} was seen, so something else became faster, too."
        return
    if c.ratio.value < 1:
        yield f"{can}; none of it was seen."
        return
    yield f"{can}; {percent(c.ratio.value - 1)} was seen, {percent(realised)} of it."
    if realised < UNREALISED:
        yield "Next to nothing of it came: look whether the backward was split at all, and what was timed."


def _bounded_bubble(c: Compared, low: float) -> Iterator[str]:
    """Micro-batches are not known: the most that the bubble can explain is what the fewest of them cost."""
    if c.ratio is None or low == 0:
        return
    worst = c.a
    if c.b.own is not None and not c.b.own.known:
        worst = c.b
    count = 1
    if worst.own is not None and worst.own.fewest is not None:
        count = worst.own.fewest
    fewest = counted(count, "micro-batch")
    if c.ratio.value < low:
        lost = 1 - c.ratio.value / low
        yield (
            f"The bubble cannot explain it: even at {fewest} it would leave {times(low)} of the throughput, "
            f"and {c.ratio.value:.3f} was seen. At least {percent(lost)} more is lost elsewhere."
        )
    else:
        yield f"The bubble can explain at most a factor of {times(low)} (at {fewest})."


def _recomputation(c: Compared) -> Iterator[str]:
    if c.recompute_ratio == 1 or c.ratio is None:
        return
    more = c.a
    if c.recompute_ratio < 1:  # b counts less of what it computes
        more = c.b
    rest = c.ratio.value / c.recompute_ratio
    yield (
        f"Full recomputation in {more.name} explains a factor of {times(c.recompute_ratio)} (a second forward, counted "
        f"once; B = 2 F taken as given); everything else makes {rest:.3f}."
    )


def _left_over(c: Compared) -> Iterator[str]:
    bounds = c.left_over
    if bounds is None:
        return
    low, high = bounds
    if low != high:  # bounds alone leave nothing over that is sure
        return
    # Recomputed forwards were said above; they must not be blamed a second time.
    rest = high / c.recompute_ratio
    if abs(rest - 1) < NOTICEABLE:
        yield "That is all of it: nothing else needs a cause."
        return
    if rest > 1:
        yield f"What is left over is a factor of {rest:.3f}: it does better than its bubble predicts."
        return
    second = "a second cause to look for"
    if suspects := checks(c):  # the list of all stands below it
        second += f", {suspects[0].partition(':')[0]} first"
    parts = {name: value for name, value in c.left_over_parts.items() if abs(value - 1) >= NOTICEABLE}
    if not parts:
        yield f"What is left over is a factor of {rest:.3f}: {_less(rest)} work in a busy second, {second}."
        return
    yield (
        f"What is left over is a factor of {rest:.3f}: "
        + ", ".join(f"{PARTS[name]} {value:.3f}" for name, value in parts.items())
        + "."
    )
    if (rate := parts.get("work_rate", 1)) < 1:
        yield f"A busy second of a GPU does {_less(rate)} work: {second}."


def _less(factor: float) -> str:
    return f"{100 * (1 - factor):.0f} % less"


def _batch(c: Compared) -> Iterator[str]:
    """A global batch that changed with the layout."""
    sizes = [_batch_of(run) for run in (c.a, c.b)]
    if None in sizes:
        return
    (a, unit_a), (b, unit_b) = sizes  # type: ignore[misc]
    if unit_a == unit_b and a != b:
        sure, word = "", "grew"
        if unit_a != "samples":
            sure = ", if these hold as many samples (state micro_batch)"
        if b < a:
            word = "fell"
        yield f"The global batch {word} from {a} to {b} {unit_a}{sure}."


def _batch_of(run: ComparedRun) -> tuple[int, str] | None:
    job = run.job
    if job.global_batch is not None:
        return job.global_batch, "samples"
    if job.microbatches is None or job.data is None:
        return None
    return job.microbatches * job.data, "micro-batches"


def _tie(c: Compared) -> Iterator[str]:
    if c.tie_hop_ns is not None:
        yield f"Above {c.tie_hop_ns / 1e6:.3g} ms a hop, {c.b.name} is slower than {c.a.name} (simulated)."


def _ceiling(c: Compared) -> Iterator[str]:
    ceiling, barrier = c.b.ceiling_ratio, c.b.ceiling_barrier_ratio
    if ceiling is None or barrier is None or ceiling < 1 + NOTICEABLE:
        return
    evidence = "simulated"
    if c.b.timeline is None:
        evidence = _own_evidence(c)
    # One ceiling a sentence: side by side, people read the larger one as what their schedule could reach.
    yield (
        f"With the barrier that ends a step, no order of this placement makes {c.b.name} more than {times(barrier)} "
        f"times as fast as it is ({evidence})."
    )
    if ceiling > barrier + NOTICEABLE:
        yield f"Without that barrier, no schedule makes it more than {times(ceiling)} times as fast ({evidence})."


def _no_way_out(run: ComparedRun) -> Iterator[str]:
    """Why no change is tried on a run that was measured."""
    if not run.measured or run.replay_fits:
        return
    if run.causes is None:
        yield f"No way out of {run.name} is offered: ranks of it are missing."
    else:
        again = f"simulated again, its window takes {run.causes.resim_ratio:.2f} of what was measured"
        yield f"No way out of {run.name} is offered: {again}."
