"""Columns of an op table: what they are called, in which unit their times are, and which word means which op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.errors import Fault, InputError, nearest
from ..core.op import Kind
from .op_names import read_name

UNITS = {"_ns": 1.0, "_us": 1e3, "_ms": 1e6, "_s": 1e9, "": 1e6}  # nanoseconds; bare is ms, as on the command line
TIMES = ("start", "end", "duration")
NUMBERS = ("rank", "step", "stage", "chunk", "microbatch", "position", "replica", "peer")
KNOWN = (*NUMBERS, "op", *(f"{time}{unit}" for time in TIMES for unit in UNITS))

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
        ours, equals, theirs = (piece.strip() for piece in part.partition("="))
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
    absent = [f"{ours}={theirs}" for ours, theirs in mapping.items() if theirs not in header]
    faults = [
        Fault(f"--columns {pair}", f"{source} has no such column", f"it has {', '.join(header[:30])}")
        for pair in absent
    ]
    if not mapping:
        mapping = next((shipped for shipped in SHIPPED.values() if set(shipped.values()) <= set(header)), {})
    found = dict(mapping)
    taken = set(mapping.values())
    for ours in KNOWN:
        if ours not in found and not _same_time(ours, found):
            names = (ours, *_ALSO.get(ours, ()))
            theirs = next((name for name in header if name not in taken and name.strip().lower() in names), None)
            if theirs is not None:
                found[ours] = theirs
                taken.add(theirs)
    faults += [
        Fault(f"{source}: column {name}", "several columns have this name", "give each one of its own")
        for name in dict.fromkeys(found.values())
        if list(header).count(name) > 1
    ]
    faults += _missing(found, header, source)
    if faults:
        raise InputError(*faults)
    return found


def time_column(time: str, columns: Iterable[str]) -> str | None:
    """The one of our columns that holds ``start``, ``end`` or ``duration``, with its unit; None where none does."""
    return next((name for name in columns if name in {f"{time}{unit}" for unit in UNITS}), None)


def nanoseconds_a_unit(column: str) -> float:
    """How many nanoseconds one unit of a time column is, by the ending of its name."""
    return next(scale for unit, scale in UNITS.items() if column.endswith(unit))


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
    return [
        Fault(f"{source}: column {name}", f"an op table needs it; this one has {has}", "name yours with --columns")
        for name, there in needed.items()
        if not there
    ]
