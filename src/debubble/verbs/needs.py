"""What a verb asks of its options: those that a question needs, and those that it would pass over."""

from __future__ import annotations

from typing import Any

from ..core.errors import Fault, InputError


def needed(said: dict[str, Any], *names: str) -> None:
    """Refuse where one of these options is missing.

    Raises:
        InputError: all that are missing.
    """
    missing = [name for name in names if said[name] is None]
    if missing:
        raise InputError(*(Fault(f"--{name.replace('_', '-')}", "it is required", "see --help") for name in missing))


def unused(said: dict[str, Any], *names: str, why: str) -> None:
    """Refuse options that would be passed over.

    Raises:
        InputError: all that were given.
    """
    given = [name for name in names if said[name] not in (None, ())]
    if given:
        raise InputError(*(Fault(f"--{name.replace('_', '-')}", why, "leave it out") for name in given))
