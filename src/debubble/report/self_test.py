"""What ``record --self-test`` says: a line for each thing that was held against another, and whether they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.units import percent
from .sections import Report, Sentences

if TYPE_CHECKING:
    from ..recorder.self_test import SelfTested


def report(found: SelfTested, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a self-test: what was held against what, and whether they agree."""
    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks} ranks"
    title = f"1F1B of {ranks} on {found.device}, {found.microbatches} micro-batches, {found.steps} steps recorded"
    if found.device == "cpu":
        title += ": no GPU is here, so that events were not tried"
    idle, even = percent(found.idle_share), percent(found.even_idle_share)
    on, off = f"{found.on_ms:.2f} ms", f"{found.off_ms:.2f} ms"
    lines = [
        f"{_word(found.order_agrees)}: the order of ops on each rank is that of 1F1B as it is built here",
        f"{_word(found.parts_sum)}: compute, warm-up, waiting, transfer and cool-down add up to ranks x window",
        _of_messages(found),
        f"idle {idle} measured; {even} were the stages equal and messages free (exact)",
        f"step {on} with the recorder on, {off} with it off; {found.overhead_share:+.2%} (median of pairs)",
    ]
    return Report(title, (), [Sentences("What agrees", lines)])


def _word(agrees: bool) -> str:
    return "agrees" if agrees else "DIFFERS"


def _of_messages(found: SelfTested) -> str:
    if not found.messages:
        return "not tried: with one rank there is no message, and no second clock"
    if found.early_messages:
        early = f"{found.early_messages:,} of {found.messages:,} messages were used before they were made"
        return f"DIFFERS: {early}, by {found.earliest_ms:.3f} ms at most: the clocks are that far apart"
    return f"agrees: none of {found.messages:,} messages was used before it was made, by the clocks of both ranks"
