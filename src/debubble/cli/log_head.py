"""The head of a log: the arguments that Megatron-LM prints before its first step, as a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from ..config.config import Config

HEAD = 4_000_000  # bytes of a log in which its arguments stand


def config_of_log(path: Path) -> Config:
    """What a log says of its own launch; all of it absent where it does not begin with arguments.

    Raises:
        InputError: the file cannot be read, or arguments are not what their key takes; all of them.
    """
    from ..config.config import Config
    from ..frameworks.files import dump_pairs
    from ..frameworks.keys import read_config
    from ..frameworks.megatron import MEGATRON
    from ..readers.places import place
    from ..readers.stream import first_bytes

    try:
        text = first_bytes(place(path), HEAD).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    pairs = dump_pairs(text, path.name)
    return MEGATRON.filled(read_config(MEGATRON, pairs, path.name)) if pairs else Config(name=path.name)
