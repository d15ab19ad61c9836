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

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .picture import MAKERS as _MAKERS

if TYPE_CHECKING:
    from .account import Account, account
    from .costs import Costs, Rates, costs_of
    from .errors import Deadlock, DebubbleError, Fault, IllegalSchedule, InputError, Refusal, Violation
    from .exchange import Exchange, exchange
    from .finding import Finding
    from .laws import violations
    from .lower import lower
    from .memory import Release, peak_activations
    from .observation import Observation, Window
    from .op import Kind, Op
    from .program import Program, Sends
    from .runner.annotate import annotate
    from .schedule import Schedule, Shape, from_rows
    from .schedules.catalog import build
    from .simulate import simulate
    from .synth.bounds import lower_bound
    from .timeline import Timeline

_HOMES = {
    "account": ("Account", "account"),
    "costs": ("Costs", "Rates", "costs_of"),
    "errors": ("Deadlock", "DebubbleError", "Fault", "IllegalSchedule", "InputError", "Refusal", "Violation"),
    "exchange": ("Exchange", "exchange"),
    "finding": ("Finding",),
    "laws": ("violations",),
    "lower": ("lower",),
    "memory": ("Release", "peak_activations"),
    "observation": ("Observation", "Window"),
    "op": ("Kind", "Op"),
    "program": ("Program", "Sends"),
    "runner.annotate": ("annotate",),
    "schedule": ("Schedule", "Shape", "from_rows"),
    "schedules.catalog": ("build",),
    "simulate": ("simulate",),
    "synth.bounds": ("lower_bound",),
    "timeline": ("Timeline",),
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


class _Face(ModuleType):
    """Keeps ``debubble.simulate`` the verb: the import system would hang the file of that name in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


# How nouns look in a notebook; nothing of it is imported before one is shown.
_MAKERS.update(
    {
        noun: f"debubble.draw.notebook:of_{noun.lower()}"
        for noun in ("Account", "Observation", "Program", "Schedule", "Timeline", "Window")
    }
)

sys.modules[__name__].__class__ = _Face
