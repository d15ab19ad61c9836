"""Nearest legal values: which other numbers would mend a broken rule, proved by asking all the rules again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..config.config import NUMBERS, OF_THE_MODEL, Config, Unknown
from ..core.errors import InputError
from ..frameworks.framework import Breach, Framework
from ..schedules.catalog import called
from .idle import idle_share

FARTHEST = 256  # steps to look on either side
Mends = Callable[[frozenset[str]], bool]  # of the rules that are still broken


@dataclass(frozen=True, slots=True)
class Alternative:
    """One number that mends a rule.

    Args:
        field: of ``Config``.
        value: what to give instead.
        idle_share: of the configuration with it, 0 to 1; None where micro-batches are not known.
    """

    field: str
    value: int
    idle_share: float | None


def alternatives(framework: Framework, config: Config, breach: Breach) -> tuple[Alternative, ...]:
    """For each number that the rule is about, the nearest below and above that break no rule which held before.

    Where there is none, those that mend this rule: others could not be asked before it held (how many samples a replica
    trains, before the devices divide).
    """
    before = framework.broken(config).laws - {breach.law}
    strictly = _offered(framework, config, breach, lambda laws: laws <= before)
    return strictly or _offered(framework, config, breach, lambda laws: breach.law not in laws)


def _offered(framework: Framework, config: Config, breach: Breach, mends: Mends) -> tuple[Alternative, ...]:
    known = config.known()
    fields = [f for f in breach.fields if f in NUMBERS and f not in OF_THE_MODEL and f in known]
    return tuple(
        Alternative(field, value, idle_of(framework, config.changed(**{field: value})))
        for field in fields
        for value in sorted(_nearest(framework, config, field, mends))
    )


def _nearest(framework: Framework, config: Config, field: str, mends: Mends) -> Iterator[int]:
    """The nearest value that mends it on each side."""
    value = config.number(field)
    step = _unit(framework, config) if field == "global_batch" else 1
    whole = value // step * step
    for direction, start in ((-1, whole if whole < value else whole - step), (1, whole + step)):
        for number in range(max(start, 0), 0, -step) if direction < 0 else range(start, start + FARTHEST * step, step):
            if abs(number - value) > max(FARTHEST, 4 * value) or start - number > FARTHEST * step:
                break
            if mends(framework.broken(config.changed(**{field: number})).laws):
                yield number
                break


def _unit(framework: Framework, config: Config) -> int:
    """Samples by which a global batch may grow."""
    try:
        full = framework.filled(config)
        return (full.micro_batch or 1) * (full.replicas or 1)
    except Unknown:
        return 1


def idle_of(framework: Framework, config: Config) -> float | None:
    """Idle share of what a configuration runs; None where its schedule or its micro-batches cannot be told."""
    try:
        full = framework.filled(config)
        name, many = full.schedule, full.flush
        if name is None or called(name) is None or many is None or many < 1:
            return None
        return idle_share(name, full.ranks, many, full.number("chunks"))
    except InputError:  # something is not known, or nobody has a schedule of this name
        return None
