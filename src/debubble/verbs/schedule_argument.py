"""The schedule that a user asks for: a name of the catalog with its sizes, a file, a class of torch, or a schedule."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError
from ..core.laws import violations
from ..core.limits import MOST_CHUNKS, MOST_SHOWN_OPS, beyond
from ..core.memory import Release
from ..core.schedule import Schedule, Shape
from ..readers import torch_csv
from ..schedules.catalog import build, called, entry_of
from .arguments import together

if TYPE_CHECKING:
    from ..core.costs import Rates
    from ..core.exchange import Exchange

Named = str | PathLike[str] | Schedule


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was said about the size of a pipeline; None where nothing was."""

    ranks: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    group: int | None = None
    slices: int | None = None


def schedule_of(
    named: Named,
    sizes: Sizes,
    rates: Rates | None = None,
    *,
    cap: str | None = None,
    release: str = "w",
    most: int = MOST_SHOWN_OPS,
) -> Schedule:
    """The schedule that a name or a path means.

    Args:
        named: as in the catalog, the path of a torch CSV file, ``module:Class`` of a torch schedule, or a schedule.
        sizes: of the pipeline; a file and a schedule know their own.
        rates: how long ops take, for schedules that are searched; None for the defaults.
        cap: activations that each rank may hold, which a searched schedule keeps; None for its default.
        release: when a split backward frees them: ``w``, ``half`` or ``i``.
        most: ops that the verb does.

    Raises:
        InputError: no such schedule, or sizes or a cap that are missing or do not suit it; all faults at once.
    """
    name = named.name if isinstance(named, Schedule) else fspath(named)
    is_file = name.endswith(".csv") or Path(name).is_file()
    ordered = isinstance(named, Schedule) or is_file or ":" in name
    if cap is not None and ordered:
        raise InputError(Fault(f"cap = {cap}", f"{name} is an order already and takes no cap", "leave it out"))
    if isinstance(named, Schedule):
        return _of_its_own(named, sizes, "the schedule")
    if is_file:
        return _of_its_own(torch_csv.read(name), sizes, name)
    if ":" in name:
        return _from_class(name, sizes)

    together(lambda: entry_of(name), lambda: shape_of(sizes, most))
    entry = entry_of(name)
    if sizes.chunks == 1 and entry.chunks > 1:
        rule = f"{entry.name} has several on each rank"
        raise InputError(Fault("chunks = 1", rule, f"give {entry.chunks} or none"))
    return build(entry.name, shape_of(sizes, most), rates, cap=cap, release=Release(release))


def suited(named: Named, sizes: Sizes) -> Sizes:
    """The sizes as far as a schedule takes them: of two schedules side by side, one may have chunks and one not."""
    entry = None if isinstance(named, Schedule) else called(fspath(named))
    if entry is None or sizes.chunks is None or entry.any_chunks or entry.chunks == sizes.chunks:
        return sizes
    return replace(sizes, chunks=None)


def exchange_of(named: Named, schedule: Schedule) -> Exchange | None:
    """Where the sends and receives of a file stand; None of any other schedule, and of a file that does not say.

    Raises:
        InputError: transfers from, to or of what is not there.
    """
    if isinstance(named, Schedule):
        return None
    name = fspath(named)
    if schedule.source != name or not Path(name).is_file():
        return None
    if violations(schedule):  # then its transfers lead nowhere, and the laws say why
        return None
    placed = torch_csv.read_with_transfers(name)[1]
    return placed if placed.act.any() else None


def _from_class(spec: str, sizes: Sizes) -> Schedule:
    shape = shape_of(sizes)
    try:
        from ..runner.torch_schedules import read_class
    except ImportError as error:
        rule = f"only PyTorch can say what its class does: {error}"
        raise InputError(Fault(f"schedule = {spec}", rule, "pip install 'debubble[torch]'")) from error
    return read_class(spec, shape)


def shape_of(sizes: Sizes, most: int = MOST_SHOWN_OPS) -> Shape:
    """The shape that was asked for.

    Args:
        sizes: of the pipeline.
        most: ops that the verb does.

    Raises:
        InputError: ranks or micro-batches are missing, or there are more ops than memory holds.
    """
    missing = [
        Fault(option, "a schedule of the catalog needs to know", f"give {example}")
        for option, example, value in (
            ("--ranks", "-p 4", sizes.ranks),
            ("--microbatches", "-m 8", sizes.microbatches),
        )
        if value is None
    ]
    if missing:
        raise InputError(*missing)
    said = {field.name: value for field in fields(sizes) if (value := getattr(sizes, field.name)) is not None}
    shape = Shape(**said)
    what = f"ops of {shape.stages} stages x {shape.units} micro-batches"
    remedy = (
        f"the bubble hardly changes beyond {100 * shape.ranks} micro-batches, nor its share beyond some hundred ranks"
    )
    faults = beyond(what, 2 * shape.stages * shape.units, most, remedy) + beyond("chunks", shape.chunks, MOST_CHUNKS)
    if faults:
        raise InputError(*faults)
    return shape


def _of_its_own(schedule: Schedule, sizes: Sizes, where: str) -> Schedule:
    """An order that is there already, if nothing that was said of it contradicts it."""
    chunks = schedule.stages / schedule.ranks
    holds = {"ranks": schedule.ranks, "microbatches": schedule.microbatches, "chunks": chunks, "slices": 1}
    faults = [
        Fault(f"{name} = {value}", f"{where} has {held:g}", "leave it out")
        for name, held in holds.items()
        if (value := getattr(sizes, name)) is not None and value != held
    ]
    if sizes.group is not None:
        faults.append(Fault(f"group = {sizes.group}", f"{where} has its order already", "leave it out"))
    if faults:
        raise InputError(*faults)
    return schedule
