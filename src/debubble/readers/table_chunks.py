"""The rows of a table, CSV or Parquet, some at a time as columns: by pyarrow or NumPy where all cells are plain.

A table of megabytes is decoded by columns: by pyarrow if it is installed, else by NumPy. Both take only stretches
without a doubt; a stretch that holds a quote, an empty or odd cell, or a torn row is split in plain Python, which knows
how to leave out one row and say why. So what is found never depends on what is installed.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from .columns import NUMBERS, nanoseconds_a_unit, resolve
from .stream import LONGEST, blocks

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
