"""Op tables, CSV or Parquet: one row an op, so that any tracer can be read; docs/op-tables.md says how to write one."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..reconstruct.device_ops import RankOps, Reading, Transfers
from .cells import Column, nanoseconds_of, whole_numbers
from .columns import NUMBERS, classify, nanoseconds_a_unit, resolve, time_column
from .lost_files import faults_alike, left_out
from .places import place
from .stream import first_bytes
from .text_lines import lines

_CHUNK = 1 << 13  # rows that are text at the same time: few enough to stay in the processor's cache
UNKNOWN = -1

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Skipped:
    """Rows of one chunk that cannot be used, for one reason."""

    reason: str
    count: int
    line: int
    cell: str


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Some rows of a table as text or numbers under our names, and the line of each."""

    columns: Mapping[str, Column]
    line: NDArray[np.int64]


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
    lost = left_out((fault.value, fault.rule) for fault in faults)
    return Reading(
        source=str(paths[0]) if len(paths) == 1 else str(paths[0].parent),
        devices=tuple(device for reading in readings for device in reading.devices),
        remarks=(*(remark for reading in readings for remark in reading.remarks), *lost),
    )


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
    skipped: list[_Skipped] = []
    remarks: list[str] = []
    parts: list[Columns] = []
    try:
        magic = first_bytes(path, 4)
        if not magic:
            raise InputError(Fault(source, "the file is empty", "export it again"))
        chunks = _parquet(path, mapping) if magic == b"PAR1" else _csv(path, mapping, skipped, remarks)
        parts = [_typed(chunk, skipped) for chunk in chunks]
    except OSError as error:
        raise InputError(Fault(source, f"it cannot be read: {error.strerror or error}", "give a table")) from error
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    remarks += _remarks(skipped, source)
    if not (columns and (columns["kind"] >= 0).any()):
        why = "; ".join(remarks) or "no word of its column op means F, I, W or B"
        raise InputError(Fault(source, f"no row can be used: {why}", "see docs/op-tables.md"))
    return Reading(source, tuple(_devices(columns, source)), tuple(remarks))


def _parquet(path: Path, mapping: dict[str, str]) -> Iterator[_Chunk]:
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError as error:
        remedy = "install debubble[arrow], or write the table as CSV"
        raise InputError(Fault(str(path), "Parquet is read by pyarrow, which is not installed", remedy)) from error

    def plain(ours: str, column: Any) -> tuple[str, NDArray[Any]]:
        """One column as NumPy under our name; what is null becomes a value that cannot be used."""
        kind = column.type
        if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_duration(kind):
            unit = (pyarrow.timestamp if pyarrow.types.is_timestamp(kind) else pyarrow.duration)("ns")
            column, ours = column.cast(unit).cast(pyarrow.int64()), f"{ours.partition('_')[0]}_ns"
        if pyarrow.types.is_integer(column.type):
            blank = UNKNOWN if ours in NUMBERS else np.iinfo(np.int64).min
            column = compute.fill_null(column.cast(pyarrow.int64()), blank)
        return ours, np.asarray(column.to_numpy(zero_copy_only=False))

    try:
        with path.open("rb") as stream:
            table = parquet.ParquetFile(stream)
            found = resolve(table.schema_arrow.names, mapping, str(path))
            row = 1
            for batch in table.iter_batches(_CHUNK, columns=sorted(set(found.values()))):
                columns = dict(plain(ours, batch.column(theirs)) for ours, theirs in found.items())
                yield _Chunk(columns, np.arange(row, row + batch.num_rows))
                row += batch.num_rows
    except pyarrow.ArrowException as error:
        raise InputError(Fault(str(path), f"it is not whole Parquet: {error}", "export it again")) from error


def _csv(path: Path, mapping: dict[str, str], skipped: list[_Skipped], remarks: list[str]) -> Iterator[_Chunk]:
    text = lines(path, remarks)
    top = next(text, "")
    separator = max(",;\t", key=top.count)
    header = [name.strip() for name in _cells(top, separator)]
    at = {ours: header.index(theirs) for ours, theirs in resolve(header, mapping, str(path)).items()}
    number = 2
    while some := list(islice(text, _CHUNK)):
        rows = [_cells(line, separator) if '"' in line else line.split(separator) for line in some]
        whole = np.fromiter(map(len, rows), np.int64, len(rows)) == len(header)
        torn = [i for i in np.flatnonzero(~whole).tolist() if some[i] and not some[i].isspace()]
        if torn:
            skipped.append(_Skipped("it has not as many cells as the header", len(torn), number + torn[0], ""))
        cells = list(zip(*compress(rows, whole.tolist()), strict=True)) or [()] * len(header)
        yield _Chunk({ours: list(cells[i]) for ours, i in at.items()}, number + np.flatnonzero(whole))
        number += len(some)


def _cells(line: str, separator: str) -> list[str]:
    """The cells of a line with quotes; one that is never closed costs this line, not the file."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _typed(chunk: _Chunk, skipped: list[_Skipped]) -> Columns:
    """Numbers and nanoseconds instead of text, without the rows that have none."""
    raw = chunk.columns
    rows = len(raw["op"])
    usable = np.ones(rows, bool)

    def drop(bad: NDArray[np.bool_], reason: str, column: str = "") -> None:
        bad &= usable
        if bad.any():
            row = int(bad.argmax())
            cell = f" ({column} = {str(raw[column][row])[:40]!r})" if column else ""
            skipped.append(_Skipped(reason, int(bad.sum()), int(chunk.line[row]), cell))
            usable[bad] = False

    columns: Columns = {}
    for name in NUMBERS:
        if name in raw:
            columns[name], bad = whole_numbers(raw[name], UNKNOWN)
            drop(bad, f"its {name} is no whole number", name)
            if name == "rank":
                drop(columns[name] < 0, "it has no rank")
        else:
            columns[name] = np.full(rows, UNKNOWN, np.int64)
    for time in ("start", "end", "duration"):
        if column := time_column(time, raw):
            columns[time], bad = nanoseconds_of(raw[column], nanoseconds_a_unit(column))
            drop(bad, f"its {time} is no time", column)
    if "end" not in columns:
        columns["end"] = columns["start"] + columns["duration"]
    drop(columns["end"] < columns["start"], "it ends before it starts")
    columns.pop("duration", None)
    columns["kind"], columns["send"], columns["forward"] = _meanings(raw["op"])
    return {name: column[usable] for name, column in columns.items()}


def _meanings(words: Column) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.int8]]:
    """Kind, whether it sends, and direction of each row, -1 where it has none, int8[rows] each."""
    said = words if isinstance(words, list) else words.tolist()
    number = {word: i for i, word in enumerate(dict.fromkeys(said))}
    found = [classify(word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)) for word in number]
    each = [(UNKNOWN if k is None else k, UNKNOWN if s is None else s, forward) for k, s, forward in found]
    table = np.array(each, np.int8).reshape(-1, 3)[np.fromiter(map(number.__getitem__, said), np.int64, len(said))]
    return table[:, 0], table[:, 1], table[:, 2]


def _devices(columns: Columns, source: str) -> Iterator[RankOps]:
    rank = _ranks(columns)
    order = np.argsort(rank, kind="stable")
    spans = _spans(columns)
    for rows in np.split(order, np.flatnonzero(np.diff(rank[order])) + 1):
        mine = {name: column[rows] for name, column in columns.items()}
        yield _device(int(rank[rows[0]]), mine, source, spans)


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
    starts, ends = (columns[name][order] for name in ("start", "end"))
    lengths = np.maximum.reduceat(ends, first) - np.minimum.reduceat(starts, first)
    found: dict[int, dict[int, int]] = {}
    for q, number, length in zip(replica[first].tolist(), step[first].tolist(), lengths.tolist(), strict=True):
        if number >= 0:
            found.setdefault(q, {})[number] = length
    return found


def _ranks(columns: Columns) -> NDArray[np.int64]:
    """The device of each row: its rank, or one a position and replica, or one a stage."""
    if (columns["rank"] >= 0).any():
        return columns["rank"]
    where = columns["position"] if (columns["position"] >= 0).any() else columns["stage"]
    pairs = np.stack([columns["replica"], where])
    rank: NDArray[np.int64] = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    return rank


def _device(rank: int, rows: Columns, source: str, spans: dict[int, dict[int, int]]) -> RankOps:
    work, moves = rows["kind"] >= 0, rows["send"] >= 0

    def known(name: str) -> NDArray[np.int32] | None:
        column = rows[name][work]
        return None if (column < 0).any() else column.astype(np.int32)

    def one(name: str) -> int | None:
        values = np.unique(rows[name][work])
        if len(values) > 1:
            rule = f"a device has one {name}; rank {rank} has {values[0]} and {values[1]}"
            raise InputError(Fault(f"{source}: column {name}", rule, "name the right column with --columns"))
        return int(values[0]) if len(values) and values[0] >= 0 else None

    return RankOps(
        rank=rank,
        source=source,
        step=rows["step"][work],
        kind=rows["kind"][work].astype(np.uint8),
        start=rows["start"][work],
        end=rows["end"][work],
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
        step=rows["step"][moves],
        send=rows["send"][moves] > 0,
        forward=rows["forward"][moves],
        peer=rows["peer"][moves].astype(np.int32),
        start=rows["start"][moves],
        end=rows["end"][moves],
    )


def _remarks(skipped: list[_Skipped], source: str) -> Iterator[str]:
    for reason in dict.fromkeys(skip.reason for skip in skipped):
        same = [skip for skip in skipped if skip.reason == reason]
        count = sum(skip.count for skip in same)
        rows = "1 row" if count == 1 else f"{count:,} rows"
        yield f"{source}: {rows} left out, the first in line {same[0].line}: {reason}{same[0].cell}"
