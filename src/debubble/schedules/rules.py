"""What a schedule asks of a shape, and the error that names every fault and the nearest values that would do."""

from __future__ import annotations

from ..core.errors import Fault, InputError
from ..core.schedule import Shape

TWO_COPIES = "it has no place for two copies of a stage"  # why PyTorch cannot run a two-way schedule
_OPTIONS = {"group": (None, "leaves the group size no choice"), "slices": (1, "does not cut sequences into slices")}


def check(
    name: str, shape: Shape, *faults: Fault | None, chunks: int | None = 1, takes: frozenset[str] = frozenset()
) -> None:
    """Compare a shape with what a schedule needs.

    Args:
        name: of the schedule, for the message.
        shape: what was asked for.
        *faults: what the schedule found by itself; None is no fault.
        chunks: chunks a rank that the schedule has; None where any number will do.
        takes: which of ``group`` and ``slices`` it lets a shape choose.

    Raises:
        InputError: with all faults, those given and those found here.
    """
    found = [fault for fault in faults if fault is not None]
    if chunks is not None and shape.chunks != chunks:
        found.append(Fault(f"chunks = {shape.chunks}", f"{name} has {chunks} on each rank", f"give {chunks} or none"))
    for option, (unsaid, rule) in _OPTIONS.items():
        value = getattr(shape, option)
        if option not in takes and value != unsaid:
            found.append(Fault(f"{option} = {value}", f"{name} {rule}", f"leave {option} out"))
    if found:
        raise InputError(*found)


def multiple(option: str, value: int, of: int, rule: str, *, least: int = 1) -> Fault | None:
    """The fault of a value that is not a multiple or too small, with the nearest two that would do; else None."""
    if value % of == 0 and value >= least:
        return None
    lowest = -(-least // of) * of
    below = value // of * of
    near = [below, below + of] if below >= lowest else [lowest]
    return Fault(f"{option} = {value}", rule, f"nearest: {' or '.join(map(str, near))}")


def op_by_op(name: str, shape: Shape, most: int) -> Fault | None:
    """The fault of more ranks x micro-batches than a schedule made op by op gets through in a minute; else None."""
    cells = shape.ranks * shape.microbatches
    if cells <= most:
        return None
    rule = f"{name} is laid out op by op, for up to {most:,} of them"
    remedy = f"give {max(1, most // shape.ranks):,} micro-batches or less"
    return Fault(f"ranks x microbatches = {cells:,}", rule, remedy)
