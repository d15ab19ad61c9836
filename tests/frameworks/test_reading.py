"""Reading configurations: scripts with variables, YAML, JSON, TOML, Python, logs; and files that mean harm."""

import json
from pathlib import Path

import pytest

from debubble.config.config import Config
from debubble.core.errors import InputError
from debubble.frameworks.catalog import FRAMEWORKS, read_file, recognised, script_pairs
from debubble.frameworks.keys import Said, pairs_of, read_config

SCRIPT = r"""
#!/bin/bash
GPUS_PER_NODE=8
export NNODES=4    # nodes
WORLD_SIZE=$(($GPUS_PER_NODE * NNODES))
PP=${PP:-6}
DISTRIBUTED=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr $MASTER_ADDR
)
# --num-layers 3
MORE=(
    # --num-experts 8 \
    --num-query-groups 8
    --split 949,50,1
)
if [ -n "$X" ]; then
    MORE+=(
        --context-parallel-size 2
    )
fi
ARGS="
    --num-layers 96 --seq-length=2048 \
    --pipeline-model-parallel-size $PP
    --micro-batch-size $MBS
"
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py $ARGS ${MORE[@]} --rampup-batch-size 16 8 500 --sequence-parallel
"""


def read(name: str, pairs) -> Config:
    return read_config(FRAMEWORKS[name], [Said(*pair) if isinstance(pair, tuple) else pair for pair in pairs])


def read_pairs(path: Path):
    (block,) = read_file(path)
    return block.pairs


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_launch_script_with_variables_lists_defaults_and_sums():
    setup = read("megatron", script_pairs(SCRIPT))
    assert (setup.layers, setup.sequence, setup.pipeline, setup.gpus) == (96, 2048, 6, 32)
    assert (setup.kv_heads, setup.experts, setup.context) == (8, None, 2)
    assert (setup.rampup, setup.split) == ((16, 8, 500), None)
    assert setup.sequence_parallel


def test_a_value_that_the_script_leaves_to_its_surroundings_is_said():
    opened = read("megatron", script_pairs(SCRIPT)).open
    (fault,) = [one.fault for one in opened if one.field == "micro_batch"]
    assert str(fault) == "micro_batch = $MBS (:28): it is set outside of what was given; give --micro-batch"


def test_the_argument_dump_of_a_megatron_log():
    text = "  num_layers ................ 24\n  pipeline_model_parallel_size .................... 5\n"
    setup = read("megatron", script_pairs(text))
    assert (setup.layers, setup.pipeline) == (24, 5)


def test_flags_with_equals_several_values_and_none():
    found = pairs_of(["train.py", "--a", "1", "2", "--b=3", "--c", "--d", "-5"])
    assert [(one.key, one.value) for one in found] == [("--a", "1 2"), ("--b", "3"), ("--c", True), ("--d", "-5")]


def test_deepspeed_json(tmp_path):
    document = {"train_batch_size": 64, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 2}}
    pairs = read_pairs(file(tmp_path, "ds.json", json.dumps(document)))
    setup = read("deepspeed", pairs)
    assert (setup.global_batch, setup.pipeline, setup.zero) == (64, 4, 2)
    assert recognised(pairs, "ds.json").name == "deepspeed"


def test_nanotron_yaml(tmp_path):
    text = "parallelism: {dp: 2, pp: 4, tp: 8, pp_engine: 1f1b}\ntokens: {micro_batch_size: 1}\n"
    text += "model:\n  model_config: {num_hidden_layers: 30, num_attention_heads: 32}\n"
    pairs = read_pairs(file(tmp_path, "config.yaml", text))
    setup = read("nanotron", pairs)
    assert (setup.data, setup.pipeline, setup.tensor, setup.layers, setup.schedule) == (2, 4, 8, 30, "1f1b")
    assert recognised(pairs, "config.yaml").name == "nanotron"


def test_torchtitan_toml_and_python(tmp_path):
    toml = "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = 'Interleaved1F1B'\n"
    python = "def run():\n    return Trainer.Config(parallelism=ParallelismConfig(pipeline_parallel_degree=4,\n"
    python += "        pipeline_parallel_schedule='Interleaved1F1B', tensor_parallel_degree=len(x)))\n"
    for name, text in (("job.toml", toml), ("job.py", python)):
        pairs = read_pairs(file(tmp_path, name, text))
        setup = read("torchtitan", pairs)
        assert (setup.pipeline, setup.schedule) == (4, "Interleaved1F1B")
        assert (setup.known().get("tensor"), "tensor" in setup.opened()) == (None, name == "job.py")
        assert recognised(pairs, name).name == "torchtitan"


def test_nemo_yaml_and_python_with_a_layout_of_lists(tmp_path):
    python = "cfg.model.pipeline_model_parallel_size = 2\n"
    python += "cfg.model.pipeline_model_parallel_layout = [['embedding', 'decoder'], ['decoder', 'loss']]\n"
    setup = read("nemo", read_pairs(file(tmp_path, "recipe.py", python)))
    assert (setup.pipeline, setup.layout) == (2, "Et|tL")
    text = (
        "trainer: {num_nodes: 2, devices: 8}\nmodel: {num_layers_in_first_pipeline_stage: 7, overlap_p2p_comm: false}\n"
    )
    setup = read("nemo", read_pairs(file(tmp_path, "run.yaml", text)))
    assert (setup.gpus, setup.first) == (16, 7)
    assert not setup.on("overlap_p2p_comm", otherwise=True)


def test_our_own_words_count_at_the_top_of_a_file_alone(tmp_path):
    pairs = read_pairs(file(tmp_path, "x.yaml", "pipeline: 4\ndata: {sequence: 7, layers: [1]}\n"))
    assert read("megatron", pairs).known() == Config(framework="megatron", pipeline=4).known()


def test_a_misspelt_key_is_said():
    told = read_config(FRAMEWORKS["megatron"], [Said("--pipeline-model-paralel-size", "4")])
    assert told.remarks == (
        "--pipeline-model-paralel-size is not read by any rule: did you mean pipeline_model_parallel_size?",
    )


def test_all_wrong_values_come_at_once():
    with pytest.raises(InputError) as error:
        read("megatron", [("--num-layers", "many"), ("--tensor-model-parallel-size", 2.5), ("stage_layers", "a,b")])
    assert len(error.value.faults) == 3


BOMB = "a: &a [x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{b}: &{b} {{" + ", ".join(f"k{n}: *{a}" for n in range(9)) + "}"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("b.json", "[" * 100_000),
        ("c.yaml", "a: [1"),
        ("d.yaml", "!!python/object/apply:os.system ['true']"),
        ("e.yaml", BOMB),
        ("f.toml", "= 3"),
        ("g.py", "def"),
        ("h.json", "[1, 2]"),
        ("i.yaml", "x" * 4_100_000),
    ],
)
def test_a_file_that_is_broken_or_means_harm_is_one_clear_fault(tmp_path, name, text):
    with pytest.raises(InputError) as error:
        read_pairs(file(tmp_path, name, text))
    assert len(error.value.faults) == 1
    assert "\n" not in str(error.value)


def test_a_script_is_megatrons_and_the_same_words_as_fields_are_nemos():
    assert recognised(script_pairs(SCRIPT), "train.sh").name == "megatron"
    assert recognised([Said("model.pipeline_model_parallel_size", 4)], "run.yaml").name == "nemo"


def test_a_file_of_nobody_asks_for_the_backend():
    with pytest.raises(InputError, match="give --framework"):
        recognised([Said("colour", "red")], "x.yaml")
