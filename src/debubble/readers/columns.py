"""Columns of an op table: their names, the units of their times, which word means which op, and cells as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, nearest
from ..core.schedule import Kind
from .op_names import read_name

UNITS = {"_ns": 1.0, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}  # nanoseconds; bare is ms, as on the command line
TIMES = ("start", "end", "duration")
NUMBERS = ("rank", "step", "stage", "chunk", "microbatch", "position", "replica", "peer")
_SPELLED = {time: [f"{time}{unit}" for unit in UNITS] for time in TIMES}
KNOWN = (*NUMBERS, "op", *chain.from_iterable(_SPELLED.values()))

Column = NDArray[Any] | list[str]  # numbers of a binary table, or the text of a CSV

_EXACT = 2.0**53  # whole numbers beyond this need more than a float
_SCALED = 2.0**51  # and products of a float, which was rounded itself, beyond this
_MOST = 2.0**61  # nanoseconds (73 years) that still can be added up

_ALSO = {  # what other tracers call the same column
    "op": ("kind", "optype", "op_type"),
    "step": ("iteration", "iter"),
    "chunk": ("model_chunk", "virtual_stage"),
    "microbatch": ("micro_batch", "micro-batch", "mb", "mb_id", "microbatch_id"),
    "position": ("pp_rank", "pipeline_rank"),
    "replica": ("dp", "dp_rank"),
}

# Tables whose columns bear other names, recognised by them. ByteDance's is the one of its StragglerAnalysis artifact
# (https://github.com/ByteDance-Seed/StragglerAnalysis): its stage is a rank's place in the pipeline, mc its chunk.
SHIPPED = {
    "bytedance": {
        "position": "stage",
        "chunk": "mc",
        "op": "optype",
        "start_s": "start_ts",
        "duration_s": "duration",
        "microbatch": "mb_id",
        "replica": "dp_rank",
        "rank": "rank",
        "step": "step",
    }
}


def parse_mapping(text: str) -> dict[str, str]:
    """Read ``op=what,start_us=begin``, or the name of a shipped mapping, as our column to theirs.

    Raises:
        InputError: a part is not ``ours=theirs``, or no column of ours has that name.
    """
    if text in SHIPPED:
        return dict(SHIPPED[text])
    mapping: dict[str, str] = {}
    faults: list[Fault] = []
    for part in text.split(","):
        ours, equals, theirs = map(str.strip, part.partition("="))
        if not equals or not theirs:
            faults.append(Fault(f"--columns {part!r}", "a part is our column = yours", "write op=what,start_us=begin"))
        elif ours not in KNOWN:
            faults += nearest(ours, KNOWN, "column").faults
        else:
            mapping[ours] = theirs
    if faults:
        raise InputError(*faults)
    return mapping


def resolve(header: Sequence[str], mapping: dict[str, str], source: str) -> dict[str, str]:
    """Which column of a table serves as which of ours.

    Args:
        header: the table's own column names.
        mapping: our column to theirs, as the user gave it; may be empty.
        source: path of the table, for errors.

    Raises:
        InputError: a mapped column does not exist, or one that is needed is missing; all at once.
    """
    faults: list[Fault] = []
    for ours, theirs in mapping.items():
        if theirs not in header:
            has = f"it has {', '.join(header[:30])}"
            faults.append(Fault(f"--columns {ours}={theirs}", f"{source} has no such column", has))
    found = dict(mapping or _shipped(header))
    by_name: dict[str, str] = {}  # the table's columns that are free, by their names in lower case; the first of two
    for theirs in header:
        if theirs not in found.values():
            by_name.setdefault(theirs.strip().lower(), theirs)
    for ours in KNOWN:
        for name in (ours, *_ALSO.get(ours, ())):
            if name in by_name and ours not in found and not _same_time(ours, found):
                found[ours] = by_name.pop(name)
    times = Counter(header)
    for theirs in dict.fromkeys(found.values()):
        if times[theirs] > 1:
            rule = "several columns have this name"
            faults.append(Fault(f"{source}: column {theirs}", rule, "give each one of its own"))
    faults += _missing(found, header, source)
    if faults:
        raise InputError(*faults)
    return found


def _shipped(header: Sequence[str]) -> dict[str, str]:
    """The mapping of a tracer that we know by the names of all its columns."""
    for mapping in SHIPPED.values():
        if set(mapping.values()) <= set(header):
            return mapping
    return {}


def time_column(time: str, columns: Iterable[str]) -> str | None:
    """The one of our columns that holds ``start``, ``end`` or ``duration``, with its unit; None where none does."""
    for name in columns:
        if name in _SPELLED[time]:
            return name
    return None


def nanoseconds_a_unit(column: str) -> float:
    """How many nanoseconds one unit of a time column is, by the ending of its name."""
    for unit, scale in UNITS.items():
        if column.endswith(unit):  # the empty one, which is milliseconds, comes last
            return scale
    raise ValueError(column)


def classify(word: str) -> tuple[Kind | None, bool | None, int]:
    """What a word of the column ``op`` means.

    ``F``, ``forward-compute`` and ``bwd`` are work; ``forward-send`` and ``recv`` are transfers; anything else
    (an optimizer, an all-reduce) only lengthens its step.

    Returns:
        The kind of work or None; whether it sends, or None where it does not transfer; 1 where a transfer carries
        activations, 0 for gradients, -1 where the word does not say.
    """
    said = read_name(word)
    return said.kind, said.send, said.forward


def _same_time(ours: str, found: dict[str, str]) -> bool:
    """Whether a time is there already in another unit."""
    return any(ours.startswith(time) and time_column(time, found) for time in TIMES)


def _missing(found: dict[str, str], header: Sequence[str], source: str) -> list[Fault]:
    needed = {
        "op": "op" in found,
        "start": time_column("start", found) is not None,
        "end or duration": bool(time_column("end", found) or time_column("duration", found)),
        "rank, position or stage": bool(found.keys() & {"rank", "position", "stage"}),
    }
    has = ", ".join(name[:40] for name in header[:30])
    faults = []
    for name, there in needed.items():
        if not there:
            rule = f"an op table needs it; this one has {has}"
            faults.append(Fault(f"{source}: column {name}", rule, "name yours with --columns"))
    return faults


# Cells as integers: counts, and times in nanoseconds that keep every digit.


def whole_numbers(column: Column, blank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of text or numbers as whole numbers.

    Args:
        column: [rows].
        blank: what an empty cell counts as.

    Returns:
        int64[rows], and bool[rows] with True where a cell is something else than a whole number.
    """
    whole = _integers(column)
    if whole is not None:
        return whole, np.zeros(len(whole), bool)
    values = _floats(column)
    empty = np.isnan(values) & _is_blank(column)
    bad = ~empty & ~((np.abs(values) < _EXACT) & (values == np.rint(values)))
    return np.where(empty | bad, blank, np.where(bad | empty, 0, values)).astype(np.int64), bad


def nanoseconds_of(column: Column, scale: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of times, to the nanosecond even where they count from 1970.

    Args:
        column: text or numbers, [rows].
        scale: nanoseconds in one unit.

    Returns:
        int64[rows], and bool[rows] with True where a cell is empty, not a number, or beyond 73 years.
    """
    whole = _integers(column)
    if whole is not None:
        bad = (whole > _MOST / scale) | (whole < -_MOST / scale)
        return np.where(bad, 0, whole) * int(scale), bad
    values = _floats(column) * scale
    bad = ~(np.abs(values) < _MOST)
    nanoseconds = np.rint(np.where(bad, 0, values)).astype(np.int64)
    if isinstance(column, list):
        # Seconds since 1970 with nine digits of fraction have more than a double holds: read once more, exactly.
        for row in np.flatnonzero(~bad & (np.abs(values) >= _SCALED)):
            nanoseconds[row] = int((Decimal(column[row].strip()) * int(scale)).to_integral_value())
    return nanoseconds, bad


def _integers(column: Column) -> NDArray[np.int64] | None:
    """A column of nothing but integers; None for any other."""
    if not isinstance(column, list):
        if column.dtype.kind in "iub":
            return column.astype(np.int64)
        return None
    try:
        return np.fromiter(map(int, column), np.int64, len(column))
    except (ValueError, OverflowError):
        return None


def _floats(column: Column) -> NDArray[np.float64]:
    """Cells as floats, NaN where they are none."""
    if not isinstance(column, list):
        if column.dtype.kind == "f":
            return column.astype(np.float64)
        return np.full(len(column), np.nan)
    try:
        return np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        return np.fromiter(map(_float, column), np.float64, len(column))


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _is_blank(column: Column) -> NDArray[np.bool_]:
    if not isinstance(column, list):
        return np.ones(len(column), bool)  # a NaN among numbers is how tables write nothing
    return np.array([not cell.strip() for cell in column], bool)
