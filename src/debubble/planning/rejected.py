"""Rejected layouts: why each was ruled out, and how many for which reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout, or many alike, that cannot be launched.

    Args:
        cause: in a word: devices, batch, layers, heads, experts, sequence, schedule, memory.
        reason: as a clause.
        sizes: what they have in common.
        count: how many there are.
    """

    cause: str
    reason: str
    sizes: dict[str, Any] = field(default_factory=dict)
    count: int = 1
