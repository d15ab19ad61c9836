"""debubble: see, measure and shrink the pipeline bubble of a training job.

A shape becomes a schedule, a schedule a program, a program with costs a timeline, and a timeline an account:

    >>> from debubble import Rates, Shape, account, build, costs_of, lower, simulate
    >>> schedule = build("1f1b", Shape(ranks=4, microbatches=8))
    >>> timeline = simulate(lower(schedule), costs_of(Rates(), schedule))
    >>> timeline.makespan, round(account(timeline).idle_share, 3)
    (33000000, 0.273)

Names are loaded when they are first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.notebook_hook import MAKERS as _MAKERS

if TYPE_CHECKING:
    from .core.account import Account, account
    from .core.bounds import lower_bound
    from .core.costs import Costs, Rates, costs_of
    from .core.errors import Deadlock, DebubbleError, Fault, IllegalSchedule, InputError, Refusal, Violation
    from .core.exchange import Exchange, exchange
    from .core.finding import Finding
    from .core.laws import violations
    from .core.lower import lower
    from .core.memory import Release, peak_activations
    from .core.observation import Observation, Window
    from .core.op import Kind, Op
    from .core.program import Program, Sends
    from .core.schedule import Schedule, Shape, from_rows
    from .core.simulate import simulate
    from .core.timeline import Timeline
    from .runner.annotate import annotate
    from .schedules.catalog import build

_HOMES = {
    "core.account": ("Account", "account"),
    "core.costs": ("Costs", "Rates", "costs_of"),
    "core.errors": ("Deadlock", "DebubbleError", "Fault", "IllegalSchedule", "InputError", "Refusal", "Violation"),
    "core.exchange": ("Exchange", "exchange"),
    "core.finding": ("Finding",),
    "core.laws": ("violations",),
    "core.lower": ("lower",),
    "core.memory": ("Release", "peak_activations"),
    "core.observation": ("Observation", "Window"),
    "core.op": ("Kind", "Op"),
    "core.program": ("Program", "Sends"),
    "runner.annotate": ("annotate",),
    "core.schedule": ("Schedule", "Shape", "from_rows"),
    "schedules.catalog": ("build",),
    "core.simulate": ("simulate",),
    "core.bounds": ("lower_bound",),
    "core.timeline": ("Timeline",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Account",
    "Costs",
    "Deadlock",
    "DebubbleError",
    "Exchange",
    "Fault",
    "Finding",
    "IllegalSchedule",
    "InputError",
    "Kind",
    "Observation",
    "Op",
    "Program",
    "Rates",
    "Refusal",
    "Release",
    "Schedule",
    "Sends",
    "Shape",
    "Timeline",
    "Violation",
    "Window",
    "account",
    "annotate",
    "build",
    "costs_of",
    "exchange",
    "from_rows",
    "lower",
    "lower_bound",
    "peak_activations",
    "simulate",
    "violations",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'debubble' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# How nouns look in a notebook; nothing of it is imported before one is shown.
_MAKERS.update(
    {
        noun: f"debubble.drawing.notebook:of_{noun.lower()}"
        for noun in ("Account", "Observation", "Program", "Schedule", "Timeline", "Window")
    }
)
