"""What a result looks like: its report, rendered. The package names these functions in ``core.results.RENDERERS``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..core.results import Result
from ..drawing.notebook import frame
from .html import html as page
from .markdown import markdown as marked
from .sections import Picture, Report
from .text import text as lines

# The class of a result -> the file of this room whose ``report(result, detail=..)`` makes its sections.
REPORTS = {
    "Alone": "alone",
    "BatchPlan": "batch_plan",
    "Catalog": "catalog",
    "Comparison": "why",
    "ConfigurationCheck": "configuration_check",
    "Diagnosis": "diagnose",
    "Executed": "executed",
    "Fit": "fit",
    "GrowthPlan": "growth_plan",
    "LayoutPlan": "layout_plan",
    "LayerProfile": "layer_profile",
    "OrderCheck": "order_check",
    "PartOfRun": "part_of_run",
    "Series": "why_series",
    "SeveralChecks": "several_checks",
    "Show": "show",
    "Splits": "split",
    "Validation": "validate",
}
FRAME = 640  # pixels of a page in a notebook, and what each rank adds
FRAME_OF_RANK, MOST_FRAMED = 30, 16


def report_of(result: Result, *, detail: bool = False) -> Report:
    """The sections of a result.

    Args:
        result: what a verb returned.
        detail: also what a terminal has no room for.
    """
    module = import_module(f"..{REPORTS[type(result).__name__]}", __name__)
    make: Callable[..., Report] = module.report
    return make(result, detail=detail)


def pictures_of(result: Result) -> list[Picture]:
    """The timelines of a result, which its figures show; some are too dear to be drawn for a terminal."""
    module = import_module(f"..{REPORTS[type(result).__name__]}", __name__)
    if hasattr(module, "pictures"):
        found: list[Picture] = module.pictures(result)
        return found
    return report_of(result).pictures


def text(result: Result, width: int, *, utf8: bool, colour: bool) -> str:
    """For a terminal."""
    return lines(report_of(result), width, utf8=utf8, colour=colour)


def markdown(result: Result) -> str:
    """For a pull request."""
    return marked(report_of(result))


def html(result: Result) -> str:
    """A page for a browser."""
    return page(report_of(result, detail=True))


def notebook(result: Result) -> str:
    """The page in a frame of its own."""
    report = report_of(result, detail=True)
    ranks = sum(min(len(picture.ranks), MOST_FRAMED) for picture in report.pictures)
    return frame(page(report), FRAME + FRAME_OF_RANK * ranks)
