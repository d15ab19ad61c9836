"""``why``: the founding case word for word, keys that scripts rely on, gates, and every bad input as one line."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight"
FOUNDING = (EXAMPLES / "four.toml", EXAMPLES / "eight.toml")
RECORDED = (EXAMPLES / "recordings" / "four", EXAMPLES / "recordings" / "eight")
KEYS = {
    "throughput_ratio", "factors", "a", "b", "bubble_explains_ratio", "left_over_ratio", "ceiling_ratio",
    "ceiling_barrier_ratio", "verdict", "next",
}  # fmt: skip


@pytest.fixture
def jobs(tmp_path):
    """Job files a.toml and b.toml from their text."""

    def write(*texts: str) -> list[Path]:
        paths = [tmp_path / f"{name}.toml" for name in "abcdef"[: len(texts)]]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return paths

    return write


def faults(ran) -> list[str]:
    assert (ran.status, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    return [line.removeprefix("debubble: ") for line in ran.err.splitlines()]


def test_founding_case_082_is_200_x_0663_x_0618_as_stated(cli):
    found = cli("why", *FOUNDING, "--json").json
    assert set(found) >= KEYS
    assert found["throughput_ratio"] == pytest.approx(0.82)
    assert found["factors"] == pytest.approx({"gpus": 2, "busy": 0.663, "work_rate": 0.618}, abs=5e-4)
    for side, bubble, idle, most in (("a", 0.125, 1 / 9, 0.889), ("b", 0.75, 3 / 7, 0.571)):
        assert found[side]["bubble_ratio"] == pytest.approx(bubble)
        assert found[side]["idle_share"] == pytest.approx(idle)
        assert found[side]["most_busy"] == pytest.approx(most, abs=5e-4)
        assert (found[side]["evidence"], found[side]["overstated"]) == ("exact", True)


def test_founding_case_the_bubble_alone_would_have_made_eight_129_times_faster(cli):
    found = cli("why", *FOUNDING, "--json").json
    assert found["bubble_explains_ratio"] == pytest.approx(1.286, abs=5e-4)
    assert found["left_over_ratio"] == pytest.approx(0.638, abs=5e-4)
    assert found["ceiling_ratio"] == pytest.approx(1.75)
    assert found["ceiling_barrier_ratio"] == pytest.approx(1.4)
    assert found["check"][0].startswith("smaller kernels")
    assert found["check"][1].startswith("exposed hops")


def test_founding_case_ways_out_at_eights_batch(cli):
    ways = {way["change"]: way for way in cli("why", *FOUNDING, "--json").json["next"]}
    enough, half, fewer = (ways[f"micro-batches {part} the size"] for part in ("1/8", "1/2", "1/4"))
    assert (enough["microbatches"], enough["idle_share"]) == (32, pytest.approx(3 / 35))  # 27 are enough, 4 divides 32
    assert (half["microbatches"], fewer["microbatches"]) == (8, 16)
    assert ways["PP=2 with DP=4"]["predicted_ratio"] == pytest.approx((2 / 3) / (4 / 7))
    assert ways["interleaved with 2 chunks"]["idle_share"] == pytest.approx(3 / 11)
    assert all(way["predicted_ratio"] > 1 and way["evidence"] == "simulated" for way in ways.values())
    assert all(way["peak_activations"] and way["assumes"] for way in ways.values())


@pytest.mark.parametrize(
    "words",
    [
        "12.5 %", "75.0 %", "11.1 %", "42.9 %", "88.9 %", "57.1 %", "0.663", "0.618", "0.643", "0.638", "1.29 times",
        "Both stated utilisations are more than their schedules can reach", "a second cause to look for",
        "waits in a receive kernel counts as busy", "exact", "stated", "simulated",
        "The global batch fell from 16 to 8",
    ],
)  # fmt: skip
def test_founding_case_is_printed_in_80_columns(cli, words):
    out = cli("why", *FOUNDING).out
    assert words in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_two_recordings_factor_their_measured_throughput(cli):
    found = cli("why", *RECORDED, "--json").json
    product = 1.0
    for factor in found["factors"].values():
        product *= factor
    assert list(found["factors"]) == ["gpus", "window", "busy", "work_rate"]
    assert product == pytest.approx(found["throughput_ratio"])
    assert product < 1
    assert found["bubble_explains_ratio"] == pytest.approx(1.286, abs=5e-3)
    assert (found["a"]["busy_evidence"], found["evidence"]) == ("measured", "measured")
    for side in "ab":
        causes = found[side]["causes"]
        assert sum(cause["cost_ms"] for cause in causes) == pytest.approx(found[side]["makespan_ms"])
    assert {"change", "predicted_ratio", "microbatches", "peak_activations"} <= set(found["next"][0])


def test_two_recordings_are_drawn(cli):
    out = cli("why", *RECORDED).out
    assert "four: the median window (measured)" in out
    assert " rank 3 " in out
    assert "A busy second of a GPU does" in out


def test_a_recording_can_be_compared_with_a_job(cli):
    found = cli("why", FOUNDING[0], RECORDED[1], "--json").json
    assert found["unit"] == "tokens per second"
    assert found["evidence"] == "stated and measured"


@pytest.mark.parametrize(("gate", "status"), [("3%", 1), ("0.03", 1), ("17%", 1), ("18.5%", 0)])
def test_a_gate_makes_the_exit_status(cli, gate, status):
    assert cli("why", *FOUNDING, "--gate", gate, "--json").status == status


def test_a_gate_without_a_throughput_is_refused(cli, jobs):
    a, b = jobs("pipeline = 2\nmicrobatches = 8", "pipeline = 4\nmicrobatches = 8")
    assert cli("why", a, b).status == 0
    (line,) = faults(cli("why", a, b, "--gate", "3%"))
    assert "state measured.tokens_per_second of both" in line


def test_markdown_is_a_table_that_names_cannot_break(cli, jobs):
    a, b = jobs('name = "a|b <script>"\nmeasured.mfu = 0.4', 'name = "b"\nmeasured.mfu = 0.3')
    out = cli("why", a, b, "--markdown").out
    assert "| a\\|b &lt;script> |" in out
    assert "<script>" not in out
    assert "| ---: |" in out


def test_a_series_compares_each_run_with_the_first(cli, jobs):
    (path,) = jobs("microbatches = 8\n" + "".join(f"[[run]]\npipeline = {p}\ngpus = {p}\n" for p in (2, 4, 8)))
    out = cli("why", path).out
    assert out.startswith("Against 2 GPUs")
    assert [run["b"]["name"] for run in cli("why", path, "--json").json["runs"]] == ["4 GPUs", "8 GPUs"]


def test_what_is_missing_is_asked_for_by_key(cli, jobs):
    lines = faults(cli("why", *jobs("name = 'a'", "name = 'b'\npipeline = 4")))
    assert "a: measured.tokens_per_second is missing" in lines[0]
    assert any(line.startswith("a: pipeline is missing") for line in lines)
    assert any(line.startswith("b: microbatches is missing") for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pipelin = 4", "did you mean pipeline?"),
        ("pipeline = 4\nmicrobatches = 6\nschedule = 'interleaved'\nchunks = 2", "b: microbatches = 6"),
        ("pipeline = 4\nmicrobatches = 4\nschedule = '1f1c'", "did you mean 1f1b"),
        ("pipeline = 4\nmicrobatches = 4\ntransfer = '1ms'", "state it too"),
        ("pipeline = 1000000\nmicrobatches = 1000000\nschedule = 'zb-h1'", "GB of memory"),
    ],
)
def test_a_job_that_cannot_be_is_one_line(cli, jobs, text, said):
    (line,) = faults(cli("why", *jobs("pipeline = 2\nmicrobatches = 8", text)))
    assert said in line


def test_paths_that_hold_nothing_are_all_named(cli, tmp_path):
    lines = faults(cli("why", tmp_path / "no.toml", tmp_path / "no"))
    assert len(lines) == 2


def test_a_gate_that_is_no_share_is_refused(cli):
    for gate in ("3", "nan", "-1%", "x"):
        assert "write it as in 3%" in faults(cli("why", *FOUNDING, "--gate", gate))[0]


def series_of(tmp_path, *runs):
    path = tmp_path / "series.toml"
    row = '[[run]]\nname = "{}"\ngpus = {}\n[run.measured]\nsamples_per_second = {}\npeak_memory = "{}GB"\n'
    path.write_text("".join(row.format(*run) for run in runs))
    return path


def test_a_run_that_is_beaten_in_both_is_not_on_the_frontier_nor_is_one_on_other_gpus(cli, tmp_path):
    path = series_of(tmp_path, ("a", 8, 50, 40), ("b", 8, 45, 41), ("c", 8, 60, 80), ("d", 16, 90, 10))
    assert cli("why", path, "--json").json["frontier"] == {
        "pareto": ["a", "c"],
        "best_per_byte": "a",
        "fastest": "c",
        "first": "a",
        "implied_idle_share": pytest.approx(1 / 6),
    }
    out = cli("why", path).out
    assert "none of these is beaten in both: a, c." in out
    assert "If c idles not at all, a idles 16.7 % of the time" in out


def test_without_memory_there_is_no_frontier(cli, tmp_path):
    path = tmp_path / "series.toml"
    path.write_text("".join(f'[[run]]\nname = "{name}"\nmeasured.samples_per_second = 9\n' for name in "abc"))
    assert cli("why", path, "--json").json["frontier"] is None


ALL_HOPS = (
    "pipeline = 8\nmicrobatches = 24\nschedule = '1f1b'\nforward = '10ms'\nbackward = '20ms'\ntransfer = '10ms'\n"
)


@pytest.mark.parametrize(("engine", "step"), [("ideal", 1470), ("megatron", 1520), ("deepspeed", 1970)])
def test_an_engine_that_is_asked_for_runs_what_names_none(cli, jobs, engine, step):
    """Steps of ../shared/facts/engines.md: all links 10 ms, p = 8, m = 24, F = I = W = 10 ms; 1,470 under ideal."""
    a, b = jobs(ALL_HOPS + "engine = 'ideal'\n", ALL_HOPS)
    found = cli("why", a, b, "--engine", engine, "--json").json
    assert found["throughput_ratio"] == pytest.approx(1470 / step)


def test_an_engine_that_nobody_has_is_refused(cli, jobs):
    a, b = jobs(ALL_HOPS, ALL_HOPS)
    (line,) = faults(cli("why", a, b, "--engine", "megatrn"))
    assert line.startswith("engine = 'megatrn': no engine has this name; did you mean megatron")
