"""Op tables, CSV or Parquet: one row an op, so that any tracer can be read; docs/op-tables.md says how to write one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..reconstruct.device_ops import RankOps, Reading, Transfers
from .columns import NUMBERS, classify, nanoseconds_a_unit, nanoseconds_of, time_column, whole_numbers
from .run_files import faults_alike, left_out, source_of, why_unreadable
from .stream import first_bytes, place
from .table_chunks import Chunk, Column, Skipped, Words, csv_chunks, parquet_chunks, texts_of

UNKNOWN = -1
_WIDEST = (1 << 31) - 1

Columns = dict[str, NDArray[Any]]


def read_tables(paths: Sequence[Path], mapping: dict[str, str] | None = None) -> Reading:
    """Read the tables of one run; one that cannot be read costs itself, and is named.

    Raises:
        InputError: none of them can be read.
    """
    readings: list[Reading] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            readings.append(read_table(path, mapping))
        except InputError as error:
            faults += error.faults
        except Exception as error:  # whatever a stranger's table holds, it costs this file and not the run
            rule = f"its content is not what a table of ops holds ({type(error).__name__}: {error})"
            faults.append(Fault(str(path), rule, "see docs/op-tables.md"))
    if not readings:
        raise InputError(*faults_alike(faults))
    devices: list[RankOps] = []
    remarks: list[str] = []
    for reading in readings:
        devices += reading.devices
        remarks += reading.remarks
    remarks += left_out((fault.value, fault.rule) for fault in faults)
    return Reading(source_of(paths), tuple(devices), tuple(remarks))


def read_table(path: Path | str, mapping: dict[str, str] | None = None) -> Reading:
    """Read an op table into one ``RankOps`` a device.

    Rows that cannot be read are left out; a remark counts them and names the first.

    Args:
        path: a CSV file, plain or gzip, or a Parquet file (needs the extra ``arrow``).
        mapping: our column names to the table's, as ``columns.parse_mapping`` reads them.

    Raises:
        InputError: no table, a column that is needed is missing, or no row is left.
    """
    path, source, mapping = place(path), str(path), mapping or {}
    skipped: list[Skipped] = []
    remarks: list[str] = []
    parts: list[Columns] = []
    try:
        # By its content, not its name: tables are called anything.
        magic = first_bytes(path, 4)
        if not magic:
            raise InputError(Fault(source, "the file is empty", "export it again"))
        chunks = csv_chunks(path, mapping, skipped, remarks)
        if magic == b"PAR1":
            chunks = parquet_chunks(path, mapping)
        for chunk in chunks:
            parts.append(_typed(chunk, skipped))
    except OSError as error:
        raise InputError(Fault(source, why_unreadable(error), "give a table")) from error
    columns = _joined(parts)
    remarks += _remarks(skipped, source)
    if not (columns and (columns["kind"] >= 0).any()):
        why = "; ".join(remarks) or "no word of its column op means F, I, W or B"
        raise InputError(Fault(source, f"no row can be used: {why}", "see docs/op-tables.md"))
    return Reading(source, tuple(_devices(columns, source)), tuple(remarks))


def _joined(parts: list[Columns]) -> Columns:
    """The chunks as one, column by column: each is dropped from its chunks as soon as it is joined."""
    columns: Columns = {}
    if not parts:
        return columns
    for name in list(parts[0]):
        columns[name] = np.concatenate([part.pop(name) for part in parts])
    for name in NUMBERS:  # one number stands for a column that the table does not have: no memory is spent on it
        columns.setdefault(name, np.broadcast_to(np.int64(UNKNOWN), len(columns["kind"])))
    return columns


def _typed(chunk: Chunk, skipped: list[Skipped]) -> Columns:
    """Numbers and nanoseconds instead of text, without the rows that have none."""
    raw = chunk.columns
    rows = len(raw["op"])
    usable = np.ones(rows, bool)

    def drop(bad: NDArray[np.bool_], reason: str, column: str = "") -> None:
        bad &= usable
        if bad.any():
            row, cell = int(bad.argmax()), ""
            if column:
                cell = f" ({column} = {str(texts_of(raw[column])[row])[:40]!r})"
            skipped.append(Skipped(reason, int(bad.sum()), int(chunk.line[row]), cell))
            usable[bad] = False

    columns: Columns = {}
    for name in NUMBERS:
        if name in raw:
            columns[name], bad = whole_numbers(_plain(raw[name]), UNKNOWN)
            drop(bad, f"its {name} is no whole number", name)
            if name == "rank":
                drop(columns[name] < 0, "it has no rank")
    for time in ("start", "end", "duration"):
        if column := time_column(time, raw):
            columns[time], bad = nanoseconds_of(_plain(raw[column]), nanoseconds_a_unit(column))
            drop(bad, f"its {time} is no time", column)
    if "end" not in columns:
        columns["end"] = columns["start"] + columns["duration"]
    # Times that could not be read are 0 by now, and out already: each row is dropped for one reason.
    drop(columns["end"] < columns["start"], "it ends before it starts")
    columns.pop("duration", None)
    columns["kind"], columns["send"], columns["forward"] = _meanings(raw["op"])
    whole = bool(usable.all())
    for name, cells in columns.items():
        if not whole:
            cells = cells[usable]
        if name in NUMBERS:
            cells = _narrow(cells)
        columns[name] = cells
    return columns


def _plain(column: Column) -> NDArray[Any] | list[str]:
    if isinstance(column, Words):
        return list(texts_of(column))
    return column


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """A column of small numbers in half the memory; chunks of both widths join to the wider one."""
    if len(column) and (column.max() > _WIDEST or column.min() < -_WIDEST):
        return column
    return column.astype(np.int32)


def _meanings(words: Column) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.int8]]:
    """Kind, whether it sends, and direction of each row, -1 where it has none, int8[rows] each."""
    if not isinstance(words, Words):
        said = texts_of(words)
        number: dict[Any, int] = {}
        for word in said:
            number.setdefault(word, len(number))
        words = Words(list(number), np.fromiter(map(number.__getitem__, said), np.int64, len(said)))
    table = np.full((max(len(words.known), 1), 3), UNKNOWN, np.int8)
    for i, word in enumerate(words.known):
        text = str(word, "utf-8", "replace") if isinstance(word, bytes) else str(word)
        kind, send, table[i, 2] = classify(text)
        if kind is not None:
            table[i, 0] = kind
        if send is not None:
            table[i, 1] = send
    return table[words.number, 0], table[words.number, 1], table[words.number, 2]


def _devices(columns: Columns, source: str) -> Iterator[RankOps]:
    rank = _ranks(columns)
    # Stable: rows of one device stay in the order of the file, which tells micro-batches without labels.
    order = np.argsort(rank, kind="stable")
    spans = _spans(columns)
    rank = rank[order]
    begins = np.flatnonzero(np.diff(rank, prepend=-2))
    # A column is sorted and takes the place of the one before: devices are slices of it, and nothing is held twice.
    for name, column in columns.items():
        if column.strides[0]:
            columns[name] = column[order]
    del order
    for begin, end in pairwise([*begins.tolist(), len(rank)]):
        rows = {name: column[begin:end] for name, column in columns.items()}
        yield _device(int(rank[begin]), rows, source, spans)


def _taken(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Some rows of each column; of one that the table does not have still a single number."""
    absent = np.broadcast_to(np.int64(UNKNOWN), len(rows))
    return {name: column[rows] if column.strides[0] else absent for name, column in columns.items()}


def _spans(columns: Columns) -> dict[int, dict[int, int]]:
    """Length of each replica's steps, from the first start to the last end of all that its devices did.

    Only where the table holds more than F, I, W, B and transfers: those alone do not show a whole step.
    """
    outside = (columns["kind"] < 0) & (columns["send"] < 0)
    if not outside.any():
        return {}
    order = np.lexsort((columns["step"], columns["replica"]))
    replica, step = columns["replica"][order], columns["step"][order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(replica) != 0)]))
    last_end = np.maximum.reduceat(columns["end"][order], first)
    lengths = last_end - np.minimum.reduceat(columns["start"][order], first)
    found: dict[int, dict[int, int]] = {}
    for q, number, length in zip(replica[first].tolist(), step[first].tolist(), lengths.tolist(), strict=True):
        if number >= 0:
            found.setdefault(q, {})[number] = length
    return found


def _ranks(columns: Columns) -> NDArray[np.int64]:
    """The device of each row: its rank, or one a position and replica, or one a stage."""
    # A rank is a device for certain; a position with a replica is one, too; a stage only if nothing else is said.
    if (columns["rank"] >= 0).any():
        return columns["rank"]
    where = columns["position"]
    if not (where >= 0).any():
        where = columns["stage"]
    pairs = np.stack([columns["replica"], where])
    rank: NDArray[np.int64] = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    return rank


def _device(rank: int, rows: Columns, source: str, spans: dict[int, dict[int, int]]) -> RankOps:
    work, moves = np.flatnonzero(rows["kind"] >= 0), rows["send"] >= 0

    only = rows
    if len(work) < len(rows["kind"]):  # else nothing is copied
        only = _taken(rows, work)

    def known(name: str) -> NDArray[np.int32] | None:
        column = only[name]
        if column.min(initial=0) < 0:
            return None
        return column.astype(np.int32, copy=False)

    def one(name: str) -> int | None:
        column = only[name]
        if not len(column) or column.max() < 0:
            return None
        low, high = int(column.min()), int(column.max())
        if low != high:
            rule = f"a device has one {name}; rank {rank} has {low} and {high}"
            raise InputError(Fault(f"{source}: column {name}", rule, "name the right column with --columns"))
        return low

    return RankOps(
        rank=rank,
        source=source,
        step=only["step"].astype(np.int64),
        kind=only["kind"].view(np.uint8),  # no op is below 0
        start=only["start"],
        end=only["end"],
        stage=known("stage"),
        chunk=known("chunk"),
        unit=known("microbatch"),
        position=one("position"),
        replica=one("replica"),
        step_ns=spans.get(int(rows["replica"][0]), {}),
        transfers=_transfers(rows, np.flatnonzero(moves)) if moves.any() else None,
    )


def _transfers(rows: Columns, moves: NDArray[np.int64]) -> Transfers:
    moves = moves[np.lexsort((rows["end"][moves], rows["start"][moves]))]
    return Transfers(
        step=rows["step"][moves].astype(np.int64),
        send=rows["send"][moves] > 0,
        forward=rows["forward"][moves],
        peer=rows["peer"][moves].astype(np.int32),
        start=rows["start"][moves],
        end=rows["end"][moves],
    )


def _remarks(skipped: list[Skipped], source: str) -> Iterator[str]:
    first: dict[str, Skipped] = {}
    count: Counter[str] = Counter()
    for skip in skipped:
        first.setdefault(skip.reason, skip)
        count[skip.reason] += skip.count
    for reason, skip in first.items():
        rows = f"{count[reason]:,} rows"
        if count[reason] == 1:
            rows = "1 row"
        yield f"{source}: {rows} left out, the first in line {skip.line}: {reason}{skip.cell}"
