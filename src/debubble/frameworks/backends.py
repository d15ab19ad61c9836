"""All frameworks by the name that ``--backend`` knows them by, and whose configuration a file is."""

from __future__ import annotations

from ..core.errors import Fault, InputError, nearest
from .deepspeed import DEEPSPEED
from .flags import Pairs
from .megatron import MEGATRON
from .nanotron import NANOTRON
from .nemo import NEMO
from .read_keys import keys_known
from .setup import Backend
from .torch_pipelining import TORCH
from .torchtitan import TORCHTITAN

BACKENDS = {backend.name: backend for backend in (MEGATRON, TORCHTITAN, TORCH, DEEPSPEED, NEMO, NANOTRON)}


def backend_of(name: str) -> Backend:
    """The framework of this name.

    Raises:
        InputError: no framework has it; the nearest names are given.
    """
    if name.lower() not in BACKENDS:
        raise nearest(name, BACKENDS, "backend")
    return BACKENDS[name.lower()]


def recognised(pairs: Pairs, where: str) -> Backend:
    """The framework whose own keys a configuration has most of.

    Raises:
        InputError: none, or several alike.
    """
    counts = {name: keys_known(backend, pairs) for name, backend in BACKENDS.items()}
    most = max(counts.values(), default=0)
    best = [name for name, count in counts.items() if count == most]
    if not most and "layout" in dict(pairs):
        return MEGATRON  # nobody else writes stages as a string
    if set(best) == {"megatron", "nemo"}:  # the same words, as flags and as fields
        best = ["megatron" if any(key.startswith("--") for key, _ in pairs) else "nemo"]
    if not most or len(best) > 1:
        rule = "it has no key by which its framework could be told" if not most else f"it could be {' or '.join(best)}"
        raise InputError(Fault(where, rule, f"give --backend {'|'.join(best if most else BACKENDS)}"))
    return BACKENDS[best[0]]
