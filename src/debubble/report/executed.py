"""What ``run`` says: the median step, measured beside predicted, the loss, and where the recording is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .diagnose import median_window
from .diagnose import report as diagnosed
from .figures import Unit, shown
from .sections import Figure, Figures, Report

if TYPE_CHECKING:
    from ..diagnosis.simulated import Executed


def report(found: Executed, *, detail: bool = False) -> Report:
    """The sections of a run: its page is that of a diagnosis."""
    figures = _figures(found)
    if detail:
        whole = diagnosed(found, detail=True)
        return Report(whole.title, whole.verdict, [*whole.sections, figures], whole.next, sliders=whole.sliders)
    return Report("", (), [median_window(found, titled=False), figures])


def _figures(found: Executed) -> Figures:
    how = "paced, measured" if found.paced else "measured"
    window, predicted = (shown(time, Unit.TIME) for time in (found.measured_ms, found.predicted_ms))
    figures = [
        Figure("makespan", f"{window} {how}, {predicted} simulated"),
        Figure("idle share", found.idle_share, Unit.SHARE, evidence=how),
        Figure("bubble ratio", found.bubble_ratio, Unit.SHARE, evidence=how),
        Figure("loss", f"{found.loss:.4f}"),
    ]
    if found.loss_error is not None:
        gradient = "" if found.gradient_error is None else f"gradient_error {found.gradient_error:.1e}, "
        figures.append(Figure("check", f"{gradient}loss {found.loss_error:.1e} off one process without a pipeline"))
    figures.append(Figure("recording", f"{found.recording} (debubble diagnose {found.recording})"))
    return Figures(figures)
