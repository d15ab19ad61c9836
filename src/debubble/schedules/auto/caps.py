"""Memory caps as people write them: ``6`` micro-batches, ``1p`` for as many as there are ranks, one for each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.errors import Fault, InputError

Cap = str | float | Sequence[float]
USUAL: Cap = "1p"  # what 1F1B holds on its first rank: the memory that people have planned for


def caps_of(cap: Cap, ranks: int) -> tuple[float, ...]:
    """How many micro-batches of a rank's activations each rank may hold.

    Args:
        cap: a number, a list of them, or either as text: ``6``, ``1p``, ``1.5p``, ``4,6,6,4``; ``p`` is the number
            of ranks.
        ranks: p.

    Raises:
        InputError: not a number above 0, or a list of the wrong length.
    """
    words: Sequence[str | float]
    if isinstance(cap, str):
        words = cap.split(",")
    elif isinstance(cap, int | float):
        words = [cap]
    else:
        words = cap
    caps = [_number(word, ranks) for word in words]
    faults = [
        Fault(f"cap = {word}", "a cap is a number of micro-batches above 0", "give it as in 6, 1p or 4,6,6,4")
        for word, value in zip(words, caps, strict=True)
        if not 0 < value < math.inf
    ]
    if len(caps) not in (1, ranks):
        rule = f"a list of caps has one for each of the {ranks} ranks"
        faults.append(Fault(f"cap has {len(caps)} caps", rule, f"give 1 or {ranks} of them"))
    if faults:
        raise InputError(*faults)
    if len(caps) == 1:
        caps = caps * ranks
    return tuple(caps)


def _number(word: str | float, ranks: int) -> float:
    """The value of one cap; not a number where it is none."""
    if not isinstance(word, str):
        return float(word)
    digits = word.strip()
    unit = 1
    if digits.endswith("p"):
        digits, unit = digits.removesuffix("p") or "1", ranks
    try:
        return float(digits) * unit
    except ValueError:
        return math.nan
