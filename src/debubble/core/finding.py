"""A finding: one cause of lost time, what it costs, what shows it, and what would remove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on one rank that a finding points at: nanoseconds from the start of the window."""

    rank: int
    start: int
    end: int
    op: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Args:
        cause: a short name, the same in every report.
        sentence: what was found, in plain words.
        cost_ns: what it costs a window, nanoseconds; may be negative.
        evidence: ``exact``, ``simulated``, ``measured``, ``estimated`` or ``stated``.
        remedy: what to do about it, or an empty string.
        spans: where it can be seen.
        gain_ratio: simulated throughput with the remedy over without; None where it was not simulated.
    """

    cause: str
    sentence: str
    cost_ns: int
    evidence: str
    remedy: str = ""
    spans: tuple[Span, ...] = ()
    gain_ratio: float | None = None
