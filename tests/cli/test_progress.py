"""The bar of bytes: it is told of each byte of a file once, and it is drawn for people only."""

import gzip
import sys

import pytest

from debubble.cli import console as bar
from debubble.readers.files import blocks, first_bytes, progress


@pytest.fixture
def told():
    """The sizes that were told."""
    sizes: list[int] = []
    token = progress.set(sizes.append)
    yield sizes
    progress.reset(token)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda raw: gzip.compress(raw) * 2])
def test_every_byte_of_a_file_is_told_once_packed_or_not(tmp_path, told, pack):
    path = tmp_path / "trace"
    path.write_bytes(pack(bytes(range(256)) * 9000))
    assert sum(map(len, blocks(path, []))) in (256 * 9000, 2 * 256 * 9000)
    assert sum(told) == path.stat().st_size


def test_a_look_at_the_first_bytes_is_no_reading(tmp_path, told):
    (tmp_path / "trace").write_bytes(b"x" * 5000)
    assert first_bytes(tmp_path / "trace", 100) == b"x" * 100
    assert told == []


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(tmp_path, monkeypatch, capsys):
    (tmp_path / "trace").write_bytes(b"x" * 5000)
    monkeypatch.setattr(bar, "_WORTH", 0)

    def read():
        with bar.reading([tmp_path]):
            return sum(map(len, blocks(tmp_path / "trace", [])))

    assert read() == 5000
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert read() == 5000
    assert "5.0" in capsys.readouterr().err


def test_nothing_is_drawn_for_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar.reading([tmp_path / "nothing"]):
        pass
