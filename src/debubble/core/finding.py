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
        rank: of the pipeline, if one is to blame.
        stage: of the model, if one is to blame.
        replica: data-parallel, if one is to blame.
        step: by its number, if one is to blame.
        size_ratio: how many times as long as usual what is to blame took.
    """

    cause: str
    sentence: str
    cost_ns: int
    evidence: str
    remedy: str = ""
    spans: tuple[Span, ...] = ()
    gain_ratio: float | None = None
    rank: int | None = None
    stage: int | None = None
    replica: int | None = None
    step: int | None = None
    size_ratio: float | None = None
