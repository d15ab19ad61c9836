"""The catalog: every schedule that has a name, made by one ``build``, whether its shape decides it or a search.

Each module of this package that holds an ``ENTRY`` is a schedule. To add one, add its file. They are listed in the
order in which their papers came out, those of one paper by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from ..core.costs import Costs, Rates
from ..core.errors import Fault, InputError
from ..core.memory import Release
from ..core.schedule import Schedule, Shape
from . import auto
from .auto.caps import USUAL, Cap
from .entry import Entry

_BUILT_ON_IT = ("catalog", "listing")  # modules that need the catalog to be there


def _modules() -> Iterator[ModuleType]:
    for package in (auto.__name__, __package__):
        for found in pkgutil.iter_modules(import_module(package).__path__):
            if found.name not in _BUILT_ON_IT:
                yield import_module(f"{package}.{found.name}")


def _entries() -> Iterator[Entry]:
    for module in _modules():
        entry = getattr(module, "ENTRY", None)
        if isinstance(entry, Entry):
            yield entry


def _by_paper(entry: Entry) -> tuple[bool, str, str]:
    """An arXiv number begins with year and month; what has no paper comes last."""
    return not entry.paper, entry.paper, entry.name


CATALOG = {entry.name: entry for entry in sorted(_entries(), key=_by_paper)}

GENERATED = tuple(name for name, entry in CATALOG.items() if entry.search is None)  # their shape decides them
TRAINING = tuple(name for name, entry in CATALOG.items() if entry.trains)


def _plain(name: str) -> str:
    """A name without case, hyphens and the word with which PyTorch's classes begin."""
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.removeprefix("schedule") or letters


_CALLED = {_plain(name): entry for entry in CATALOG.values() for name in entry.names}


def called(name: str) -> Entry | None:
    """The schedule that goes by a name: ours, PyTorch's or a paper's, in any case; None where none does."""
    return _CALLED.get(_plain(name))


def entry_of(name: str) -> Entry:
    """The schedule that goes by a name, as ``called``.

    Raises:
        InputError: none does, with the nearest names.
    """
    entry = called(name)
    if entry is None:
        raise InputError(unknown(name, CATALOG.values()))
    return entry


def unknown(name: str, entries: Iterable[Entry], kind: str = "schedule") -> Fault:
    """The fault of a name that no schedule has, with the nearest names of those that would do."""
    known = list(entries)
    spelled = {other.lower(): (entry.name, other) for entry in reversed(known) for other in reversed(entry.names)}
    close = get_close_matches(name.lower(), spelled, n=8, cutoff=0.5)
    nearest: dict[str, str] = {}  # of each schedule our own name, if that is close too
    for lower in close:
        ours, other = spelled[lower]
        nearest.setdefault(ours, ours if ours in close else other)
    if nearest:
        remedy = f"did you mean {' or '.join([*nearest.values()][:3])}?"
    else:
        remedy = f"known: {', '.join(entry.name for entry in known)}"
    return Fault(f"{kind} = {name!r}", f"no {kind} has this name", remedy)


def build(
    name: str,
    shape: Shape,
    speed: Rates | Costs | None = None,
    *,
    cap: Cap | None = None,
    release: Release = Release.HALF,
) -> Schedule:
    """The schedule of this name for this shape.

    Args:
        name: ours, PyTorch's or a paper's, in any case.
        shape: of the pipeline; one chunk a rank counts as not asked for where the schedule usually has more.
        speed: how long ops take, for a schedule that is searched; None for the default rates.
        cap: micro-batches that each rank may hold, for a search; None for its default.
        release: when activations are freed, by which a cap is judged; published searches go by halves.

    Raises:
        InputError: no schedule has this name, or the shape does not suit it, or a cap that is too small or that the
            schedule does not take.
    """
    entry = entry_of(name)
    wanted = entry.shape(shape)
    if entry.search is not None:
        if cap is None:
            cap = USUAL
        return entry.search(wanted, speed or Rates(), cap=cap, release=release)
    if cap is not None:
        searched = " or ".join(each.name for each in CATALOG.values() if each.search is not None)
        rule = f"{entry.name} holds what its order holds and takes no cap"
        raise InputError(Fault(f"cap = {cap}", rule, f"leave it out, or take {searched}"))
    return entry.build(wanted)
