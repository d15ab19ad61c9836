"""Lines from columns read as Python would write them, one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.drawing.perfetto import BATCH, Digits, Words, lines, microseconds

whole = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(whole, st.integers(0, 2), whole), min_size=1, max_size=30), st.integers(1, 6))
def test_numbers_and_words_stand_as_python_writes_them(rows, width):
    first, word, second = (np.array(column) for column in zip(*rows, strict=True))
    words = ("forward", "", "B")
    text = b"".join(lines((b"<", Digits(first), Words(words, word), Digits(second, width), b">\n"), len(rows)))
    assert text.decode() == "".join(f"<{a}{words[w]}{b:0{width}}>\n" for a, w, b in rows)


@given(st.lists(whole, min_size=1, max_size=30))
def test_microseconds_keep_every_nanosecond(times):
    text = b"".join(lines((*microseconds(np.array(times)), b"\n"), len(times)))
    assert [round(int(line.replace(".", ""))) for line in text.decode().split()] == times
    assert all(len(line.split(".")[1]) == 3 for line in text.decode().split())


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1])
def test_no_line_is_lost_between_batches(count):
    text = b"".join(lines((Digits(np.arange(count)), b"\n"), count))
    assert text.split() == [str(number).encode() for number in range(count)]
