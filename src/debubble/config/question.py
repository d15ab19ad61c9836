"""A question to the planner: what is fixed of a job, and the values that may be chosen for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .config import Config
from .layout import Layout


@dataclass(frozen=True, slots=True)
class Question:
    """What to search through.

    Args:
        config: what is fixed; its framework is the one that is to launch the answer, None for any.
        tries: values to try of a field that is not fixed; what is in neither is the search's own choice.
        schedules: names of the catalog to try; empty for the search's own choice.
        base: what all layouts share and no configuration says: what is overlapped, fused and kept.
    """

    config: Config
    tries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    schedules: tuple[str, ...] = ()
    base: Layout = field(default_factory=Layout)

    def values(self, name: str) -> tuple[int, ...]:
        """Values of a field that may be chosen: the fixed one, those to try, or none where the search is free.

        Raises:
            StillOpen: the field is open.
        """
        value = getattr(self.config, name)
        return self.tries.get(name, ()) if value is None else (value,)
