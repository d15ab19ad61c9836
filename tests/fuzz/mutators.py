"""Changes that know what they change: the tree of JSON, the cells of a table, the words of a text, bytes of the rest.

All randomness comes from the dice that are given, so that a number stands for an input.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

# What strangers' files hold where a number, a word or a name is expected.
NUMBERS = (0, -1, 1, 2, 7, 0.5, -0.0, 1e-9, 1e9, 1e18, 1e30, -1e30, 2**31, 2**32, 2**63, 2**64, 10**30, 999_999_999)
WORDS = ("", " ", "x", "nan", "inf", "-inf", "NaN", "null", "true", "auto", "0F0", "F", "é", "\u202e", "\x1b[31m", "\0")
WORDS += ("<script>", "](x)", "# a", "1e999", "0x10", "1_000", "-", "--", "=", "${X}", "$(yes)", "a" * 5000, "9" * 400)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DEEP = 2_000


def value(dice: random.Random) -> Any:
    """Anything that JSON can hold."""
    pool: list[Callable[[], Any]] = [
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(WORDS),
        lambda: dice.choice([None, True, False, float("nan"), float("inf")]),
        lambda: [dice.choice(NUMBERS)] * dice.choice([0, 1, 3, 1000]),
        lambda: {dice.choice(WORDS): dice.choice(NUMBERS)},
    ]
    return dice.choice(pool)()


def spoil(path: Path, dice: random.Random) -> None:
    """Change one file in one to three ways."""
    for _ in range(dice.choice([1, 1, 2, 3])):
        if not path.is_file():
            return
        kind = path.suffix
        if dice.random() < 0.15:
            _bytes(path, dice)
        elif kind == ".json":
            _json(path, dice)
        elif kind == ".csv":
            _csv(path, dice)
        elif kind == ".parquet":
            _parquet(path, dice)
        elif kind == ".sqlite":
            _sqlite(path, dice)
        else:
            _text(path, dice)


def _bytes(path: Path, dice: random.Random) -> None:
    raw = path.read_bytes()
    at = dice.randrange(len(raw) + 1)
    until = min(len(raw), at + dice.choice([1, 4, 100, 10_000]))
    noise = dice.choice([b"", b"\0", b"\xff", b'"', b"{", b"]", b"\n", b"[" * _DEEP, b"1" * 400, bytes(range(256))])
    changed = dice.choice(
        [
            lambda: raw[:at],
            lambda: raw[at:],
            lambda: raw[:at] + noise + raw[at:],
            lambda: raw[:at] + noise + raw[until:],
            lambda: raw[:at] + raw[at:until] * 3 + raw[until:],
            lambda: gzip.compress(raw)[: dice.choice([10, 10**9])],
            lambda: raw.decode("latin-1").encode("utf-16"),
            lambda: b"",
        ]
    )()
    path.write_bytes(changed)


def _json(path: Path, dice: random.Random) -> None:
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return _bytes(path, dice)
    at, parents = tree, []
    while isinstance(at, dict | list) and at and (not parents or dice.random() < 0.85):
        key = dice.choice(list(at)) if isinstance(at, dict) else dice.randrange(len(at))
        parents.append((at, key))
        at = at[key]
    if not parents:
        return _bytes(path, dice)
    holder, key = parents[-1]
    how = dice.randrange(7)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[dice.choice(WORDS)] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * dice.choice([1, 2, 50])
    elif how == 3 and isinstance(at, int | float):
        holder[key] = dice.choice([-at, at * 1000, at + 1, str(at), at / 3, 1e300 if at else 0.1])
    elif how == 4:  # the same wrong value at every place of this name
        _everywhere(tree, key, value(dice))
    elif how == 5:
        holder[key] = json.loads("[" * 60 + "]" * 60)
    else:
        holder[key] = value(dice)
    path.write_text(json.dumps(tree))
    return None


def _everywhere(tree: Any, key: Any, new: Any) -> None:
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if key in one:
                one[key] = new
            left += [each for each in one.values() if each is not new]
        elif isinstance(one, list):
            left += one


def _csv(path: Path, dice: random.Random) -> None:
    rows = [line.split(",") for line in path.read_text(errors="replace").splitlines()]
    if not rows:
        return
    row = dice.randrange(len(rows))
    column = dice.randrange(max(1, len(rows[0])))
    how = dice.randrange(7)
    if how == 0:
        rows = [[cell for i, cell in enumerate(cells) if i != column] for cells in rows]
    elif how == 1:
        rows = [[*cells, cells[column] if column < len(cells) else ""] for cells in rows]
    elif how == 2:
        rows[row:row] = [rows[row]] * dice.choice([1, 3, 100])
    elif how == 3:
        del rows[row]
    elif how == 4:
        new = str(value(dice))
        rows[1:] = [[new if i == column else cell for i, cell in enumerate(cells)] for cells in rows[1:]]
    elif rows[row]:
        rows[row][min(column, len(rows[row]) - 1)] = str(dice.choice([*NUMBERS, *WORDS]))
    separator = dice.choice([",", ",", ",", ";", "\t"])
    path.write_text("\n".join(separator.join(cells) for cells in rows))


def _parquet(path: Path, dice: random.Random) -> None:
    try:
        found = parquet.read_table(path)
    except (pa.ArrowException, OSError):
        return _bytes(path, dice)
    names = list(found.column_names)
    at = dice.randrange(len(names)) if names else 0
    how = dice.randrange(5)
    if how == 0:
        found = found.remove_column(at)
    elif how == 1:
        found = found.append_column(dice.choice(names), found.column(at))
    elif how == 2:
        found = found.rename_columns([dice.choice(WORDS) if i == at else name for i, name in enumerate(names)])
    else:
        new = dice.choice(
            [
                pa.array([[1, 2]] * len(found)),
                pa.array([None] * len(found)),
                pa.array(["x"] * len(found)),
                pa.array([dice.choice([0.5, 1e300, float("nan")])] * len(found)),
                pa.array([dice.choice([-1, 2**62, 10**9])] * len(found)),
                pa.array([2**64 - 1] * len(found), pa.uint64()),
                pa.array([b"\xff"] * len(found)),
                pa.array([{"a": 1}] * len(found)),
                pa.array([1] * len(found)).cast(pa.timestamp("ms")),
                pa.array([True] * len(found)),
            ]
        )
        found = found.set_column(at, names[at], new)
    parquet.write_table(found, path)
    return None


def _sqlite(path: Path, dice: random.Random) -> None:
    try:
        with sqlite3.connect(path) as base:
            names = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            name = dice.choice(sorted(names))
            columns = [row[1] for row in base.execute(f"PRAGMA table_info({name})")]
            column = dice.choice(columns)
            where = dice.choice(["", f" WHERE rowid = {dice.randint(1, 8)}"])
            new = dice.choice([None, "text", b"\xff\0", -1, 0, 2**62, 1e300, 0.5, "9" * 30, dice.choice(WORDS)])
            how = dice.randrange(5)
            if how == 0:
                base.execute(f"DROP TABLE {name}")
            elif how == 1:
                base.execute(f"ALTER TABLE {name} RENAME COLUMN {column} TO other")
            elif how == 2:
                base.execute(f"DELETE FROM {name}{where}")
            else:
                base.execute(f"UPDATE {name} SET {column} = ?{where}", (new,))
    except (sqlite3.Error, IndexError):
        _bytes(path, dice)


def _text(path: Path, dice: random.Random) -> None:
    text = path.read_text(errors="replace")
    lines = text.splitlines() or [""]
    at = dice.randrange(len(lines))
    how = dice.randrange(5)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines[at:at] = [lines[at]] * dice.choice([1, 40])
    elif how == 2 and (numbers := list(_NUMBER.finditer(lines[at]))):
        match = dice.choice(numbers)
        lines[at] = lines[at][: match.start()] + str(value(dice)) + lines[at][match.end() :]
    elif how == 3 and (words := lines[at].split(" ")):
        words[dice.randrange(len(words))] = str(dice.choice([*WORDS, *NUMBERS]))
        lines[at] = " ".join(words)
    else:
        cut = dice.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:cut] + dice.choice(WORDS) + lines[at][cut + dice.choice([0, 1, 5]) :]
    path.write_text("\n".join(lines), errors="replace")
