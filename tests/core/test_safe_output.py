"""What leaves is safe: files appear whole or not at all; text of other people commands nothing, tells no machine."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.safe_output import inert, replacing, without_folders


def test_a_file_is_there_only_when_all_of_it_was_written(tmp_path):
    path = tmp_path / "out.bin"
    with replacing(path) as stream:
        stream.write(b"all")
        assert not path.exists()
    assert path.read_bytes() == b"all"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:
        stream.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "ours"):
        pass
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("path", ["missing/out.bin", "folder"])
def test_a_path_that_cannot_be_written_is_an_input_error(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="it cannot be written"), replacing(tmp_path / path) as stream:
        stream.write(b"x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_is_an_input_error_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="No space left"), replacing(tmp_path / "out.bin"):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(path) as stream:
        stream.write(b"all")
    assert os.read(reader, 10) == b"all"
    os.close(reader)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/out.bin")
    with replacing(tmp_path / "link") as stream:
        stream.write(b"all")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "out.bin").read_bytes() == b"all"


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
