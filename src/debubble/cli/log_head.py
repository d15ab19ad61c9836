"""The head of a log: the arguments that Megatron-LM prints before its first step, as a setup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from ..frameworks.setup import Setup

HEAD = 4_000_000  # bytes of a log in which its arguments stand


def setup_of_log(path: Path) -> Setup:
    """What a log says of its own launch; all of it None where it does not begin with arguments.

    Raises:
        InputError: the file cannot be read, or arguments are not what their key takes; all of them.
    """
    from ..frameworks.flags import dump_pairs
    from ..frameworks.megatron import MEGATRON
    from ..frameworks.read_keys import read_setup
    from ..readers.places import place
    from ..readers.stream import first_bytes

    try:
        text = first_bytes(place(path), HEAD).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    return MEGATRON.settled(read_setup(MEGATRON, dump_pairs(text)).setup)
