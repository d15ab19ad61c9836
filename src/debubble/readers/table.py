"""Op tables, CSV or Parquet: one row an op, so that any tracer can be read; docs/op-tables.md says how to write one.

A table of megabytes is decoded by columns, some rows at a time: by pyarrow if it is installed, else by NumPy. Both take
only stretches without a doubt; a stretch that holds a quote, an empty or odd cell, or a torn row is split in plain
Python, which knows how to leave out one row and say why. So what is found never depends on what is installed.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..reconstruct.device_ops import RankOps, Reading, Transfers
from .columns import NUMBERS, classify, nanoseconds_a_unit, nanoseconds_of, resolve, time_column, whole_numbers
from .files import LONGEST, blocks, faults_alike, first_bytes, left_out, place, source_of, why_unreadable

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


Ints = NDArray[np.int64]

_PLAIN_ROWS = 1 << 13  # that are text at the same time: few enough to stay in the processor's cache
_ROWS = 1 << 17  # of a binary table at the same time
_LONGEST_WORD = 40  # bytes of a word of ``op`` that NumPy's reader keeps; a longer one is read in plain Python
# Of a file: 2 GB of columns; an op takes a microsecond or more, so this is half a minute of one rank.
MOST_ROWS = 1 << 25
# Quotes, and what one reader of numbers takes and another one does not (0x10, 1_000): single bytes are found fast.
_UNLIKE = (b'"', b"_", b"x", b"X")


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A column of words of which few differ: each once, and the number of the word of each row, int[rows]."""

    known: list[Any]
    number: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.number)


Column = NDArray[Any] | list[str] | Words  # numbers, the text of cells, or words


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows of one chunk that cannot be used, for one reason."""

    reason: str
    count: int
    line: int
    cell: str


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some rows of a table under our names, and the line of each."""

    columns: Mapping[str, Column]
    line: Ints


# CSV.


class _Csv:
    """A CSV file while it is read: where it stands, and what it has shown so far.

    Args:
        names: of all columns, by place, as decoders need them: ours where one is used, else a number.
        separator: of cells.
        at: place of each column that is used.
        skipped: gets the rows that are left out.
    """

    def __init__(self, names: list[str], separator: str, at: dict[str, int], skipped: list[Skipped]) -> None:
        self.names, self.separator, self.at, self.skipped = names, separator, at, skipped
        self.line = 2  # number of the next one
        self.whole: set[str] = set()  # times that have had a fraction: they are floats from then on

    def dtype_of(self, name: str) -> str:
        """What a plain cell of a column is: a word, a whole number, or a time with a fraction."""
        if name == "op":
            return f"S{_LONGEST_WORD}"
        if name in self.whole:
            return "f8"
        if name in self.at:
            return "i8"
        return "S1"  # a column that is not used: its first letter is read and thrown away


def csv_chunks(path: Path, mapping: dict[str, str], skipped: list[Skipped], remarks: list[str]) -> Iterator[Chunk]:
    """The rows of a CSV file.

    Args:
        path: plain or gzip.
        mapping: our column names to the file's.
        skipped: gets the rows that are left out.
        remarks: gets a sentence where the file is cut off.

    Raises:
        InputError: a column that is needed is missing.
    """
    texts = _whole_lines(path, remarks)
    first = next(texts, b"")
    top, _, rest = first.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    head = top.decode("utf-8", "replace").rstrip("\r")
    separator = max(",;\t", key=head.count)
    header = [name.strip() for name in _cells(head, separator)]
    at: dict[str, int] = {}
    names = [f"#{i}" for i in range(len(header))]
    for ours, theirs in resolve(header, mapping, str(path)).items():
        at[ours] = header.index(theirs)
        names[at[ours]] = ours
    table = _Csv(names, separator, at, skipped)
    yield from _plain_chunks(rest, table)
    fast = None
    for text in texts:
        if table.line > MOST_ROWS:
            remarks.append(f"{path}: it has more than {MOST_ROWS:,} rows; those behind were left out")
            return
        fast = fast or _fast_reader()  # not before a second megabyte: a small table is done by then
        chunk = None
        if not any(mark in text for mark in _UNLIKE):
            chunk = fast(text, table)
        lines = text.count(b"\n") + (not text.endswith(b"\n"))  # empty ones count
        # Fast readers drop empty lines and round long fractions: if either may have happened, plain Python reads
        # again.
        if chunk is not None and len(chunk.line) == lines and _has_digits(chunk, table):
            yield chunk
            table.line += lines
        else:
            yield from _plain_chunks(text, table)


def _whole_lines(path: Path, remarks: list[str]) -> Iterator[bytes]:
    """The text of a file in stretches of about a megabyte that end where a line does."""
    rest = b""
    for block in blocks(path, remarks):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest = (rest + block)[:LONGEST]  # no table has a line as long: its end is of no use
    if rest:
        yield rest


def _plain_chunks(text: bytes, table: _Csv) -> Iterator[Chunk]:
    """Rows split in Python: a row that has not as many cells as the header costs itself."""
    separator, columns = table.separator, len(table.names)
    found = text.decode("utf-8", "replace").split("\n")
    if found[-1] == "":
        found.pop()
    for begin in range(0, len(found), _PLAIN_ROWS):
        some = [line.rstrip("\r")[:LONGEST] for line in found[begin : begin + _PLAIN_ROWS]]
        rows = [_split(line, separator) for line in some]
        whole = np.fromiter(map(len, rows), np.int64, len(rows)) == columns
        torn = [i for i in np.flatnonzero(~whole).tolist() if some[i] and not some[i].isspace()]
        if torn:
            reason = "it has not as many cells as the header"
            table.skipped.append(Skipped(reason, len(torn), table.line + torn[0], ""))
        cells = list(map(list, zip(*compress(rows, whole.tolist()), strict=True))) or [[]] * columns
        line = table.line + np.flatnonzero(whole)
        table.line += len(some)
        yield Chunk({ours: cells[place] for ours, place in table.at.items()}, line)


def _split(line: str, separator: str) -> list[str]:
    """The cells of a line; most have no quotes, and are split eight times faster without the csv module."""
    if '"' in line:
        return _cells(line, separator)
    return line.split(separator)


def _cells(line: str, separator: str) -> list[str]:
    """The cells of a line with quotes; one that is never closed costs this line, not the file."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _fast_reader() -> Any:
    """The decoder of plain stretches: pyarrow's (170 MB/s), or NumPy's (30 MB/s) where that is not installed."""
    try:
        import pyarrow.csv  # noqa: F401
    except ImportError:
        return _by_numpy
    return _by_pyarrow


def _by_pyarrow(text: bytes, table: _Csv) -> Chunk | None:
    """All rows of a stretch by pyarrow; None if any cell is not plain."""
    import pyarrow
    from pyarrow import csv as arrow

    kinds = dict.fromkeys(table.at, pyarrow.int64()) | dict.fromkeys(table.whole, pyarrow.float64())
    kinds["op"] = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    try:
        found = arrow.read_csv(
            io.BytesIO(text),
            read_options=arrow.ReadOptions(column_names=table.names, use_threads=False, block_size=len(text) + 1),
            parse_options=arrow.ParseOptions(delimiter=table.separator, quote_char=False),
            convert_options=arrow.ConvertOptions(
                column_types=kinds, include_columns=list(table.at), null_values=[], strings_can_be_null=False
            ),
        ).combine_chunks()
    except pyarrow.ArrowException:
        return _with_fractions(_by_pyarrow, text, table)
    columns: dict[str, Column] = {}
    for name in table.at:
        column = found.column(name)
        if name == "op":
            if column.num_chunks:
                column = column.unify_dictionaries().chunk(0)
            columns[name] = Words(column.dictionary.to_pylist(), column.indices.to_numpy())
        else:
            columns[name] = column.to_numpy()
    return Chunk(columns, np.arange(table.line, table.line + found.num_rows))


def _by_numpy(text: bytes, table: _Csv) -> Chunk | None:
    """All rows of a stretch by NumPy's reader of text; None if any cell is not plain."""
    if not text.isascii():
        return None
    kinds = [(name, table.dtype_of(name)) for name in table.names]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty text, and numbers that are read by a way that is going
            rows = np.loadtxt(
                io.StringIO(text.decode("ascii")), kinds, None, table.separator, ndmin=1, encoding="ascii"
            )
    except (ValueError, Warning, OverflowError):
        return _with_fractions(_by_numpy, text, table)
    words, number = np.unique(rows["op"], return_inverse=True)
    known: list[str] = np.char.decode(words, "ascii").tolist()
    if max(map(len, known), default=0) >= _LONGEST_WORD:
        return None
    columns: dict[str, Column] = {}
    for name in table.at:
        if name != "op":
            columns[name] = np.ascontiguousarray(rows[name])
    columns["op"] = Words(known, number.reshape(-1))
    return Chunk(columns, np.arange(table.line, table.line + len(rows)))


def _with_fractions(reader: Any, text: bytes, table: _Csv) -> Chunk | None:
    """Once more with times as floats, which they stay; None if they are already."""
    times = {name for name in table.at if name not in NUMBERS and name != "op"}
    if times == table.whole:
        return None
    table.whole = times
    found: Chunk | None = reader(text, table)
    if found is None:
        table.whole = set()
    return found


def _has_digits(chunk: Chunk, table: _Csv) -> bool:
    """Whether times that are floats hold every nanosecond; plain Python reads those that do not."""
    for name in table.whole:
        times = chunk.columns[name]
        if isinstance(times, np.ndarray) and float(np.abs(times).max(initial=0)) * nanoseconds_a_unit(name) >= 2.0**51:
            return False
    return True


# Parquet.


def parquet_chunks(path: Path, mapping: dict[str, str]) -> Iterator[Chunk]:
    """The rows of a Parquet file; what is null becomes a value that cannot be used.

    Raises:
        InputError: pyarrow is not installed, the file is not whole, or a column that is needed is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        remedy = "install debubble[arrow], or write the table as CSV"
        raise InputError(Fault(str(path), "Parquet is read by pyarrow, which is not installed", remedy)) from error
    try:
        with path.open("rb") as stream:
            table = parquet.ParquetFile(stream)
            found = resolve(table.schema_arrow.names, mapping, str(path))
            row = 1
            for batch in table.iter_batches(_ROWS, columns=sorted(set(found.values()))):
                columns = dict([_of_arrow(ours, batch.column(theirs)) for ours, theirs in found.items()])
                yield Chunk(columns, np.arange(row, row + batch.num_rows))
                row += batch.num_rows
    except pyarrow.ArrowException as error:
        raise InputError(Fault(str(path), f"it is not whole Parquet: {error}", "export it again")) from error


def _of_arrow(ours: str, column: Any) -> tuple[str, Column]:
    """One column of a batch under our name: words by number, and times that have a unit of their own in nanoseconds."""
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_timestamp(kind) or types.is_duration(kind):
        in_ns = pyarrow.timestamp("ns") if types.is_timestamp(kind) else pyarrow.duration("ns")
        column, ours = column.cast(in_ns).cast(pyarrow.int64()), f"{ours.partition('_')[0]}_ns"
    if types.is_string(kind) or types.is_large_string(kind):
        words = compute.fill_null(column, "").dictionary_encode()
        return ours, Words(words.dictionary.to_pylist(), words.indices.to_numpy())
    if types.is_integer(column.type):
        blank = -1 if ours in NUMBERS else np.iinfo(np.int64).min  # a time that is left out as none
        column = compute.fill_null(column.cast(pyarrow.int64()), blank)
    return ours, np.asarray(column.to_numpy(zero_copy_only=False))


def texts_of(column: Column) -> Sequence[Any]:
    """The cells of a column one by one."""
    if isinstance(column, Words):
        return [column.known[number] for number in column.number.tolist()]
    if isinstance(column, list):
        return column
    return list(column.tolist())
