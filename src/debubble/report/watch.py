"""What ``watch`` says of a step: one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.units import percent
from .sections import Report

if TYPE_CHECKING:
    from ..recorder.follow import WatchedStep


def report(step: WatchedStep, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a step: none but its line."""
    return Report(f"{line_of(step)} (measured)", [], [])


def line_of(step: WatchedStep) -> str:
    """A step in one line."""
    words = [f"step {step.step}" if step.phase == "train" else f"step {step.step} ({step.phase})"]
    words.append(f"window {step.window_ms:.1f} ms")
    words.append(f"idle {percent(step.idle_share)}")
    words.append(f"slowest rank {step.slowest_rank} ({step.slowest_ratio:.2f} of the mean)")
    if abs(step.drift_share) >= 0.005:
        words.append(f"{step.drift_share:+.1%} against the first steps")
    if step.loss is not None:
        words.append(f"loss {step.loss:.4g}")
    return ", ".join(words)
