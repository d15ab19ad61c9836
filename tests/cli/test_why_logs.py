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


ARGUMENTS = "------------------------ arguments ------------------------\n"


@pytest.fixture
def whole_log(tmp_path):
    """A log of Megatron-LM from its first line on: its arguments, 100 kB of other output, then its steps."""

    def write(name, ranks, batch, ms, **more):
        said = {"world_size": 2 * ranks, "pipeline_model_parallel_size": ranks, "tensor_model_parallel_size": 1}
        said |= {"micro_batch_size": 2, "global_batch_size": batch, "seq_length": 2048, **more}
        head = "".join(f"  {key} {'.' * (48 - len(key))} {value}\n" for key, value in said.items())
        steps = "".join(MEGATRON.format(n=n, ms=ms, batch=batch) for n in range(1, 6))
        (tmp_path / name).write_text(ARGUMENTS + head + "NCCL INFO a line\n" * 6000 + steps)
        return tmp_path / name

    return write


def test_logs_that_begin_with_their_arguments_answer_the_founding_case_without_options(cli, whole_log):
    """4 GPUs (PP=2, m=8), then 8 (PP=4, m=4), tokens per second x 0.82: the bubble alone gives 9 / 7."""
    found = cli("why", whole_log("four.log", 2, 32, 4000.0), whole_log("eight.log", 4, 16, 2439.0), "--json").json
    assert found["throughput_ratio"] == pytest.approx(0.82, rel=1e-3)
    assert (found["unit"], found["evidence"]) == ("tokens per second", "measured")
    assert found["factors"]["gpus"] == 2
    assert found["bubble_explains_ratio"] == pytest.approx(9 / 7)
    assert not found["missing"]


def test_options_serve_only_logs_without_arguments(cli, whole_log):
    paths = whole_log("a.log", 2, 32, 1000.0), whole_log("b.log", 4, 16, 1000.0)
    found = cli("why", *paths, "--ranks", 8, "--data", 1, "--micro-batch", 1, "--json").json
    assert [found[side]["pipeline"] for side in "ab"] == [2, 4]


def test_a_full_recomputation_in_a_log_is_told_from_its_arguments(cli, whole_log):
    more = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    paths = whole_log("a.log", 4, 16, 750.0), whole_log("b.log", 4, 16, 1000.0, **more)
    assert any("Full recomputation in b.log" in line for line in cli("why", *paths, "--json").json["verdict"])


def test_fit_needs_no_options_for_such_a_log_and_refuses_those_that_contradict_it(cli, whole_log):
    path = whole_log("a.log", 4, 16, 700.0)
    found = cli("fit", path, "--json").json
    assert (found["ranks"], found["slot_ms"]) == (4, pytest.approx(100))  # 4 micro-batches and 3 slots of bubble
    ran = cli("fit", path, "--ranks", 8)
    assert ran.status == 2
    assert "--ranks 8: " in ran.err
    assert "says 4 of itself" in ran.err


def test_fit_of_a_log_without_arguments_asks_for_the_ranks(cli, log):
    ran = cli("fit", log("a.log", 0.1, 0.2, [8]))
    assert ran.status == 2
    assert "give --ranks" in ran.err


def test_no_way_out_is_offered_where_simulating_again_misses_the_window_by_more_than_a_tenth(cli, shared):
    paths = (shared / "traces" / "torch-cpu" / name for name in ("gpipe", "1f1b"))
    found = cli("why", *paths, "--json").json
    assert found["next"] == []
    assert any("simulated again, its window takes 0.88" in line for line in found["verdict"])


def test_what_was_left_out_of_either_run_is_said(cli, shared):
    whole, torn = shared / "traces/bytedance-st/st-kineto", shared / "traces/broken/truncgz"
    ran = cli("why", whole, torn)
    assert "truncgz: " in ran.out[ran.out.index("Remarks") :]
    assert any("cut off" in line for line in cli("why", whole, torn, "--json").json["b"]["remarks"])


def test_ranks_that_are_missing_claim_no_bubble_and_no_way_out(cli, shared):
    whole = shared / "traces/bytedance-st/st-kineto"
    found = cli("why", whole, whole / "rank0_trace.json.gz", "--json").json
    assert (found["b"]["idle_share"], found["bubble_explains_ratio"], found["next"]) == (None, None, [])


def test_throughput_is_that_of_whole_steps_as_they_were_measured(cli, shared):
    """ST idles for up to .47 s between its windows, so a step is not the median window and the median gap."""
    trace = shared / "traces/bytedance-st/st-kineto"
    found, step = cli("why", trace, trace, "--json").json, cli("diagnose", trace, "--json").json["step_ms"]
    assert found["a"]["throughput"]["micro-batches per second"]["value"] == pytest.approx(8000 / step)


SCRIPT = """GPUS=4
PP=2
torchrun --nnodes 1 --nproc_per_node $GPUS pretrain_gpt.py --pipeline-model-parallel-size ${PP} \\
    --micro-batch-size 2 --global-batch-size 32 --seq-length 2048 --num-layers 32
"""


@pytest.fixture
def scripts(tmp_path):
    """Launch scripts of the founding case: 4 GPUs with 8 micro-batches a pipeline, 8 with 4."""
    four, eight = tmp_path / "four.sh", tmp_path / "eight.sh"
    four.write_text(SCRIPT)
    eight.write_text(SCRIPT.replace("GPUS=4", "GPUS=8").replace("PP=2", "PP=4").replace("32 --seq", "16 --seq"))
    return four, eight


def test_two_launch_scripts_say_what_their_bubbles_alone_would_do(cli, scripts):
    """2 GPUs' ratio x busy shares of 4/7 and 8/9."""
    found = cli("why", *scripts, "--json").json
    assert found["bubble_explains_ratio"] == pytest.approx(2 * (4 / 7) / (8 / 9))
    assert (found["throughput_ratio"], found["b"]["microbatches"]) == (None, 4)


def test_a_log_stands_beside_a_launch_script(cli, scripts, whole_log):
    found = cli("why", whole_log("four.log", 2, 32, 4000.0), scripts[1], "--json").json
    assert [found[side]["gpus"] for side in "ab"] == [4, 8]


def test_plan_takes_devices_and_batch_of_a_launch_script(cli, scripts):
    rows = cli("plan", scripts[1], "--json").json["candidates"]
    assert {(row["pipeline"], row["microbatches"]) for row in rows} == {(1, 1), (2, 2), (4, 4), (8, 8)}


def test_one_setting_alone_tells_no_fixed_time_and_none_is_printed(cli, whole_log):
    paths = whole_log("a.log", 2, 32, 4000.0), whole_log("b.log", 4, 16, 2439.0)
    (row,) = [line for line in cli("why", *paths).out.splitlines() if line.startswith("  a.log")]
    assert row.split() == ["a.log", "444.4", "ms", "<=", "444.4", "ms", "-", "estimated"]
    assert "fixed 0" not in cli("fit", paths[0]).out


def test_what_changed_between_two_logs_is_said_first_and_what_did_not_is_no_suspect(cli, whole_log):
    a, b = whole_log("a.log", 4, 32, 1000.0), whole_log("b.log", 4, 32, 1300.0, micro_batch_size=4)
    found = cli("why", a, b, "--json").json
    assert found["verdict"][1] == "What changed: micro-batch 2 -> 4 at the same global batch: m 8 -> 4."
    assert [(each["key"], each["a"], each["b"]) for each in found["changed"]] == [("micro-batch", "2", "4")]
    assert not [
        each for each in found["check"] if each.startswith(("smaller", "recomputation", "exposed", "a smaller"))
    ]


def test_only_what_megatron_runs_is_advised_for_its_log_and_the_rest_stands_apart(cli, whole_log):
    a, b = whole_log("a.log", 4, 32, 1000.0), whole_log("b.log", 4, 16, 800.0, num_layers=32)
    found = cli("why", a, b, "--json").json
    assert found["first"] == found["next"][0]
    assert found["verdict"][-2].startswith(f"Next: {found['first']['change']}, ")
    names = {part.split(" with ")[0] for each in found["next"] for part in each["change"].split(" + ")}
    assert not names & {"zb-h1", "zb-h2", "interleaved-zb", "dualpipe", "v-half", "hanayo", "looped-bfs", "gpipe"}
    assert any("Megatron-LM has no zb-h1" in demand for each in found["beyond"] for demand in each["demands"])
    assert all(each["demands"] == [] for each in found["next"])


def test_phases_of_both_logs_are_keys_and_are_held_against_each_other(cli, shared):
    paths = (shared / "cases" / "failing" / f"phases-{name}.log" for name in "ab")
    found = cli("why", *paths, "--ranks", 4, "--data", 1, "--micro-batch", 1, "--json").json
    assert [(each["first_step"], each["last_step"]) for each in found["b"]["phases"]] == [(2, 6), (7, 11)]
    assert found["b"]["phases"][1]["share"] == pytest.approx(2.0 * 5 / 14.5)
    assert any("7 to 11 1.43 times 7 to 11" in line for line in found["verdict"])


def test_no_gain_is_said_to_be_more_than_all_of_what_can_be_gained(cli, tmp_path):
    """b is 3 times as fast although the bubble of a costs a quarter: no percentage of that is said."""
    job = 'name = "{}"\ngpus = 8\npipeline = 4\nmicrobatches = 8\nmeasured.tokens_per_second = {}\n'
    paths = [tmp_path / f"{name}.toml" for name in "ab"]
    for path, speed in zip(paths, (1000, 3000), strict=True):
        path.write_text(job.format(path.stem, speed))
    said = " ".join(cli("why", *paths, "--json").json["verdict"])
    assert "something else became faster, too" in said
    assert "% of it" not in said
