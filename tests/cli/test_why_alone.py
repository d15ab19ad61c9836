"""``why`` of one run: how busy it is, how busy its bubble lets it be, and what must be something else."""

import pytest

JOB = 'name = "one"\ngpus = 8\npipeline = 4\ndata = 2\nmicrobatches = {m}\nschedule = "1f1b"\n[measured]\n{seen}\n'


@pytest.fixture
def alone(cli, tmp_path):
    def run(seen="", m=48):
        path = tmp_path / "one.toml"
        path.write_text(JOB.format(m=m, seen=seen))
        return cli("why", path, "--json").json

    return run


def test_half_busy_where_the_bubble_allows_941_percent_leaves_44_points_to_something_else(alone):
    """p = 4, m = 48: 48 of 51 slots are work."""
    found = alone("utilisation = 0.5")
    assert found["bubble_allows_share"] == pytest.approx(48 / 51)
    assert found["something_else_share"] == pytest.approx(48 / 51 - 0.5)
    assert found["verdict"][0] == (
        "Its GPUs are busy for 50.0 % (stated), and its bubble allows 94.1 % (exact): the bubble costs 5.9 %, and "
        "44 points more are something else."
    )


def test_more_than_the_bubble_allows_was_measured_over_something_else(alone):
    found = alone("utilisation = 0.97")
    assert found["something_else_share"] == 0
    assert "cannot be" in found["verdict"][0]


def test_all_that_the_bubble_allows_needs_no_other_cause(alone):
    assert "nothing but the bubble needs a cause" in alone("utilisation = 0.94")["verdict"][0]


def test_flops_are_held_against_the_time_that_the_bubble_leaves(alone):
    """31 % of the peak over 48/51 of the time are 32.9 % in a busy second."""
    found = alone("mfu = 0.31")
    assert found["busy_mfu"] == pytest.approx(0.31 * 51 / 48)
    assert any("32.9 % of its peak" in line for line in found["verdict"])
    assert [ask["key"] for ask in found["missing"]] == ["measured.utilisation"]


def test_a_recording_alone_says_what_its_window_holds_beside_the_bubble(cli):
    from pathlib import Path

    recording = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"
    found, whole = (cli(verb, recording, "--json").json for verb in ("why", "diagnose"))
    assert found["run"]["busy"] == pytest.approx(1 - whole["idle_share"])
    assert found["next"][0]["change"] == whole["first"]["change"]  # one list of remedies, one first among them
    assert found["next"][0]["predicted_ratio"] == whole["first"]["speedup"]
    assert "Its GPUs are busy" in cli("why", recording).out


def test_a_gate_needs_a_second_run(cli, tmp_path):
    (tmp_path / "one.toml").write_text(JOB.format(m=4, seen=""))
    ran = cli("why", tmp_path / "one.toml", "--gate", "3%")
    assert ran.status == 2
    assert "give a second run" in ran.err


LOG = "[rank0]:[titan] 2025-06-16 16:24:{:06.3f} - root - INFO - step: {}  loss:  8.1  tps: 13,785  mfu: 13.99%\n"


def test_a_log_alone_says_what_is_sure_and_what_its_bubble_needs(cli, tmp_path):
    """torchtitan prints neither its batch nor its pipeline: 0.3 s a step and its tokens per second are all there is."""
    path = tmp_path / "titan.log"
    path.write_text("".join(LOG.format(20 + 0.3 * n, n) for n in range(1, 31)))
    found = cli("why", path, "--json").json
    assert found["verdict"] == [
        "A step takes 300 ms, over 29 steps (measured): 13,785 tokens per second of a GPU.",
        "What its bubble costs cannot be said: how many ranks its pipeline has is not known.",
    ]
    assert found["run"]["schedule"] is None
    pair = cli("why", path, path, "--json").json["verdict"]
    assert pair[1] == (
        "What the bubble explains of it cannot be said: the pipeline of titan.log and titan.log is not known."
    )
