"""Text of other people: nothing in it commands a terminal, turns text around, or tells whose machine it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.plain_text import inert, without_folders


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("a\rb\x9b31m\x00", "a\\rb\\x9b31m\\x00"),
        ("a byte \udcff of no text", "a byte \\udcff of no text"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grün, 模型, ≥ 2 ×", "Grün, 模型, ≥ 2 ×"),
    ],
)
def test_commands_are_written_out_and_letters_stay(text, shown):
    assert inert(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_inert_stays_as_it_is(text):
    assert inert(inert(text)) == inert(text)
    assert all(c in "\n\t" or ord(c) >= 32 for c in inert(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/runs/eight", "eight"),
        ("debubble diagnose /data/team/runs/eight --json", "debubble diagnose eight --json"),
        ("'/home/me/my runs/eight'", "'my runs/eight'"),
        ('{"source": "/home/me/eight"}', '{"source": "eight"}'),
        (r"C:\Users\me\runs\eight", "eight"),
        (r"\\server\share\eight", "eight"),
        ("/tmp/x.json: cut at byte 7", "x.json: cut at byte 7"),
        ("examples/four/recordings", "examples/four/recordings"),
        ("../four/eight", "../four/eight"),
        ("~/four/eight", "~/four/eight"),
        ("s3://bucket/run/eight", "s3://bucket/run/eight"),
        ("https://arxiv.org/abs/2401.10241", "https://arxiv.org/abs/2401.10241"),
        ("samples/s, idle / (ranks x window), 1/2/3", "samples/s, idle / (ranks x window), 1/2/3"),
        ("/verdict alone", "/verdict alone"),
    ],
)
def test_absolute_paths_are_cut_to_their_last_part_and_nothing_else_is(text, shown):
    assert without_folders(text) == shown
