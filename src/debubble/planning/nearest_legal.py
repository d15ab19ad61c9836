"""Nearest legal values: which other numbers would mend a broken rule, proved by asking all the rules again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..frameworks.setup import NUMBERS, OF_THE_MODEL, Backend, Breach, Setup, changed
from .idle import idle_share

FARTHEST = 256  # steps to look on either side
Mends = Callable[[set[str]], bool]  # of the rules that are still broken


@dataclass(frozen=True, slots=True)
class Alternative:
    """One number that mends a rule.

    Args:
        field: of ``Setup``.
        value: what to give instead.
        idle_share: of the setup with it, 0 to 1; None where micro-batches are not known.
    """

    field: str
    value: int
    idle_share: float | None


def alternatives(backend: Backend, setup: Setup, breach: Breach) -> tuple[Alternative, ...]:
    """For each number that the rule is about, the nearest below and above that break no rule which held before.

    Where there is none, those that mend this rule: others could not be asked before it held (how many samples a replica
    trains, before the devices divide).
    """
    before = {other.law for other in backend.rules(setup)} - {breach.law}
    strictly = _offered(backend, setup, breach, lambda laws: laws <= before)
    return strictly or _offered(backend, setup, breach, lambda laws: breach.law not in laws)


def _offered(backend: Backend, setup: Setup, breach: Breach, mends: Mends) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(field, value, idle_of(backend, changed(setup, field, value)))
        for field in breach.fields
        if field in NUMBERS and field not in OF_THE_MODEL and getattr(setup, field) is not None
        for value in sorted(_nearest(backend, setup, field, mends))
    )


def _nearest(backend: Backend, setup: Setup, field: str, mends: Mends) -> Iterator[int]:
    """The nearest value that mends it on each side."""
    value = getattr(setup, field)
    step = (setup.micro_batch or 1) * (setup.replicas or 1) if field == "global_batch" else 1
    whole = value // step * step
    for direction, start in ((-1, whole if whole < value else whole - step), (1, whole + step)):
        for number in range(max(start, 0), 0, -step) if direction < 0 else range(start, start + FARTHEST * step, step):
            if abs(number - value) > max(FARTHEST, 4 * value) or start - number > FARTHEST * step:
                break
            if mends({breach.law for breach in backend.rules(changed(setup, field, number))}):
                yield number
                break


def idle_of(backend: Backend, setup: Setup) -> float | None:
    """Idle share of what a setup runs; None where its schedule or its micro-batches cannot be told."""
    full = backend.settled(setup)
    name, many = backend.schedule(full), full.flush
    if name is None or many is None or many < 1 or full.ranks < 1:
        return None
    return idle_share(name, full.ranks, many, full.chunks or 1)
