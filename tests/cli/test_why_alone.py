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
