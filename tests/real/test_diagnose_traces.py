"""``diagnose`` over every real trace, through its JSON: the figures that others worked out, the causes, what is refused."""

import json

import pytest

SEEN: dict[tuple, object] = {}  # reading is the dear part: each trace once a session

TRUTH = {  # path: set of the ground truth, schedule by our name, idle share where it is of other steps
    "bytedance-st/trace.parquet": ("bytedance-st", "1f1b", None),
    "bytedance-st/timeline.json.gz": ("bytedance-st", "1f1b", None),
    "bytedance-st/st-kineto": ("bytedance-st", "1f1b", 0.5158),
    "bytedance-st/st-nsys.sqlite": ("bytedance-st", "1f1b", 0.5158),
    "primus-pp8": ("primus-pp8", "1f1b", None),
    "megatronapp-pp": ("megatronapp-pp", "interleaved", None),
}
TORCH = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "1f1b_runtime": "1f1b",
    "interleaved1f1b": "interleaved",
    "zbv": "zb-v",
    "dualpipev": "dualpipe-v",
}


@pytest.fixture
def ran(cli, shared):
    """What ``diagnose --json`` did on one of the traces."""

    def run(name, *args):
        key = (name, *args)
        if key not in SEEN:
            SEEN[key] = cli("diagnose", shared / "traces" / name, "--json", *args)
        return SEEN[key]

    return run


@pytest.fixture
def truth(shared):
    return json.loads((shared / "traces" / "ground_truth.json").read_text())


def causes(document):
    return {each["cause"]: each["cost_share"] for each in document["causes"]}


@pytest.mark.parametrize("name", TRUTH)
def test_the_bubble_is_the_published_one_and_the_order_has_its_name(ran, truth, name):
    source, schedule, share = TRUTH[name]
    found, want = ran(name).json, truth[source]
    assert found["idle_share"] == pytest.approx(share or want["bubble_mean"], abs=0.005)
    assert (found["schedule"], found["departure"]) == (schedule, None)
    assert [found[key] for key in ("ranks", "chunks", "microbatches")] == [want["P"], want["V"], want["M"]]
    assert found["evidence"] == "measured"
    assert sum(causes(found).values()) == pytest.approx(1)


@pytest.mark.parametrize(("name", "within"), [("bytedance-st/trace.parquet", 0.005), ("primus-pp8", 0.015)])
def test_simulated_again_the_window_is_what_was_measured(ran, truth, name, within):
    found, want = ran(name).json, truth[TRUTH[name][0]]
    assert found["resim_ratio"] == pytest.approx(1, abs=within)
    assert found["resim_without_transfer_ratio"] == pytest.approx(want["resim_zero_comm_over_window"], abs=0.002)


@pytest.mark.parametrize("name", ["bytedance-st/trace.parquet", "bytedance-st/st-kineto"])
def test_causes_of_st_schedule_364_imbalance_149_variation_minus_1_rest_2_5_thousandths(ran, name):
    share = causes(ran(name).json)
    assert share["schedule"] == pytest.approx(0.364, abs=0.01)
    assert share["imbalance"] == pytest.approx(0.149, abs=0.01)
    assert share["variation"] == pytest.approx(-0.001, abs=0.01)
    assert share["transfer"] + share["unexplained"] == pytest.approx(0.0025, abs=0.001)


@pytest.mark.parametrize(("name", "steps"), [("primus-pp8", [1]), ("megatronapp-pp", [0]), ("bytedance-st/st-kineto", [])])
def test_slow_first_steps_are_left_out_and_said(ran, name, steps):
    found = ran(name).json
    assert found["left_out_steps"] == steps
    assert any("1.5 times the median" in remark for remark in found["remarks"]) == bool(steps)


@pytest.mark.parametrize("name", TORCH)
def test_torch_traces_on_a_cpu_show_the_order_that_ran(ran, name):
    found = ran(f"torch-cpu/{name}").json
    assert (found["schedule"], found["ranks"], found["microbatches"], found["steps"]) == (TORCH[name], 4, 8, 2)
    assert sum(cause["cost_ms"] for cause in found["causes"]) == pytest.approx(found["makespan_ms"])


@pytest.mark.parametrize("name", ["dlrm8", "nsys"])
def test_an_all_to_all_is_no_pipeline(ran, name):
    there = ran(name)
    assert (there.status, there.out) == (1, "")
    assert "there is no pipeline here" in there.err
    assert len(there.err.splitlines()) == 1


@pytest.mark.parametrize("fault", ["truncgz", "norank", "duprank", "ts0", "skew", "listroot"])
def test_one_bad_rank_costs_one_rank_aloud_and_an_answer_stands(ran, fault):
    there = ran(f"broken/{fault}")
    assert there.status == 0
    assert there.json["idle_share"] == pytest.approx(0.5158, abs=0.001)
    assert there.json["windows"] == (12 if fault == "truncgz" else 16)
    assert there.json["remarks"]
    assert "Traceback" not in there.err


def test_no_answer_is_left_where_every_rank_is_bad(cli, tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}_trace.json").write_text('{"traceEvents": [{"ph": "X", "na')
    there = cli("diagnose", tmp_path)
    assert there.status in (1, 2)
    assert there.out == ""
    assert there.err.startswith("debubble: ")


def test_places_and_steps_can_be_said(ran):
    said, told = ran("bytedance-st/st-kineto", "--ranks", 4, "--data", 2).json, ran("bytedance-st/st-kineto").json
    assert said["idle_share"] == pytest.approx(told["idle_share"], abs=1e-6)
    few = ran("bytedance-st/st-kineto", "--steps", "23:33").json
    assert (few["steps"], few["windows"]) == (3, 6)


def test_places_that_cannot_be_are_refused(ran):
    there = ran("bytedance-st/st-kineto", "--ranks", 3)
    assert there.status == 2
    assert "--ranks 3: 8 devices cannot be split so" in there.err
