"""The last catch: a fault of ours ends in one line and a report in the temporary folder, never in a verdict."""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import Fault
from ..core.version import __version__
from ..report.errors import INTERNAL, Failure

PACKAGE = Path(__file__).resolve().parents[1]


def crashed(error: BaseException, words: Sequence[str]) -> Failure:
    """Write the report of an unexpected error, under a name that nothing has, and say where it is.

    Args:
        error: what nobody expected.
        words: of the command line.
    """
    place = _place(error)
    report = _written(error, words)
    said = f"{type(error).__name__} in {place}: a fault of debubble, and no answer"
    remedy = f"the report is {report}; please send it with what you gave" if report else "please send the command line"
    fault = Fault(f"{type(error).__name__} in {place}", "a fault of debubble, and no answer", remedy)
    return Failure("internal", INTERNAL, [fault], [f"{said}; {remedy}"], report)


def _place(error: BaseException) -> str:
    """The last line of this package that the error passed."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_relative_to(PACKAGE)]
    if not frames:
        return "debubble"
    return f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}"


def _written(error: BaseException, words: Sequence[str]) -> str:
    """The path of the report; empty if it cannot be written."""
    head = [
        f"debubble {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(['debubble', *words])}",
        "",
    ]
    lines = [*head, *traceback.format_exception(error)]
    try:
        handle, path = tempfile.mkstemp(prefix="debubble-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write("\n".join(line.rstrip("\n") for line in lines) + "\n")
    except OSError:
        return ""
    return path
