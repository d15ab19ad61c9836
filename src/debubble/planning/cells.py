"""Cells: a row of a table as words, counts, numbers and switches; what cannot be read is gathered, with its place."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Fault, InputError

LARGEST = 20_000_000  # bytes of a table
LARGEST_COUNT, LARGEST_NUMBER = 1e12, 1e15  # beyond what any job has, and what floats count exactly
SHOWN = 40  # characters of a cell in a fault
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Unusable(Exception):
    """A row of which nothing can be said, with the reason."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One row.

    Args:
        cells: by column; an empty cell is unknown.
        place: file and line, for faults.
        faults: of all rows of the table, to which this row adds its own.
    """

    cells: Mapping[str, str]
    place: str
    faults: list[Fault]

    def text(self, name: str) -> str:
        """A cell as it is; empty if it is unknown."""
        return self.cells.get(name, "")

    def word(self, name: str, known: Sequence[str] = ()) -> str:
        """A cell in lower case, one of ``known`` if there are any; empty if it is unknown."""
        word = self.text(name).lower()
        if word and known and word not in known:
            self.fault(name, f"known: {', '.join(known)}")
            return ""
        return word

    def words(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """Words with spaces or commas between them, each one of ``known``; none if they are unknown."""
        words = tuple(self.text(name).lower().replace(",", " ").split())
        if any(word not in known for word in words):
            self.fault(name, f"known: {', '.join(known)}")
            return ()
        return words

    def count(self, name: str) -> int | None:
        """A whole number from 0 on; None if it is unknown."""
        number = self._number(name)
        if number is None:
            return None
        if not 0 <= number < LARGEST_COUNT or number != int(number):
            self.fault(name, "it is a whole number")
            return None
        return int(number)

    def counts(self, name: str) -> tuple[int, ...]:
        """Whole numbers with spaces or commas between them; none if they are unknown."""
        parts = self.text(name).replace(",", " ").split()
        if not all(part.isascii() and part.isdecimal() for part in parts):
            self.fault(name, "it is a list of whole numbers")
            return ()
        return tuple(int(part) for part in parts)

    def decimal(self, name: str) -> float:
        """A number above 0; 0 if it is unknown."""
        number = self._number(name)
        if number is None:
            return 0.0
        if not 0 < number < LARGEST_NUMBER:
            self.fault(name, "it is a number above 0", "correct it, or leave the cell empty")
            return 0.0
        return number

    def switch(self, name: str) -> bool | None:
        """1 or 0, yes or no, on or off, true or false; None if it is unknown."""
        word = self.text(name).lower()
        if word and word not in (*YES, *NO):
            self.fault(name, "it is 1 or 0")
            return None
        return word in YES if word else None

    def fault(self, name: str, rule: str, remedy: str = "correct it") -> None:
        """Note a cell that cannot be read."""
        self.faults.append(Fault(f"{self.place}: {name} = {self.text(name)[:SHOWN]}", rule, remedy))

    def _number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            return -1.0  # no number of a table: whoever asks refuses it by its own rule


def read_cells(path: Path, other_names: Mapping[str, str]) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The columns of a CSV by their names, and for each row its line and its cells.

    Args:
        path: the file.
        other_names: further names of columns.

    Raises:
        InputError: no CSV, or no row.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"a table has less than {LARGEST:,} bytes", "give a table of runs"))
    lines = []
    try:
        reader = csv.reader(raw.decode("utf-8-sig", errors="replace").splitlines())
        for number, line in enumerate(reader, start=1):
            if any(cell.strip() for cell in line):
                lines.append((number, [cell.strip() for cell in line]))
    except csv.Error as error:
        raise InputError(Fault(str(path), f"it is no CSV: {error}", "give a table of runs")) from None
    if len(lines) < 2:
        raise InputError(Fault(str(path), "it holds no rows", "give a line of names and a line for each measured run"))
    names = [other_names.get(name.lower(), name.lower()) for name in lines[0][1]]
    return names, [(number, dict(zip(names, line, strict=False))) for number, line in lines[1:]]
