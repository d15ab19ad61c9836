"""A run that was trained and recorded: everything that a diagnosis says of it, and what only the run knows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from ..core.costs import Costs
from ..core.rank_time import MILLISECOND
from ..core.simulate import simulate
from .diagnosis import Diagnosis
from .measured_costs import fitted, stage_means
from .windows import Summary

GOOD_GRADIENT = 1e-5  # in 32 bits a right pipeline stays below 1e-6, and a wrong one is far above


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Executed(Diagnosis):
    """A run that was trained and recorded.

    Args:
        predicted_ms: simulated for its pipeline window: at the pace that was asked for, else at its own mean durations.
        measured_ms: its pipeline window.
        loss: of the last step.
        loss_error: largest relative difference from one process without a pipeline; None if that was not asked for.
        gradient_error: the same of any gradient, over the largest of its parameter.
        recording: the folder to diagnose again.
        device: ``cpu`` or ``cuda``.
        refusal: why its gradients are not to be trusted; None if they are, or were not checked.
    """

    schema: ClassVar[str] = "run/1"

    measured_ms: float
    loss: float
    loss_error: float | None
    gradient_error: float | None
    recording: str
    device: str
    refusal: str | None

    @property
    def status(self) -> int:
        """Exit status: 1 if gradients were checked and are wrong."""
        return 1 if self.refusal else 0

    @property
    def refused(self) -> str:
        """Why its gradients are not to be trusted."""
        return self.refusal or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the process that speaks for all knows at the end.

    Args:
        loss: of the last step.
        loss_error: see ``Executed``.
        gradient_error: see ``Executed``.
        recording: the folder.
        device: that it ran on.
        hop_ns: delay that was put on each arrival.
    """

    loss: float
    loss_error: float | None
    gradient_error: float | None
    recording: str
    device: str
    hop_ns: int


def executed_of(found: Diagnosis, trained: Trained) -> Executed:
    """A diagnosis with what only the run knows."""
    summary = found.examined.summary
    predicted = found.predicted_ms
    if predicted is None:
        predicted = _afterwards(summary, trained.hop_ns) / MILLISECOND
    error = trained.gradient_error
    wrong = error is not None and error > GOOD_GRADIENT
    held = {each.name: getattr(found, each.name) for each in fields(found)} | {"predicted_ms": predicted}
    return Executed(
        **held,
        measured_ms=found.makespan_ms,
        loss=trained.loss,
        loss_error=trained.loss_error,
        gradient_error=error,
        recording=trained.recording,
        device=trained.device,
        refusal=f"gradient_error = {error:.1e} is above {GOOD_GRADIENT:g}: do not trust it" if wrong else None,
    )


def _afterwards(summary: Summary, hop_ns: int) -> int:
    """The makespan that the order would have with the mean durations that were measured, and nothing in between."""
    program = summary.window.timeline.program
    means = stage_means(fitted(summary.window.timeline), program.schedule)
    return simulate(program, Costs(means.durations, np.full_like(means.transfers, hop_ns))).makespan
