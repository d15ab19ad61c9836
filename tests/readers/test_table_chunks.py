"""Tables of megabytes: whichever decoder is installed, the same ops and the same remarks come back."""

import random

import numpy as np
import pytest

from debubble.readers import table
from debubble.readers.files import BLOCK
from debubble.readers.table import read_table

HEADER = "rank,step,op,stage,microbatch,start_us,end_us"
ODD = {
    "nothing odd": lambda row: row,
    "a quoted word": lambda row: row.replace(",F,", ',"F",'),
    "a torn row": lambda row: row.rpartition(",")[0],
    "an empty line": lambda row: f"{row}\n",
    "an empty cell": lambda row: row.replace(",F,0,", ",F,,"),
    "a time that is none": lambda row: row.rpartition(",")[0] + ",soon",
    "a time of many digits": lambda row: row.rpartition(",")[0] + ",1700000000000000.123",
    "hexadecimal": lambda row: row.rpartition(",")[0] + ",0x10",
    "an underscore": lambda row: row.rpartition(",")[0] + ",1_000_000_000_000",
    "spaces": lambda row: row.replace(",", " , "),
    "a long word": lambda row: row.replace(",F,", f",{'forward' * 20},"),
    "another script": lambda row: row.replace(",F,", ",прямо,"),
    "nan": lambda row: row.rpartition(",")[0] + ",nan",
    "beyond 64 bits": lambda row: row.rpartition(",")[0] + f",{10**30}",
    "a rank beyond 32 bits": lambda row: f"{2**40}" + row[1:],
}


def rows(fraction):
    """Three megabytes of plain rows."""
    count = 3 * BLOCK // 40
    for i in range(count):
        rank, start = i % 2, 1_000_000_000 + 50 * i
        yield f"{rank},{i // 64},{'FB'[i % 64 // 32]},{rank},{i % 32 // 2},{start}{fraction},{start + 40}{fraction}"


@pytest.mark.parametrize("fraction", ["", ".25"])
@pytest.mark.parametrize("odd", ODD)
def test_every_decoder_finds_the_same(tmp_path, monkeypatch, odd, fraction):
    dice = random.Random(odd)
    lines = list(rows(fraction))
    for at in dice.sample(range(len(lines) // 2, len(lines)), 3):
        lines[at] = ODD[odd](lines[at])
    path = tmp_path / "ops.csv"
    path.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
    found = []
    for fast in (lambda text, table: None, table._by_numpy, table._by_pyarrow):
        monkeypatch.setattr(table, "_fast_reader", lambda fast=fast: fast)
        found.append(read_table(path))
    plain, *others = found
    for other in others:
        assert other.remarks == plain.remarks
        assert [device.rank for device in other.devices] == [device.rank for device in plain.devices]
        for mine, theirs in zip(other.devices, plain.devices, strict=True):
            for name in ("step", "kind", "start", "end", "stage", "unit"):
                ours, same = getattr(mine, name), getattr(theirs, name)
                assert (ours is None and same is None) or (ours.dtype == same.dtype and np.array_equal(ours, same))


def test_plain_megabytes_are_not_split_in_python(tmp_path, monkeypatch):
    """Only the first stretch is: a table that is small altogether needs no decoder."""
    path = tmp_path / "ops.csv"
    path.write_text("\n".join([HEADER, *rows("")]))
    read = []
    whole = table._plain_chunks
    monkeypatch.setattr(table, "_plain_chunks", lambda text, table: read.append(len(text)) or whole(text, table))
    read_table(path)
    assert len(read) == 1
    assert read[0] <= BLOCK


def test_rows_behind_the_most_are_left_out_aloud(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MOST_ROWS", 1000)
    path = tmp_path / "ops.csv"
    path.write_text("\n".join([HEADER, *rows("")]))
    found = read_table(path)
    assert any("more than 1,000 rows" in remark for remark in found.remarks)
