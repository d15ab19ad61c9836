"""Rejected layouts: why each was ruled out, and how many for which reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEGAL = ("memory", "behind", "twin")  # causes that rule legal layouts out; others say what is not legal


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout, or many alike, that cannot be launched.

    Args:
        cause: in a word: devices, batch, layers, heads, experts, sequence, schedule, framework; or, of legal layouts,
            memory, behind (slower by the closed form), twin.
        reason: as a clause.
        sizes: what they have in common.
        count: how many there are.
    """

    cause: str
    reason: str
    sizes: dict[str, Any] = field(default_factory=dict)
    count: int = 1
