"""Verification: everything wrong with an order, under sends that wait for nobody and under sends that wait."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Deadlock, Violation
from .exchange import Exchange, mismatches
from .laws import violations
from .lower import lower
from .program import Sends
from .schedule import Schedule

BOTH = (Sends.ASYNC, Sends.RENDEZVOUS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a schedule.

    Args:
        broken: laws that it breaks, whatever the sends.
        stuck: ways of sending under which it deadlocks, with the circle; none were tried where a law is broken.
    """

    broken: tuple[Violation, ...]
    stuck: tuple[tuple[Sends, Deadlock], ...]

    @property
    def legal(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken and not self.stuck


def verify(schedule: Schedule, given: Exchange | None = None, ways: tuple[Sends, ...] = BOTH) -> Verdict:
    """Judge a schedule without raising.

    Args:
        schedule: any order of ops.
        given: where its sends and receives stand, if somebody wrote that down.
        ways: of sending, to try.
    """
    broken = violations(schedule)
    if broken:
        return Verdict(tuple(broken), ())
    try:
        program = lower(schedule)
    except Deadlock as circle:  # of computations alone, so there is no way of sending that helps
        return Verdict((), tuple((sends, circle) for sends in ways))
    if given is not None and (wrong := mismatches(program, given)):
        return Verdict(tuple(wrong), ())
    stuck = []
    for sends in ways:
        try:
            lower(schedule, sends, given)
        except Deadlock as circle:
            stuck.append((sends, circle))
    return Verdict((), tuple(stuck))
