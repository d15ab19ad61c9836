"""Inputs that nobody meant: no crash, no hang, no answer without a number; what once failed stays mended."""

import json
import os
from pathlib import Path

import pytest

from fuzz.harness import fuzzed, judged

CORPUS = json.loads((Path(__file__).parents[1] / "corpus" / "command_lines.json").read_text())


def test_five_hundred_inputs_by_chance_are_answered_or_refused():
    assert [*fuzzed(0, 500, jobs=1)] == []


@pytest.mark.slow
def test_ten_thousand_inputs_by_chance_are_answered_or_refused():
    """A minute on four cores; ``make fuzz`` draws others."""
    assert [*fuzzed(500, 9_500, jobs=os.cpu_count() or 1)] == []


@pytest.mark.slow
def test_two_hundred_models_by_chance_are_planned_or_refused():
    assert [*fuzzed(0, 200, jobs=os.cpu_count() or 1, planner=True)] == []


@pytest.mark.parametrize("case", CORPUS, ids=[case["why"] for case in CORPUS])
def test_what_once_failed(case, tmp_path, capsys):
    """Each is answered or refused in a line, as it was decided when it was found."""
    from debubble.cli.main import main

    for name, text in case["files"].items():
        (tmp_path / name).write_text(text)
    words = [word.replace("FOLDER", str(tmp_path)) for word in case["words"]]
    assert main(words) == case["exit"]
    said = capsys.readouterr()
    assert case["says"] in said.out + said.err
    assert "fault of debubble" not in said.err


def test_an_input_that_crashes_is_seen(monkeypatch):
    """The judge itself: a crash, silence, a number that is none, and broken JSON."""
    import debubble.cli.main as entry

    def says(text, status=0):
        def main(words):
            print(text, end="")
            return status

        monkeypatch.setattr(entry, "main", main)

    says("", 0)
    assert judged(["show"]) == "exit 0 without an answer"
    says("idle share nan")
    assert judged(["show"]) == "says 'nan'"
    says('{"a": NaN}')
    assert judged(["show", "--json"]) == "--json is no JSON: holds NaN"
    says("", 70)
    assert judged(["show"]) == "exit 70"
    says("fine")
    assert judged(["show"]) == ""
