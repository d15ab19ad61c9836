"""Gates: whether a result passes what a script asks of it, and the exit status that it sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.units import percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What was asked of a run, and whether it passes.

    Args:
        limit_share: the most that it may idle, or be slower by; None if none was given.
        idle_share: what was measured of that; None if a throughput was compared.
        passed: whether nothing that was asked for failed.
        reasons: why it did not pass, a sentence each.
    """

    limit_share: float | None
    idle_share: float | None
    passed: bool
    reasons: tuple[str, ...]

    @property
    def status(self) -> int:
        """Exit status: 0, or 1 if it did not pass."""
        return 0 if self.passed else 1


def gate(reasons: Iterable[str], limit: float | None = None, idle_share: float | None = None) -> Gate:
    """The gate of a run: it passes if there is no reason against it, and it idles no more than the limit.

    Args:
        reasons: what else was asked for and failed, a sentence each.
        limit: the most that it may idle; None for any.
        idle_share: what it idles.
    """
    failed = list(reasons)
    if limit is not None and idle_share is not None and idle_share > limit:
        failed.insert(0, f"It idles for {percent(idle_share)}, more than {percent(limit)}.")
    return Gate(limit_share=limit, idle_share=idle_share, passed=not failed, reasons=tuple(failed))
