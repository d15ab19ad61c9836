"""The schedule that a user asks for: a name of the catalog with its sizes, or a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError, nearest
from .options import COUNT, together

if TYPE_CHECKING:
    from ..core.costs import Rates
    from ..core.exchange import Exchange
    from ..core.schedule import Schedule, Shape

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was said about the size of a pipeline; None where nothing was."""

    ranks: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    group: int | None = None
    slices: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said about memory.

    Args:
        release: when a split backward frees activations: ``w``, ``half`` or ``i``.
        cap: activations that each rank may hold, which a searched schedule keeps; None for its default.
    """

    release: str = "w"
    cap: str | None = None


_UNSAID = Memory()

_OPTIONS = (
    (("-p", "--ranks"), "Ranks of the pipeline."),
    (("-m", "--microbatches"), "Micro-batches per step."),
    (("-v", "--chunks"), "Stages on each rank.  [default: what the schedule has]"),
    (("--group",), "Micro-batches that pass a chunk before the next has its turn."),
    (("--slices",), "Parts into which the sequence of a micro-batch is cut."),
)


def size_options(command: Command) -> Command:
    """Add the options that say how big a pipeline is; the command takes them as ``sizes``, a ``Sizes``."""

    @wraps(command)
    def with_sizes(*args: Any, **given: Any) -> Any:
        sizes = Sizes(**{field.name: given.pop(field.name) for field in fields(Sizes)})
        return command(*args, sizes=sizes, **given)

    for names, sentence in reversed(_OPTIONS):
        with_sizes = click.option(*names, type=COUNT, help=sentence)(with_sizes)
    return with_sizes


def memory_options(command: Command) -> Command:
    """Add ``--release`` and ``--memory``; the command takes them as ``memory``, a ``Memory``."""

    @wraps(command)
    def with_memory(*args: Any, release: str, memory: str | None, **given: Any) -> Any:
        return command(*args, memory=Memory(release, memory), **given)

    cap = "Most activations on a rank, for zb-auto and zb-v-auto: 6, 1p, 1.5p or one for each rank.  [default: 1p]"
    with_memory = click.option("--memory", metavar="CAP", help=cap)(with_memory)
    return click.option(
        "--release",
        type=click.Choice(["w", "half", "i"]),
        default="w",
        show_default=True,
        help="When a split backward frees activations: at W, half at I and half at W, or at I.",
    )(with_memory)


def schedule_of(name: str, sizes: Sizes, rates: Rates | None = None, memory: Memory = _UNSAID) -> Schedule:
    """The schedule that a name or a path means.

    Args:
        name: as in the catalog, the path of a torch CSV file, or ``module:Class`` of a torch schedule.
        sizes: of the pipeline; a file knows its own.
        rates: how long ops take, for schedules that are searched; None for the defaults.
        memory: what such a schedule may hold.

    Raises:
        InputError: no such schedule, or sizes or a cap that are missing or do not suit it; all faults at once.
    """
    is_file = name.endswith(".csv") or Path(name).is_file()
    if memory.cap is not None and (is_file or ":" in name):
        fault = Fault(f"memory = {memory.cap}", f"{name} is an order already and takes no cap", "leave it out")
        raise InputError(fault)
    if is_file:
        return _from_file(name, sizes)
    if ":" in name:
        return _from_class(name, sizes)
    from ..core.memory import Release
    from ..schedules.auto.searched import ENTRIES, build

    def known() -> None:
        if name not in ENTRIES:
            raise nearest(name, ENTRIES, "schedule")

    _, shape = together(known, lambda: shape_of(sizes))
    return build(name, shape, rates, cap=memory.cap, release=Release(memory.release))


def exchange_of(name: str, schedule: Schedule) -> Exchange | None:
    """Where the sends and receives of a file stand; None of any other schedule, and of a file that does not say.

    Raises:
        InputError: transfers from, to or of what is not there.
    """
    if schedule.source != name or not Path(name).is_file():
        return None
    from ..core.laws import violations
    from ..readers import torch_csv

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


def shape_of(sizes: Sizes) -> Shape:
    """The shape that was asked for.

    Raises:
        InputError: ranks or micro-batches are missing, or there are more ops than memory holds.
    """
    from ..core.schedule import Shape

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
    return Shape(**said)


def _from_file(path: str, sizes: Sizes) -> Schedule:
    from ..readers import torch_csv

    schedule = torch_csv.read(path)
    chunks = schedule.stages / schedule.ranks
    holds = {"ranks": schedule.ranks, "microbatches": schedule.microbatches, "chunks": chunks, "slices": 1}
    faults = [
        Fault(f"{name} = {value}", f"{path} has {held:g}", "leave it out")
        for name, held in holds.items()
        if (value := getattr(sizes, name)) is not None and value != held
    ]
    if sizes.group is not None:
        faults.append(Fault(f"group = {sizes.group}", "a file has its order already", "leave it out"))
    if faults:
        raise InputError(*faults)
    return schedule
