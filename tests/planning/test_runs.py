"""Tables of measured runs: what a cell means, what follows from others, what is counted and what is left out."""

import json

import pytest

from debubble.config.config import Layout
from debubble.core.errors import InputError
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.model import parameters
from debubble.estimate.read_model import read_model
from debubble.planning.runs import GIB, Planned, read_runs

ROW = {
    "model": "llama3-8b",
    "gpu": "H100",
    "gpus": "64",
    "sequence": "8192",
    "global_batch": "256",
    "micro_batch": "1",
    "tensor": "2",
    "pipeline": "4",
    "data": "8",
    "context": "1",
    "chunks": "1",
    "status": "ok",
    "step_seconds": "5.5",
}


def table(tmp_path, *rows, name="runs.csv"):
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [",".join(columns), *(",".join(row.get(column, "") for column in columns) for row in rows)]
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return path


def read(tmp_path, *rows, **given):
    return read_runs(table(tmp_path, *({**ROW, **row} for row in rows)), **given)


def only(tmp_path, **cells):
    return read(tmp_path, cells).runs[0]


def test_a_row_is_a_model_on_a_cluster_in_a_layout(tmp_path):
    run = only(tmp_path, zero="1", recompute="selective", precision="fp8", peak_gib="60")
    assert run.model == read_model("llama3-8b")
    assert (run.cluster.device.name, run.cluster.gpus) == ("H100", 64)
    assert run.layout == Layout(
        tensor=2,
        pipeline=4,
        data=8,
        sequence=8192,
        microbatches=32,
        zero=1,
        recompute="selective",
        precision="fp8",
    )
    assert (run.seconds, run.memory, run.status) == (5.5, 60 * GIB, "ok")


def test_a_set_is_named_after_its_file(tmp_path):
    assert read_runs(table(tmp_path, ROW, name="our cluster.csv")).name == "our cluster"


def test_tokens_a_second_are_a_step(tmp_path):
    run = only(tmp_path, step_seconds="", tokens_per_second_per_gpu="1000")
    assert run.seconds == pytest.approx(256 * 8192 / 64 / 1000)


@pytest.mark.parametrize("missing", ["tensor", "pipeline", "data", "context"])
def test_one_degree_that_is_empty_follows_from_the_devices(tmp_path, missing):
    assert only(tmp_path, **{missing: ""}).layout == only(tmp_path).layout


def test_degrees_that_are_empty_are_1_only_if_the_others_are_all_devices(tmp_path):
    one = only(tmp_path, context="", tensor="", gpus="32")
    assert (one.layout.tensor, one.layout.context) == (1, 1)
    left = read(tmp_path, {"context": "", "tensor": ""}).left_out
    assert left == (("tensor, context unknown", 1),)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpus": "65"}, "tensor x pipeline x data x context are not its gpus"),
        ({"gpus": ""}, "gpus unknown"),
        ({"micro_batch": ""}, "micro_batch unknown"),
        ({"sequence": ""}, "sequence unknown"),
        ({"global_batch": ""}, "global_batch unknown"),
        ({"global_batch": "257"}, "data x micro_batch does not divide the global batch"),
        ({"chunks": ""}, "chunks unknown"),
        ({"model": "mixtral-8x7b"}, "expert unknown"),
        ({"model": "mixtral-8x7b", "expert": "64"}, "experts are spread over more devices than a stage has"),
        ({"chunks": "16"}, "more stages than layers"),
        ({"chunks": "2", "global_batch": "8"}, "interleaved with fewer micro-batches than ranks"),
        ({"model": "no such model"}, "model = no such model is not known"),
        ({"model": "", "layers": "2", "hidden": "64"}, "heads, ffn, vocab of the model unknown"),
        ({"gpu": "H1000"}, "gpu = H1000 is not known"),
        ({"status": "hung"}, "status = hung"),
        ({"task": "LoRA"}, "task = LoRA"),
    ],
    ids=str,
)
def test_a_row_that_says_too_little_or_cannot_be_is_left_out_for_a_reason(tmp_path, cells, reason):
    found = read(tmp_path, {}, cells)
    assert len(found.runs) == 1
    assert found.left_out == ((reason, 1),)


def test_repeats_count_once_with_the_memory_that_one_of_them_prints(tmp_path):
    found = read(tmp_path, {}, {"peak_gib": "50"}, {"step_seconds": "6"})
    assert [(run.seconds, run.memory / GIB) for run in found.runs] == [(5.5, 50), (6, 0)]
    assert found.left_out == (("it repeats another row", 1),)


def test_what_nvidia_smi_shows_holds_a_context_and_communicators_beside_what_is_allocated(tmp_path):
    sizes = {"tensor": "4", "pipeline": "2", "data": "1", "gpus": "8", "peak_gib": "", "device_gib": ""}
    found = read(tmp_path, {**sizes, "peak_gib": "50"}, {**sizes, "step_seconds": "6", "device_gib": "50"})
    allocated, shown = (run.memory for run in found.runs)
    # One communicator of four devices, two with a neighbour, and the context.
    assert allocated - shown == pytest.approx(688e6 + 2 * 544e6 + 1573 * 2**20)


def test_what_is_unknown_and_taken_as_usual_is_counted_and_strange_columns_are_named(tmp_path):
    found = read(tmp_path, {"zero": "1", "weather": "fine"}, {"zero": "", "step_seconds": "6"})
    assert dict(found.taken_as_usual)["zero"] == 1
    assert dict(found.taken_as_usual)["recompute"] == 2
    # Most rows first, then by name, so that two runs of one table print the same.
    assert list(found.taken_as_usual) == sorted(found.taken_as_usual, key=lambda each: (-each[1], each[0]))
    assert found.unknown_columns == ("weather",)


def test_a_model_may_be_its_sizes_or_a_config_beside_the_table_or_one_of_ours_cut(tmp_path):
    sizes = {"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "128256"}
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}
    (tmp_path / "ours.json").write_text(json.dumps(config))
    found = read(tmp_path, {}, {"model": "", **sizes}, {"model": "ours.json"}, {"layers": "8"})
    ours, by_size, by_file, cut = (run.model for run in found.runs)
    assert parameters(ours) == parameters(by_size) == parameters(by_file)
    assert cut == read_model("llama3-8b").with_layers(8)


def test_sizes_go_before_a_name_whose_hidden_size_is_another(tmp_path):
    sizes = {"layers": "4", "hidden": "512", "heads": "8", "ffn": "2048", "vocab": "1000"}
    model = only(tmp_path, **sizes).model
    assert (model.hidden, model.layers, model.name) == (512, 4, "llama3-8b")


def test_experts_by_their_columns(tmp_path):
    sizes = {"model": "", "layers": "4", "hidden": "512", "heads": "8", "ffn": "2048", "vocab": "1000", "expert": "2"}
    experts = {"experts": "8", "top_k": "2", "expert_ffn": "256", "shared_experts": "1"}
    found = only(tmp_path, **sizes, **experts).model.experts
    assert (found.count, found.active, found.width, found.shared) == (8, 2, 256, 256)


def test_a_device_may_be_a_file_beside_the_table_and_a_network_the_cluster_s_own(tmp_path):
    (tmp_path / "ours.toml").write_text("bf16_tflops = 100\nmemory_gb = 40\nmemory_tb_s = 1\nlink_gb_s = 100\n")
    run = only(tmp_path, gpu="ours.toml", gpus_per_node="4", nic_gb_s="12.5")
    assert (run.cluster.device.memory, run.cluster.gpus_per_node, run.cluster.nic) == (40e9, 4, 12.5e9)


@pytest.mark.parametrize(
    ("column", "field", "on"),
    [
        ("sequence_parallel", "sequence_parallel", False),
        ("tensor_overlap", "tensor_overlap", True),
        ("data_overlap", "overlap_gather", True),
        ("fused_attention", "fused_attention", False),
        ("fused_kernels", "fused_kernels", False),
        ("blocking_sends", "blocking_sends", True),
    ],
)
def test_a_switch_is_a_column(tmp_path, column, field, on):
    for word in ("1", "true", "Yes") if on else ("0", "false", "No"):
        assert getattr(only(tmp_path, **{column: word}).layout, field) is on
    assert getattr(only(tmp_path, **{column: ""}).layout, field) is not on


def test_habits_of_a_framework_stand_in_for_switches_that_are_empty(tmp_path):
    layout = only(tmp_path, framework="nanotron").layout
    assert (layout.fused_kernels, layout.bucket, layout.overlap_gather) == (False, 25e6, False)
    assert only(tmp_path, framework="nanotron", fused_kernels="1").layout.fused_kernels


def test_ends_with_fewer_layers_leave_the_rest_even(tmp_path):
    assert only(tmp_path, last_layers="5").layout.layers == (9, 9, 9, 5)
    assert only(tmp_path, first_layers="7", last_layers="5").layout.layers == (7, 10, 10, 5)
    assert only(tmp_path, split="7 9 9 7").layout.layers == (7, 9, 9, 7)


def test_every_cell_that_cannot_be_read_is_a_line_with_its_place(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, {"tensor": "two", "step_seconds": "-1"}, {"zero": "1.5"}, {"tensor_overlap": "maybe"})
    values = [fault.value for fault in caught.value.faults]
    assert values == [
        "runs.csv line 2: tensor = two",
        "runs.csv line 2: step_seconds = -1",
        "runs.csv line 3: zero = 1.5",
        "runs.csv line 4: tensor_overlap = maybe",
    ]


@pytest.mark.parametrize("column", ["gpu", "gpus", "sequence", "micro_batch", "model"])
def test_a_column_that_nothing_else_can_tell_is_asked_for(tmp_path, column):
    row = {name: cell for name, cell in ROW.items() if name != column}
    with pytest.raises(InputError, match=f"{column}: it is missing"):
        read_runs(table(tmp_path, row))


@pytest.mark.parametrize("text", ["", "model,gpu\n", "\x00\x01", "model,gpu\n\n\n"])
def test_no_table_is_one_line(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"runs\.csv"):
        read_runs(path)


def test_a_table_of_what_is_planned_need_not_say_what_it_shares_with_the_plan(tmp_path):
    planned = Planned(read_model("llama3-8b"), cluster_of(read_hardware("H100"), 8), Layout(sequence=2048))
    path = table(tmp_path, {"tp": "2", "dp": "4", "gbs": "16", "step_s": "1.5", "mem_gb": "60"})
    run = read_runs(path, planned).runs[0]
    assert run.layout == Layout(tensor=2, data=4, microbatches=4, sequence=2048)
    assert (run.cluster.gpus, run.seconds, run.memory) == (8, 1.5, 60e9)
