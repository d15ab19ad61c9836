"""The framework that will run what is advised, by the name that ``--framework`` has for it."""

from __future__ import annotations

from ..diagnosis.remedies import Launcher
from ..frameworks.catalog import framework_of


def launcher_of(framework: str | None) -> Launcher | None:
    """What a framework runs; None if nobody said which one it is.

    Raises:
        InputError: no framework has this name.
    """
    if framework is None:
        return None
    runs = framework_of(framework)
    return Launcher(runs.title, frozenset(runs.schedules))
