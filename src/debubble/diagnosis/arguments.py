"""Arguments as evidence: what two launches were told differently, what follows from it, and which suspects it refutes.

A launch that says how it was made (a script, a log that begins with its arguments) leaves little to guess: what is the
same in both cannot be why one is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..config.config import FIGURES, Config, Value

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
    if not changed:
        return ["Both were launched with the same arguments."] if both_launched(a, b) else []
    listed = [str(each) for each in changed[:MOST_LISTED]]
    if a.microbatches and b.microbatches and a.microbatches != b.microbatches:
        effect = f"m {a.microbatches} -> {b.microbatches}"
        if a.global_batch and a.global_batch == b.global_batch:
            effect = f"at the same global batch: {effect}"
        keys = [each.key for each in changed[:MOST_LISTED]]
        place = keys.index(TELLING["micro_batch"]) if TELLING["micro_batch"] in keys else len(keys) - 1
        listed[place] += f" {effect}" if effect.startswith("at") else f": {effect}"
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
    return float(value) if isinstance(value, int | float) else math.nan  # never less, never more


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
