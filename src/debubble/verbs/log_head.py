"""The head of a log: the arguments that Megatron-LM prints before its first step, as a configuration."""

from __future__ import annotations

from pathlib import Path

from ..config.config import Config
from ..core.errors import Fault, InputError
from ..frameworks.files import dump_pairs
from ..frameworks.keys import read_config
from ..frameworks.megatron import MEGATRON
from ..readers.places import place
from ..readers.stream import first_bytes

HEAD = 4_000_000  # bytes of a log in which its arguments are


def config_of_log(path: Path) -> Config:
    """What a log says of its own launch; all of it absent if it does not begin with arguments.

    Raises:
        InputError: the file cannot be read, or arguments are not what their key takes; all of them.
    """
    try:
        text = first_bytes(place(path), HEAD).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    pairs = dump_pairs(text, path.name)
    return MEGATRON.filled(read_config(MEGATRON, pairs, path.name, whole=True)) if pairs else Config(name=path.name)
