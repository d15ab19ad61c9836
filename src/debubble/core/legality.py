"""Verification: everything wrong with an order, under sends that wait for nobody, sends that wait, and engines."""

from __future__ import annotations

from dataclasses import dataclass

from .engine import IDEAL, RENDEZVOUS, Engine
from .errors import Deadlock, Violation
from .exchange import Exchange, mismatches
from .laws import violations
from .lower import lower
from .schedule import Schedule

BOTH = (IDEAL, RENDEZVOUS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a schedule.

    Args:
        broken: laws that it breaks, whatever the sends.
        stuck: engines under which it deadlocks, with the circle; none were tried where a law is broken.
    """

    broken: tuple[Violation, ...]
    stuck: tuple[tuple[Engine, Deadlock], ...]

    @property
    def legal(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken and not self.stuck


def verify(schedule: Schedule, given: Exchange | None = None, ways: tuple[Engine, ...] = BOTH) -> Verdict:
    """Judge a schedule without raising.

    Args:
        schedule: any order of ops.
        given: where its sends and receives stand, if somebody wrote that down.
        ways: engines to try; those that take no order of sends from outside use their own.
    """
    broken = violations(schedule)
    if broken:
        return Verdict(tuple(broken), ())
    try:
        lower(schedule)
    except Deadlock as circle:  # of computations alone, so there is no way of sending that helps
        return Verdict((), tuple((engine, circle) for engine in ways))
    if given is not None and (wrong := mismatches(schedule, given)):
        return Verdict(tuple(wrong), ())
    stuck = []
    for engine in ways:
        try:
            lower(schedule, engine, given if engine.takes_orders else None)
        except Deadlock as circle:
            stuck.append((engine, circle))
    return Verdict((), tuple(stuck))
