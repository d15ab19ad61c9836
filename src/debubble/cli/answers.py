"""What-ifs as rows: a letter for each thing that an answer takes for granted, and what the letters mean."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from ..diagnosis.replay import WhatIf


def letters(answers: Sequence[WhatIf]) -> dict[str, str]:
    """A letter for each assumption, in the order in which they appear."""
    assumptions = dict.fromkeys(each for answer in answers for each in answer.assumes)
    return dict(zip(assumptions, ascii_lowercase, strict=False))


def memory(answer: WhatIf) -> list[str]:
    """Micro-batches in flight, and the memory of their activations against now."""
    return [f"{answer.peak_activations:g}", f"{answer.activations_ratio:.2f}x"]


def granted(answer: WhatIf, letter: dict[str, str]) -> str:
    """The letters of one answer."""
    return "".join(letter.get(each, "?") for each in answer.assumes)


def legend(letter: dict[str, str]) -> list[str]:
    """What the columns and the letters mean, a line each."""
    held = "held: micro-batches in flight; memory: of their activations on the worst rank, with over without."
    return [held, *(f"{sign}: {assumption}" for assumption, sign in letter.items())]
