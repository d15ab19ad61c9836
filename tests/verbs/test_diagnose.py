"""``debubble.diagnose``: an observation or files, the gate that scripts set, and one result for all of them."""

from pathlib import Path

import pytest

import debubble

EIGHT = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"


def test_an_observation_is_diagnosed_like_its_files(cli):
    found = debubble.diagnose(debubble.read(EIGHT))
    assert found.document() == cli("diagnose", EIGHT, "--json").json
    assert [cause.cause for cause in found.causes][:2] == ["ideal", "schedule"]


@pytest.mark.parametrize(
    ("gate", "expect", "passed", "reason"),
    [
        ("50%", None, True, ""),
        (0.3, None, False, "It idles for 46.3 %, more than 30.0 %."),
        (None, "1f1b", True, ""),
        (None, "gpipe", False, "The order that ran is 1f1b, not gpipe."),
        ("30%", "gpipe", False, "It idles for 46.3 %"),
    ],
)
def test_a_gate_decides_the_exit_status_and_says_why(cli, gate, expect, passed, reason):
    found = debubble.diagnose(EIGHT, gate=gate, expect=expect)
    assert (found.gate.passed, found.exit_status) == (passed, 0 if passed else 1)
    assert reason in " ".join(found.gate.reasons)
    options = [*(("--gate", gate) if gate else ()), *(("--expect", expect) if expect else ())]
    ran = cli("diagnose", EIGHT, *options, "--json")
    assert (ran.status, ran.json["gate"]["passed"]) == (0 if passed else 1, passed)
    assert ran.json["gate"]["idle_share"] == pytest.approx(ran.json["idle_share"])


def test_without_a_question_there_is_no_gate():
    assert debubble.diagnose(EIGHT).gate is None


def test_strict_fails_where_ranks_are_missing(shared):
    files = [shared / "traces" / "bytedance-st" / "st-kineto" / f"rank{rank}_trace.json.gz" for rank in (0, 2, 4)]
    found = debubble.diagnose(files, strict=True)
    assert (found.exit_status, found.gate.reasons) == (1, ("Ranks are missing beside rank 4.",))
    assert debubble.diagnose(files).exit_status == 0


def test_what_a_framework_does_not_run_stands_apart():
    free, bound = (debubble.diagnose(EIGHT, framework=name) for name in (None, "megatron"))
    asks = {change.change: change.demands for change in bound.what_if}
    assert not any("Megatron" in " ".join(change.demands) for change in free.what_if)
    assert any("Megatron-LM has no zb-h1" in demand for demand in asks["zb-h1"])


def test_the_page_names_no_folder_of_the_users_machine():
    page = debubble.diagnose(EIGHT).html()
    assert str(EIGHT.parent) not in page


def test_the_command_that_searches_a_schedule_for_these_costs_finds_the_recording_again(tmp_path, monkeypatch):
    four = EIGHT.with_name("four")
    monkeypatch.chdir(four.parent)
    found = debubble.diagnose("four")
    assert found.search == "debubble synth --from four --engine ideal"
    assert found.search in str(found)
    (own,) = [change for change in found.what_if if change.change == "a schedule of your own, at most"]
    # Its bound is that of any order; the search holds no more than the run did unless it is told that it may.
    without_limit = debubble.synth(from_="four", engine="ideal", evaluations=10, cap=8)
    assert without_limit.lower_bound_ms == pytest.approx(own.makespan_ms, rel=0.01)
    assert debubble.synth(from_="four", engine="ideal", evaluations=10).lower_bound_ms >= without_limit.lower_bound_ms
    assert str(four) not in debubble.diagnose(four).html()
