"""``why`` over logs and over traces: logs whose steps follow a known line, traces with their causes side by side."""

import pytest

MEGATRON = " iteration {n:8d}/ 100 | elapsed time per iteration (ms): {ms:.1f} | global batch size: {batch:5d} |\n"


@pytest.fixture
def log(tmp_path):
    """A log of Megatron-LM whose steps take fixed + (m + p - 1) x slot; its first step is slow."""

    def write(name, slot, fixed, microbatches, ranks=4, samples=4):
        steps = [(m, fixed + (m + ranks - 1) * slot) for m in microbatches for _ in range(5)]
        steps[0] = (steps[0][0], 9 * steps[0][1])
        lines = [MEGATRON.format(n=n, ms=1e3 * s, batch=m * samples) for n, (m, s) in enumerate(steps, 1)]
        (tmp_path / name).write_text("".join(lines))
        return tmp_path / name

    return write


def test_two_logs_alone_are_compared_by_their_samples(cli, log):
    found = cli("why", log("a.log", 0.1, 0.2, [8]), log("b.log", 0.1, 0.6, [8]), "--json").json
    assert found["unit"] == "samples per second"
    assert found["throughput_ratio"] == pytest.approx((0.2 + 11 * 0.1) / (0.6 + 11 * 0.1), rel=1e-3)
    assert "fits" not in found
    assert {ask["key"] for ask in found["missing"]} >= {"pipeline"}


def test_with_sizes_the_bubble_of_both_is_known_and_the_fit_stands_beside(cli, log):
    paths = log("a.log", 0.1, 0.2, [8, 16, 32]), log("b.log", 0.15, 0.2, [8, 16, 32])
    found = cli("why", *paths, "--ranks", 4, "--data", 2, "--micro-batch", 2, "--json").json
    a, b = found["fits"]
    assert (a["slot_ms"], b["slot_ms"]) == pytest.approx((100, 150), rel=1e-3)
    assert (a["bubble_ms"], b["fixed_ms"]) == pytest.approx((300, 200), rel=1e-2)
    assert found["a"]["idle_share"] == found["b"]["idle_share"] == pytest.approx(3 / 35)  # m = 32, the largest
    assert found["throughput_ratio"] == pytest.approx((0.2 + 35 * 0.1) / (0.2 + 35 * 0.15), rel=1e-3)
    assert found["left_over_ratio"] == pytest.approx(found["throughput_ratio"], rel=1e-3)


def test_people_see_the_fit_as_a_table(cli, log):
    paths = log("a.log", 0.1, 0.2, [8, 16]), log("b.log", 0.15, 0.2, [8, 16])
    out = cli("why", *paths, "--ranks", 4, "--data", 2, "--micro-batch", 2).out
    assert "fixed + bubble + micro-batches x slot" in out
    assert "a.log" in out


def test_sizes_that_do_not_fit_a_log_are_a_fault(cli, log):
    path = log("a.log", 0.1, 0.2, [8])
    ran = cli("why", path, path, "--ranks", 4, "--data", 3, "--micro-batch", 2)
    assert ran.status == 2
    assert "Traceback" not in ran.err


def test_two_traces_have_the_same_factors_and_their_causes_side_by_side(cli, shared):
    a, b = (shared / "traces" / name for name in ("bytedance-st/st-kineto", "primus-pp8"))
    found = cli("why", a, b, "--json").json
    product = 1.0
    for factor in found["factors"].values():
        product *= factor
    assert product == pytest.approx(found["throughput_ratio"])
    share = {row["cause"]: (row["a_share"], row["b_share"]) for row in found["causes"]}
    assert share["schedule"] == (pytest.approx(0.364, abs=0.01), pytest.approx(0.282, abs=0.01))
    for side in ("a", "b"):
        assert sum(row[f"{side}_ms"] for row in found["causes"]) == pytest.approx(found[side]["makespan_ms"])


def test_a_trace_and_what_was_distilled_from_it_are_equally_fast(cli, shared, tmp_path):
    trace = shared / "traces" / "bytedance-st" / "st-kineto"
    assert cli("diagnose", trace, "--record", tmp_path / "small").status == 0
    found = cli("why", trace, tmp_path / "small", "--json").json
    assert found["throughput_ratio"] == pytest.approx(1)
    assert all(row["difference_ms"] == 0 for row in found["causes"])


def test_a_trace_is_compared_with_a_recording(cli, shared):
    from pathlib import Path

    recording = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"
    found = cli("why", shared / "traces" / "bytedance-st" / "st-kineto", recording, "--json").json
    assert found["unit"] == "micro-batches per second"
    assert len(found["causes"]) == 6
