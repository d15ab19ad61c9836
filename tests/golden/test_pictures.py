"""What ``show`` prints, whole: each file beside this test is the expected text, looked at by a person.

The rows of 1F1B with four ranks and eight micro-batches are those of the design's drawing, which is older than the
code that draws them. To renew a file after a change of wording, run the command of its first line and read the result.
"""

from pathlib import Path

import pytest

PICTURES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.stem)
def test_picture(cli, file):
    command, _, expected = file.read_text(encoding="utf-8").partition("\n")
    ran = cli(*command.removeprefix("$ debubble ").split())
    assert ran.out == expected


def test_the_design_drew_the_same_1f1b(shared):
    text = (shared / "facts" / "ux.md").read_text(encoding="utf-8")
    drawn = [line for line in text.splitlines() if line.startswith(" rank ") and line.endswith("73%")]
    ours = (Path(__file__).parent / "1f1b.txt").read_text(encoding="utf-8").splitlines()
    assert len(drawn) == 4
    assert [line for line in ours if line.startswith(" rank ") and line.endswith("73%")] == drawn
