"""Files appear whole or not at all."""

import os

import pytest

from debubble.core.atomic import replacing
from debubble.core.errors import InputError


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
