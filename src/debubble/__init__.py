"""debubble: see, measure and shrink the pipeline bubble of a training job.

Verbs take what their options on the command line take, and return results: objects whose attributes are the keys of
``--json``, which print themselves, show themselves in a notebook, and have ``.to_html(path)``:

    >>> import debubble
    >>> shown = debubble.show("1f1b", ranks=4, microbatches=8)
    >>> round(shown.idle_share, 3), shown.idle_formula
    (0.273, '(p-1)/(m+p-1)')

Below them, a shape becomes a schedule, a schedule a program, a program with costs a timeline, that an account:

    >>> from debubble import Rates, Shape, account, build, costs_of, lower, simulate
    >>> schedule = build("1f1b", Shape(ranks=4, microbatches=8))
    >>> timeline = simulate(lower(schedule), costs_of(Rates(), schedule))
    >>> timeline.makespan, round(account(timeline).idle_share, 3)
    (33000000, 0.273)

Names are loaded when they are first used, so that the command line starts at once.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from .core.results import MAKERS as _MAKERS
from .core.results import RENDERERS as _RENDERERS
from .core.results import __version__ as __version__

# Every public name and the file it lives in, from the stub beside this file: one list for all who ask.
_PUBLIC = re.compile(r"^from \.([\w.]+) import (\w+) as \2$", re.MULTILINE)
_HOME = {name: module for module, name in _PUBLIC.findall(Path(__file__).with_suffix(".pyi").read_text())}
del _HOME["__version__"]  # it is here already

__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'debubble' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__path__"])


# How nouns look in a notebook, and results anywhere; nothing of it is imported before one is shown.
_MAKERS.update(
    {
        noun: f"debubble.drawing.html:of_{noun.lower()}"
        for noun in ("Account", "Observation", "Program", "Schedule", "Timeline", "Window")
    }
)
_RENDERERS.update({name: f"debubble.report.render:{name}" for name in ("text", "markdown", "html", "notebook")})
_RENDERERS.update({"json": "debubble.report.json:json", "file": "debubble.verbs.draw:write"})
