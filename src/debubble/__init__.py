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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.notebook_hook import MAKERS as _MAKERS
from .core.results import RENDERERS as _RENDERERS
from .core.version import __version__ as __version__

if TYPE_CHECKING:
    from .core.account import Account, account
    from .core.bounds import lower_bound
    from .core.costs import Costs, Rates, costs_of
    from .core.errors import Deadlock, DebubbleError, Fault, IllegalSchedule, InputError, Refusal, Violation
    from .core.exchange import Exchange, exchange
    from .core.finding import Finding, Span
    from .core.laws import violations
    from .core.lower import lower
    from .core.memory import Release, peak_activations
    from .core.observation import Link, Observation, Window
    from .core.op import Kind, Op
    from .core.program import Program, Sends
    from .core.rank_time import RankTime
    from .core.results import Result
    from .core.schedule import Schedule, Shape, from_rows
    from .core.simulate import simulate
    from .core.timeline import Timeline
    from .diagnosis.causes import CauseCost
    from .diagnosis.diagnosis import Change, Diagnosis, FindingCost, Receives, ReplicaWindow, ReplicaWork, SpanTime
    from .diagnosis.executed import Executed
    from .diagnosis.gates import Gate
    from .diagnosis.part_of_run import PartOfRun
    from .diagnosis.simulated import Show
    from .diagnosis.sliders import Sliders
    from .planning.factor_values import FactorValue
    from .planning.layer_profile import LayerProfile, PassTimes
    from .planning.validate import LeftOut, SetScore, TakenAsUsual, Validation
    from .runner.annotate import annotate
    from .schedules.catalog import build
    from .schedules.listing import Catalog, CatalogRow, catalog
    from .verbs.diagnose import diagnose
    from .verbs.profile import profile
    from .verbs.read import read
    from .verbs.run import run
    from .verbs.show import show
    from .verbs.validate import validate

# Where each public name lives; the imports above say the same to type checkers (a test holds the two together).
_HOMES = {
    "core.account": (
        "Account",
        "account",
    ),
    "core.bounds": ("lower_bound",),
    "core.costs": (
        "Costs",
        "Rates",
        "costs_of",
    ),
    "core.errors": (
        "Deadlock",
        "DebubbleError",
        "Fault",
        "IllegalSchedule",
        "InputError",
        "Refusal",
        "Violation",
    ),
    "core.exchange": (
        "Exchange",
        "exchange",
    ),
    "core.finding": (
        "Finding",
        "Span",
    ),
    "core.laws": ("violations",),
    "core.lower": ("lower",),
    "core.memory": (
        "Release",
        "peak_activations",
    ),
    "core.observation": (
        "Link",
        "Observation",
        "Window",
    ),
    "core.op": (
        "Kind",
        "Op",
    ),
    "core.program": (
        "Program",
        "Sends",
    ),
    "core.rank_time": ("RankTime",),
    "core.results": ("Result",),
    "core.schedule": (
        "Schedule",
        "Shape",
        "from_rows",
    ),
    "core.simulate": ("simulate",),
    "core.timeline": ("Timeline",),
    "diagnosis.causes": ("CauseCost",),
    "diagnosis.diagnosis": (
        "Change",
        "Diagnosis",
        "FindingCost",
        "Receives",
        "ReplicaWindow",
        "ReplicaWork",
        "SpanTime",
    ),
    "diagnosis.executed": ("Executed",),
    "diagnosis.gates": ("Gate",),
    "diagnosis.part_of_run": ("PartOfRun",),
    "diagnosis.simulated": ("Show",),
    "diagnosis.sliders": ("Sliders",),
    "planning.factor_values": ("FactorValue",),
    "planning.layer_profile": (
        "LayerProfile",
        "PassTimes",
    ),
    "planning.validate": (
        "LeftOut",
        "SetScore",
        "TakenAsUsual",
        "Validation",
    ),
    "runner.annotate": ("annotate",),
    "schedules.catalog": ("build",),
    "schedules.listing": (
        "Catalog",
        "CatalogRow",
        "catalog",
    ),
    "verbs.diagnose": ("diagnose",),
    "verbs.profile": ("profile",),
    "verbs.read": ("read",),
    "verbs.run": ("run",),
    "verbs.show": ("show",),
    "verbs.validate": ("validate",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Account",
    "Catalog",
    "CatalogRow",
    "CauseCost",
    "Change",
    "Costs",
    "Deadlock",
    "DebubbleError",
    "Diagnosis",
    "Exchange",
    "Executed",
    "FactorValue",
    "Fault",
    "Finding",
    "FindingCost",
    "Gate",
    "IllegalSchedule",
    "InputError",
    "Kind",
    "LayerProfile",
    "LeftOut",
    "Link",
    "Observation",
    "Op",
    "PartOfRun",
    "PassTimes",
    "Program",
    "RankTime",
    "Rates",
    "Receives",
    "Refusal",
    "Release",
    "ReplicaWindow",
    "ReplicaWork",
    "Result",
    "Schedule",
    "Sends",
    "SetScore",
    "Shape",
    "Show",
    "Sliders",
    "Span",
    "SpanTime",
    "TakenAsUsual",
    "Timeline",
    "Validation",
    "Violation",
    "Window",
    "account",
    "annotate",
    "build",
    "catalog",
    "costs_of",
    "diagnose",
    "exchange",
    "from_rows",
    "lower",
    "lower_bound",
    "peak_activations",
    "profile",
    "read",
    "run",
    "show",
    "simulate",
    "validate",
    "violations",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'debubble' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"])


# How nouns look in a notebook, and results anywhere; nothing of it is imported before one is shown.
_MAKERS.update(
    {
        noun: f"debubble.drawing.notebook:of_{noun.lower()}"
        for noun in ("Account", "Observation", "Program", "Schedule", "Timeline", "Window")
    }
)
_RENDERERS.update({name: f"debubble.report.render:{name}" for name in ("text", "markdown", "html", "notebook")})
_RENDERERS.update({"json": "debubble.report.json:json", "file": "debubble.verbs.files:write"})
