"""Checking a configuration: every rule that it breaks with what would mend it, and what is legal but poor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..frameworks.layout_string import read_layout
from ..frameworks.rules import sizes
from ..frameworks.setup import Backend, Breach, Setup, Sizes
from .idle import enough, exact
from .nearest_legal import Alternative, alternatives, idle_of
from .splits import MOST, best_splits, judged

ENOUGH = 0.10  # idle share that is worth a warning above
MOST_SIMULATED = 40_000  # ops of a split that is simulated for a remedy


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that is broken, in the framework's own words.

    Args:
        key: the framework's own key.
        value: what it was given.
        rule: what the framework asks.
        remedy: the nearest legal values, each with its idle share where that can be told.
        alternatives: the same as numbers.
    """

    key: str
    value: str
    rule: str
    remedy: str
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.rule}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Checked:
    """What a framework would say to a configuration.

    Args:
        backend: whose rules.
        setup: what was read, with what the framework works out filled in.
        faults: every rule that is broken.
        warnings: what is legal but poor.
        facts: sizes that follow, by name: microbatches, data, chunks, split, idle share.
    """

    backend: Backend
    setup: Setup
    faults: tuple[Broken, ...]
    warnings: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.faults


def check(backend: Backend, setup: Setup) -> Checked:
    """Hold a setup against every rule of a framework."""
    breaches = list(sizes(setup)) or list(backend.rules(setup))
    faults = tuple(_broken(backend, setup, breach) for breach in breaches)
    sound = not any(breach.law.startswith("size of") for breach in breaches)
    full = backend.settled(setup) if sound else setup
    warnings = [*_warnings(backend, full)] if sound else []
    warnings += [] if faults else _about_split(backend, full)
    return Checked(backend, full, faults, tuple(warnings), _facts(backend, full, legal=not faults) if sound else {})


def _broken(backend: Backend, setup: Setup, breach: Breach) -> Broken:
    found = alternatives(backend, setup, breach) if not breach.law.startswith("size of") else ()
    texts = [_choices(backend, field, found) for field in dict.fromkeys(one.field for one in found)]
    texts += [breach.remedy] if breach.remedy else []
    texts += [text] if (text := _better_split(backend, setup, breach)) else []
    value = breach.value or str(getattr(setup, breach.fields[0]))
    rule, remedy = backend.worded(breach.rule), backend.worded("; or ".join(texts))
    key = backend.key(breach.fields[0])
    if breach.fields[0] == "switches":
        key, value = breach.law, "on"
    return Broken(key, value, rule, remedy, found)


def _choices(backend: Backend, field: str, found: tuple[Alternative, ...]) -> str:
    """``--pipeline-model-parallel-size 4 (idle 16.3 %) or 8 (31.1 %)``."""
    values = [f"{one.value}{_share(one.idle_share)}" for one in found if one.field == field]
    return f"{backend.key(field)} {' or '.join(values)}"


def _share(idle: float | None) -> str:
    return "" if idle is None else f" (idle {100 * idle:.1f} %)"


def _better_split(backend: Backend, setup: Setup, breach: Breach) -> str:
    """Splits that hold all layers, shortest first."""
    if not breach.law.startswith(("split", "empty stage")) or not setup.layers or (setup.chunks or 1) > 1:
        return ""
    many = backend.settled(setup).flush or setup.ranks
    if setup.layers < setup.ranks or setup.ranks * many * 2 > MOST_SIMULATED:
        return ""
    best = best_splits([1.0] * setup.layers, setup.ranks, many)[:2]
    shown = [f"{','.join(map(str, s.blocks))} (takes {s.makespan:g} times a layer's F and B)" for s in best]
    return f"heavy stages first: {backend.key('split')} {' or '.join(shown)}"


def _facts(backend: Backend, setup: Setup, *, legal: bool) -> dict[str, Any]:
    """Sizes that follow from a setup; what cannot be told is left out."""
    split = backend.split(setup) if legal else setup.split
    idle, schedule = idle_of(backend, setup), backend.schedule(setup)
    full = backend.settled(setup)
    sure = exact(schedule or "", full.ranks, full.flush or 1, full.chunks or 1)
    found: dict[str, Any] = {
        "pipeline": setup.ranks,
        "chunks": setup.chunks or 1,
        "data": setup.replicas,
        "microbatches": setup.flush,
        "schedule": schedule,
        "split": split,
        "balance": sum(split) / len(split) / max(split) if split and max(split) else None,
        "idle_share": idle,
        "evidence": None if idle is None else "exact" if sure else "simulated",
        "layout": _laid(setup),
    }
    return {name: value for name, value in found.items() if value is not None}


def _laid(setup: Setup) -> dict[str, Any] | None:
    """What a layout string means."""
    if setup.layout is None:
        return None
    try:
        laid = read_layout(setup.layout, setup.ranks)
    except InputError:
        return None
    return {
        "chunks": len(laid.stages),
        "vpp": laid.chunks,
        "layers": laid.count("t"),
        "mtp": laid.count("m"),
        "loss_slots": laid.count("L"),
        "per_rank_layers": laid.per_rank,
    }


def _warnings(backend: Backend, setup: Setup) -> Iterator[str]:
    many, ranks, chunks = setup.flush, setup.ranks, setup.chunks or 1
    if setup.reshard == "always" and ranks > 1:
        yield (
            f"{backend.key('reshard')} always gathers weights again for each micro-batch, and saves no memory: "
            "in a pipeline they stay after the first backward"
        )
    if many is not None and many < ranks:
        yield f"m < p: {many} micro-batches cannot keep {ranks} ranks busy at the same moment"
    idle = idle_of(backend, setup)
    if idle is not None and idle > ENOUGH:
        name = backend.schedule(setup)
        least = enough(name or "1f1b", ranks, ENOUGH, chunks)
        cure = f"; {least} bring it to {100 * ENOUGH:g} % or less" if least else ""
        yield f"idle share {100 * idle:.1f} % with {many} micro-batches{cure}"


def _about_split(backend: Backend, setup: Setup) -> Iterator[str]:
    split = backend.split(setup)
    if not split or sum(split) == 0:
        return
    empty = [stage for stage, layers in enumerate(split) if not layers and _has_nothing(setup, stage)]
    if empty:
        yield f"stage {', '.join(map(str, empty))} is empty: it only passes activations on"
    if setup.layout is not None:
        return
    if setup.split and backend.deals and setup.layers:
        own = backend.deals(_sizes(setup), setup.ranks)
        if setup.split not in own:
            dealt = " or ".join(",".join(map(str, one)) for one in own)
            yield f"{backend.title} deals layers by itself, as {dealt}: another split takes a change of its code"
    loads = [sum(split[rank :: setup.ranks]) for rank in range(setup.ranks)]
    loads[0] += setup.embedding_layers or 0
    loads[-1] += setup.loss_layers or 0
    whole, ranks = sum(loads), setup.ranks
    least = -(-whole // ranks)
    if max(loads) == least and whole % ranks:
        idle = 100 * (1 - whole / ranks / least)
        yield (
            f"rebalancing cannot help: the largest stage stays ceil({whole}/{ranks}) = {least} layers, "
            f"so {idle:.1f} % idle at any number of micro-batches"
        )
    elif max(loads) > least and (setup.split or not backend.deals):
        yield f"the largest rank holds {max(loads)} layers, an even split {least}: {_gain(loads, setup)}"


def _sizes(setup: Setup) -> Sizes:
    numbers = {name: getattr(setup, name) or 0 for name in ("experts", "hidden", "ffn", "vocab")}
    return Sizes(setup.layers or 0, setup.sequence or 0, **numbers)


def _has_nothing(setup: Setup, stage: int) -> bool:
    return setup.layout is None or read_layout(setup.layout, setup.ranks).stages[stage] == ""


def _gain(loads: list[int], setup: Setup) -> str:
    """What an even split would gain, simulated where it is small."""
    many = setup.flush or setup.ranks
    if (setup.chunks or 1) > 1 or setup.ranks * many * 2 > MOST_SIMULATED or sum(loads) > MOST:
        return "balance it, unless the end ranks carry the embedding and the head"
    blocks = [1.0] * sum(loads)
    now, best = judged(loads, blocks, many), best_splits(blocks, setup.ranks, many)[0]
    better = ",".join(map(str, best.blocks))
    return f"{better} would be {now.makespan / best.makespan:.2f} times as fast, if embedding and head weighed nothing"
