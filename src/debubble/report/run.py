"""What ``run`` says: the median step, measured beside predicted, the loss, and where the recording is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .diagnose import median_window
from .diagnose import report as diagnosed
from .figures import Unit, shown
from .sections import Figure, Figures, Report

if TYPE_CHECKING:
    from ..diagnosis.simulated import Executed


def report(run: Executed, *, detail: bool = False) -> Report:
    """The sections of a run: its page is that of a diagnosis."""
    figures = _figures(run)
    if detail:
        whole = diagnosed(run, detail=True)
        return Report(whole.title, whole.verdict, [*whole.sections, figures], whole.next, sliders=whole.sliders)
    return Report("", (), [median_window(run, titled=False), figures])


def _figures(run: Executed) -> Figures:
    how = "paced, measured" if run.paced else "measured"
    measured, predicted = shown(run.measured_ms, Unit.TIME), shown(run.predicted_ms, Unit.TIME)
    figures = [
        Figure("makespan", f"{measured} {how}, {predicted} simulated"),
        Figure("idle share", run.idle_share, Unit.SHARE, evidence=how),
        Figure("bubble ratio", run.bubble_ratio, Unit.SHARE, evidence=how),
        Figure("loss", f"{run.loss:.4f}"),
    ]
    if run.loss_error is not None:
        gradient = "" if run.gradient_error is None else f"gradient_error {run.gradient_error:.1e}, "
        figures.append(Figure("check", f"{gradient}loss {run.loss_error:.1e} off one process without a pipeline"))
    figures.append(Figure("recording", f"{run.recording} (debubble diagnose {run.recording})"))
    return Figures(figures)
