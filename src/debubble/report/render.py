"""What a result looks like: its report, rendered. The package names these functions in ``core.results.RENDERERS``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..core.results import Result
from ..drawing.html import frame
from .html import html as page
from .sections import Picture, Report
from .text import markdown as marked
from .text import text as lines

# The class of a result -> ``file:function`` of this room that makes its sections, from the result and ``detail=``.
REPORTS = {
    "Against": "show:of_two",
    "Alone": "why:of_one",
    "BatchPlan": "plan:of_batch",
    "Catalog": "show:of_catalog",
    "Comparison": "why:report",
    "ConfigurationCheck": "check:of_configuration",
    "Diagnosis": "diagnose:report",
    "Executed": "show:of_run",
    "Fit": "why:of_fit",
    "GrowthPlan": "plan:of_growth",
    "Joint": "synth:of_layers",
    "LayoutPlan": "plan:report",
    "LayerProfile": "plan:of_profile",
    "OrderCheck": "check:of_order",
    "PartOfRun": "diagnose:of_part",
    "Series": "why:of_series",
    "SelfTested": "diagnose:of_self_test",
    "SeveralChecks": "check:of_several",
    "Show": "show:report",
    "Synthesis": "synth:report",
    "Splits": "plan:of_splits",
    "Validation": "plan:of_validation",
    "WatchedStep": "diagnose:of_step",
}
FRAME = 640  # pixels of a page in a notebook, and what each rank adds
FRAME_OF_RANK, MOST_FRAMED = 30, 16


def report_of(result: Result, *, detail: bool = False) -> Report:
    """The sections of a result.

    Args:
        result: what a verb returned.
        detail: also what a terminal has no room for.
    """
    # By name, so that showing a schedule does not import what a diagnosis looks like.
    file, function = REPORTS[type(result).__name__].split(":")
    make: Callable[..., Report] = getattr(import_module(f"..{file}", __name__), function)
    return make(result, detail=detail)


def pictures_of(result: Result) -> list[Picture]:
    """The timelines of a result, which its figures show; a plan's is too dear to be drawn for a terminal."""
    # Simulating a plan op by op takes longer than searching it: only its pages and figures ask for the picture.
    file, _ = REPORTS[type(result).__name__].split(":")
    module = import_module(f"..{file}", __name__)
    if hasattr(module, "pictures"):
        pictures: list[Picture] = module.pictures(result)
        return pictures
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
    # A page in a notebook cannot grow with its content: its height is guessed from the rows that it will draw.
    ranks = sum(min(len(picture.ranks), MOST_FRAMED) for picture in report.pictures)
    return frame(page(report), FRAME + FRAME_OF_RANK * ranks)
