"""Traces of one host that were distilled, and cannot be diagnosed before those of the others are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.results import Result


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PartOfRun(Result):
    """Traces that were distilled, and are not all of a run.

    Args:
        folder: where to.
        ranks: whose traces were distilled.
        bytes: of what was written.
        reason: why they cannot be diagnosed alone, a sentence.
    """

    schema: ClassVar[str] = "distilled/1"

    folder: str
    ranks: int
    bytes: int
    reason: str
