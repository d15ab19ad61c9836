"""Configurations as people have them: scripts, recipes, YAML, TOML of a dozen programs, each with its right verdict.

The first rows are the shared failing inputs; the rest was written from the documentation of each program.
"""

import json

import pytest

from debubble.cli.main import main
from debubble.config.config import Config
from debubble.frameworks.catalog import FRAMEWORKS, read_text, recognised
from debubble.frameworks.keys import read_config

TORCHRUN = "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 "
TITAN = """
[model]
name = "llama3"
[training]
local_batch_size = 16
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
"""
RECIPES = """
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer


def small_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 8
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 64
    return cfg


def large_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model.num_layers = 62
    cfg.model.pipeline_model_parallel_size = 8
    return cfg
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--pipeline-model-parallel-size", type=int, default=8)
parser.add_argument("--num-layers", type=int, default=12)
parser.add_argument("--micro-batch-size", type=int, default=1)
args = parser.parse_args()
"""
VERL = """
PP=${PP:-4}
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer' \\
    data.train_batch_size=512 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$PP \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 \\
    actor_rollout_ref.rollout.n=4 \\
    critic.megatron.pipeline_model_parallel_size=16 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=4
"""
SLIME = """
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "${SCRIPT_DIR}/models/model.sh"
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 4
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --num-steps-per-rollout 1
)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \\
   --actor-num-nodes 2 --actor-num-gpus-per-node 8 ${MODEL_ARGS[@]} ${PERF_ARGS[@]} ${ROLLOUT_ARGS[@]}
"""
PRIMUS = """
work_group: ${PRIMUS_TEAM:amd}
exp_name: ${PRIMUS_EXP_NAME:mixtral}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: mixtral_8x7B_v0.1.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 256
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: ${PRIMUS_PP:4}
      expert_model_parallel_size: 8
      sequence_parallel: 1
      overlap_grad_reduce: true
      overlap_param_gather: true
"""
PRIMUS_TITAN = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    overrides:
      training: {local_batch_size: 4, seq_len: 8192}
      parallelism: {pipeline_parallel_degree: 2, pipeline_parallel_schedule: GPipe, tensor_parallel_degree: 4}
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 8
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
num_machines: 1
num_processes: 16
"""
INTERNEVO = """
parallel = dict(zero1=dict(size=-1), tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=4, interleaved_overlap={overlap}), weight=dict(size=1))
data = dict(seq_len=4096, micro_num={many}, micro_bsz=1, rampup_batch_size="")
model = dict(num_chunks=2, num_layers={layers})
"""
MAXTEXT = (
    "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml run_name=x per_device_batch_size=2 "
    "base_num_decoder_layers=32 ici_pipeline_parallelism={ranks} num_layers_per_pipeline_stage=2 "
    "num_pipeline_microbatches={many} ici_fsdp_parallelism=-1 {more}\n"
)
SWIFT = """
NPROC_PER_NODE=8 \\
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B-Instruct-2507 \\
    --load_safetensors true \\
    --split_dataset_ratio 0.01 \\
    --pipeline_model_parallel_size 2 \\
    --expert_model_parallel_size 4 \\
    --moe_permute_fusion true \\
    --micro_batch_size {size} \\
    --global_batch_size 16 \\
    --recompute_granularity full \\
    --recompute_method uniform \\
    --recompute_num_layers 1
"""
HEREDOC = """
cat > ds.json <<JSON
{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "pipeline": {"stages": 4}}
JSON
deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed_config ds.json
"""


@pytest.fixture
def check(tmp_path, capsys):
    """The exit status and JSON of ``check`` for a file of this name and text, or for a shared one."""

    def run(file, *args, text=None):
        if text is not None:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
            file = tmp_path / file
        status = main(["check", str(file), *map(str, args), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def configurations_of_text(text: str) -> Config:
    """What a launch script says to the framework that it launches."""
    block = read_text(text, ".sh", "run.sh", "run.sh")[0]
    return read_config(recognised(block.pairs, "run.sh", block.program), block.pairs, whole=True)


def rules(said) -> str:
    return " | ".join(f"{one['key']}: {one['rule']}" for one in said["faults"])


# What the rows of the shared list say of configurations.


def test_an_open_degree_is_no_verdict(shared, check):
    status, said = check(shared / "cases/failing/open-degree.sh", "--framework", "megatron")
    assert (status, said["legal"]) == (2, None)
    assert "give --pipeline" in json.dumps(said)


@pytest.mark.parametrize("args", [(), ("--framework", "nemo")])
def test_overrides_of_a_script_are_its_configuration(shared, check, args):
    status, said = check(shared / "cases/failing/nemo-overrides.sh", *args)
    assert (status, said["backend"], said["pipeline"]) == (1, "nemo", 6)
    assert "24 devices, which does not divide it" in rules(said)  # 32 GPUs


def test_internevo_is_read_as_what_it_is(shared, check):
    status, said = check(shared / "cases/failing/internevo.py")
    assert (said["backend"], said["pipeline"], said["chunks"], said["microbatches"]) == ("internevo", 4, 2, 6)
    assert (status, rules(said)) == (1, "data.micro_num: with several chunks it is a multiple of 4 ranks")


def test_each_function_of_a_file_is_a_verdict(shared, check):
    status, said = check(shared / "cases/failing/config_registry.py", "--framework", "torchtitan")
    assert (status, [one["name"] for one in said["verdicts"]]) == (0, ["small", "large"])
    status, said = check(f"{shared}/cases/failing/config_registry.py:small")
    assert (status, said["pipeline"], said["data"]) == (0, 2, 2)


def test_usage_text_is_no_launch_line(shared, check):
    status, said = check(shared / "cases/failing/usage-text.sh", "--framework", "megatron")
    assert (status, said["pipeline"], said["microbatches"]) == (1, 8, 128)
    assert "12 layers do not split evenly over 8 ranks" in rules(said)


def test_a_switch_with_a_value_is_on(shared, check):
    status, said = check(shared / "cases/failing/switch-with-value.sh")
    assert (status, said["legal"], said["backend"], said["pipeline"]) == (0, True, "swift", 4)


def test_megatron_core_recomputes_no_layer_if_told_so(shared, check):
    status, said = check(shared / "cases/failing/recompute-zero.yaml")
    assert (status, said["legal"], said["pipeline"]) == (0, True, 4)


def test_key_value_heads_are_shared_out_in_torchtitan_alone(capsys):
    flags = ("--tensor", "8", "--kv-heads", "2", "--heads", "32", "--layers", "60")
    assert main(["check", "--framework", "torchtitan", *flags]) == 1
    assert main(["check", "--framework", "megatron", *flags]) == 0


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ((), "wants virtual stages"),
        (("--recompute-granularity", "full", "--recompute-method", "uniform"), "recomput"),
        (("--moe-shared-expert-overlap",), "shared"),
    ],
)
def test_overlapped_experts_want_virtual_stages_and_no_second_way(capsys, more, rule):
    flags = ("--pipeline-model-parallel-size", "4", "--num-layers", "48", "--num-experts", "64")
    flags += ("--expert-model-parallel-size", "8", "--overlap-moe-expert-parallel-comm", "--world-size", "64")
    assert main(["check", "--framework", "megatron", *flags, *more, "--json"]) == 1
    assert rule in rules(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", ["list-aliases.yaml", "text-where-number.config.json", "builder_raises.py"])
def test_what_says_no_job_is_one_line(shared, capsys, name):
    assert main(["check", str(shared / "cases" / "failing" / name)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# Of each kind more, from the documentation of each program.


def test_a_default_in_a_script_is_its_value(check):
    status, said = check("a.sh", text="PP=${PP:-8}\n" + TORCHRUN + "--num-layers 12 --pipeline-model-parallel-size $PP")
    assert (status, said["pipeline"]) == (1, 8)
    assert "12 layers do not split evenly over 8 ranks" in rules(said)


@pytest.mark.parametrize("text", ["${PP}", "$1", "`cat pp`", "$(cat pp)", "{{ pp }}"])
def test_what_a_script_leaves_open_is_asked_for(check, text):
    status, said = check("a.sh", text=TORCHRUN + f"--num-layers 12 --pipeline-model-parallel-size {text}")
    assert (status, said["legal"]) == (2, None)


@pytest.mark.parametrize("text", ["???", "${oc.env:PP}", "${oc.env:PP,8}", "${model.ranks}"])
def test_interpolations_of_yaml_are_open_unless_they_have_a_default(check, text):
    yaml = f"model: {{num_layers: 12, pipeline_model_parallel_size: '{text}', micro_batch_size: 1}}\n"
    status, said = check("a.yaml", text=yaml)
    assert (status, said["legal"]) == ((1, False) if "8" in text else (2, None))


def test_defaults_of_argparse_are_what_a_program_launches(check):
    status, said = check("pretrain.py", text=ARGPARSE)
    assert (status, said["pipeline"]) == (1, 8)
    assert "12 layers do not split evenly over 8 ranks" in rules(said)


@pytest.mark.parametrize(
    ("words", "status", "ranks"),
    [
        ((), 1, 6),
        (("model.pipeline_model_parallel_size=4",), 0, 4),
        (("++model.pipeline_model_parallel_size=8",), 0, 8),
        (("+model.pipeline_model_parallel_size=2", "~model.virtual_pipeline_model_parallel_size"), 0, 2),
    ],
)
def test_overrides_beside_a_file_win(shared, check, words, status, ranks):
    found, said = check(shared / "cases/failing/nemo-overrides.sh", *words)
    assert (found, said["pipeline"]) == (status, ranks)


@pytest.mark.parametrize("value", ["true", "True", "1", "on"])
def test_switches_with_values_in_overrides(check, value):
    line = "python train.py model.tensor_model_parallel_size=2 model.num_moe_experts=8 model.num_layers=4 "
    line += "model.add_bias_linear=false "
    assert check("a.sh", text=line + f"++model.sequence_parallel={value}\n")[0] == 0
    assert check("a.sh", text=line + "++model.sequence_parallel=false\n")[0] == 1


def test_functions_of_a_recipe_are_told_apart_and_their_model_may_stand_elsewhere(check):
    status, said = check("recipes.py", text=RECIPES)
    legal = {one["name"]: one["legal"] for one in said["verdicts"]}
    assert (status, legal) == (1, {"small_pretrain_config": True, "large_pretrain_config": False})
    status, said = check("recipes.py:small_pretrain_config")
    assert status == 2  # such a file is not here


def test_verl_trains_the_actor(check):
    status, said = check("run.sh", text=VERL)
    assert (status, said["backend"], said["pipeline"], said["data"]) == (0, "verl", 4, 4)
    # 64 prompts of 4 answers each, over 4 replicas, 2 samples at a time.
    assert said["microbatches"] == 64 * 4 // 4 // 2
    # The critic and the reference have pipelines of their own, of which that is said; inference has none.
    assert [note.split(" is of another")[0] for note in said["warnings"] if "another model" in note] == [
        "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size = 1",
        "critic.megatron.pipeline_model_parallel_size = 16",
    ]


def test_verl_with_micro_batches_of_tokens_has_no_number_of_them(check):
    text = VERL.replace("data.train", "actor_rollout_ref.actor.use_dynamic_bsz=True data.train")
    status, said = check("run.sh", text=text)
    assert (status, said["pipeline"], said.get("microbatches")) == (0, 4, None)


def test_slime_reads_the_model_that_its_script_names(check, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.sh").write_text("MODEL_ARGS=(\n  --num-layers 30\n  --hidden-size 2048\n)\n")
    status, said = check("run.sh", text=SLIME)
    assert (status, said["backend"], said["pipeline"], said["data"]) == (1, "slime", 4, 2)
    assert "30 layers do not split evenly over 4 ranks" in rules(said)


def test_slime_without_its_model_is_judged_by_what_it_says(check):
    status, said = check("run.sh", text=SLIME)
    assert (status, said["backend"], said["pipeline"], said.get("microbatches")) == (0, "slime", 4, None)


def test_a_file_of_model_arguments_is_no_job(check):
    status, said = check("model.sh", text="MODEL_ARGS=(\n  --num-layers 30\n  --hidden-size 2048\n)\n")
    assert status == 2
    assert "nothing of a job" in said["error"]["rule"]


@pytest.mark.parametrize(("size", "status", "many"), [(2, 0, 2), (8, 1, None)])
def test_ms_swift_takes_its_devices_from_the_surroundings(check, size, status, many):
    found, said = check("sft.sh", text=SWIFT.format(size=size))
    assert (found, said["backend"], said["pipeline"], said["data"]) == (status, "swift", 2, 4)
    assert said.get("microbatches") == many  # 16 samples over 4 replicas


def test_primus_has_defaults_behind_a_colon(check):
    status, said = check("mixtral.yaml", text=PRIMUS)
    assert (status, said["backend"], said["pipeline"]) == (0, "primus", 4)


def test_primus_for_torchtitan_is_torchtitan(check):
    status, said = check("llama.yaml", text=PRIMUS_TITAN)
    assert (status, said["backend"], said["pipeline"], said["microbatches"]) == (0, "torchtitan", 2, 4)


def test_accelerate_says_micro_batches_and_processes(check):
    status, said = check("config.yaml", text=ACCELERATE)
    assert (status, said["backend"], said["pipeline"], said["data"]) == (0, "accelerate", 2, 4)
    assert said["microbatches"] == 8
    status, said = check("config.yaml", text=ACCELERATE.replace("num_processes: 16", "num_processes: 6"))
    assert (status, said["pipeline"]) == (1, 2)


def test_accelerate_in_a_script(check):
    line = "accelerate launch --use_megatron_lm --num_processes 8 --megatron_lm_tp_degree 2 --megatron_lm_pp_degree 3 "
    status, said = check("run.sh", text=line + "--megatron_lm_num_micro_batches 4 train.py --lr 1e-4\n")
    assert (status, said["backend"], said["pipeline"]) == (1, "accelerate", 3)


@pytest.mark.parametrize(
    ("overlap", "many", "layers", "rule"),
    [
        (True, 8, 30, ""),  # 15 layers a chunk over 4 ranks: 3, 4, 4, 4
        (False, 8, 30, "several chunks want it"),
        (True, 8, 31, "31 layers do not fall into equal chunks"),
        (True, 8, 6, "3 layers of a chunk cannot fill 4 ranks"),
    ],
)
def test_internevo_asks_of_chunks(check, overlap, many, layers, rule):
    status, said = check("7B.py", text=INTERNEVO.format(overlap=overlap, many=many, layers=layers))
    assert (status, said["backend"], said["chunks"]) == (1 if rule else 0, "internevo", 2)
    assert rule in rules(said)
    if not rule:
        assert said["idle_share"] == pytest.approx(3 / (2 * 8 + 3))


def test_internevo_with_sizes_instead_of_tables(check):
    status, said = check("7B.py", text="parallel = dict(zero1=8, tensor=2, pipeline=4)\ndata = dict(micro_num=4)\n")
    assert (status, said["backend"], said["pipeline"]) == (0, "internevo", 4)


@pytest.mark.parametrize(
    ("ranks", "many", "more", "rule"),
    [
        (4, 8, "", ""),
        (4, 6, "", "it is a multiple of 4 stages"),
        (5, 10, "", "5 stages of 2 layers do not divide 32 layers"),
        (4, 4, "pipeline_delay_activation_forwarding=true", "which takes 8 or more"),
        (4, 8, "num_pipeline_repeats=3", "4 stages x 3 repeats x 2 layers are not 32"),
    ],
)
def test_the_circular_pipeline_of_maxtext(check, ranks, many, more, rule):
    status, said = check("run.sh", text=MAXTEXT.format(ranks=ranks, many=many, more=more))
    assert (status, said["backend"], said["pipeline"]) == (1 if rule else 0, "maxtext", ranks)
    assert rule in rules(said)
    if not rule:  # base.yml: (stages - 1) / (repeats x micro-batches + stages - 1)
        assert (said["chunks"], said["idle_share"]) == (4, pytest.approx(3 / (4 * 8 + 3)))


@pytest.mark.parametrize(
    ("axis", "gpus", "degree"), [("tensor", 64, 4), ("context", 32, 2), ("expert", 128, 8), ("tensor", 16, 1)]
)
def test_an_axis_of_minus_one_takes_the_devices_that_the_others_leave(check, axis, gpus, degree):
    text = MAXTEXT.format(ranks=4, many=8, more=f"ici_{axis}_parallelism=-1")
    text = text.replace("ici_fsdp_parallelism=-1", "ici_fsdp_parallelism=4")
    status, said = check("run.sh", "--gpus", gpus, text=text)
    assert (status, said["pipeline"]) == (0, 4)
    read = configurations_of_text(f"{text.rstrip()} devices={gpus}\n")
    assert getattr(FRAMEWORKS["maxtext"].filled(read), axis) == degree


def test_an_axis_of_minus_one_wants_the_devices_and_a_number_for_fsdp(check):
    text = MAXTEXT.format(ranks=-1, many=8, more="")
    status, said = check("run.sh", "--gpus", 64, text=text)
    assert status == 1
    assert "one axis of a slice may be -1" in rules(said)
    status, said = check("run.sh", text=text.replace("ici_fsdp_parallelism=-1", "ici_fsdp_parallelism=4"))
    assert status == 2
    assert "--gpus" in json.dumps(said)


def test_deepspeed_json_that_a_script_writes(check):
    status, said = check("run.sh", text=HEREDOC)
    assert (status, said["backend"], said["pipeline"], said["data"]) == (0, "deepspeed", 4, 4)
    assert said["microbatches"] == 16


def test_a_toml_of_torchtitan_is_checked_planned_with_and_compared(check, tmp_path, capsys):
    status, said = check("a.toml", text=TITAN)
    assert (status, said["backend"], said["pipeline"], said["chunks"]) == (0, "torchtitan", 4, 2)
    (tmp_path / "b.toml").write_text(TITAN.replace("local_batch_size = 16", "local_batch_size = 32"))
    assert main(["why", str(tmp_path / "a.toml"), str(tmp_path / "b.toml"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    # Two chunks on 4 ranks: (p-1) / (v m + p-1).
    assert said["a"]["idle_share"] == pytest.approx(3 / (2 * 16 + 3), abs=5e-4)
    assert said["b"]["idle_share"] == pytest.approx(3 / (2 * 32 + 3), abs=5e-4)
    # More micro-batches are more local batch, which torchtitan takes: no change is refused for the batch as it was.
    assert "refuses it: a batch of" not in json.dumps(said)


@pytest.mark.parametrize(("gpus", "replicas"), [(8, 2), (16, 4), (32, 8)])
def test_plan_takes_the_batch_of_a_torchtitan_toml_on_the_devices_that_are_given(tmp_path, capsys, gpus, replicas):
    job = tmp_path / "job.toml"
    job.write_text(TITAN.replace("data_parallel_shard_degree = 2", "data_parallel_shard_degree = -1"))
    assert main(["plan", str(job), "--gpus", str(gpus), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    # 16 samples of each of gpus / pipeline replicas.
    assert {row["global_batch"] for row in said["candidates"]} == {16 * replicas}
    assert any(row["pipeline"] == 4 and row["microbatches"] == 16 for row in said["candidates"])


def plan_of_preset(tmp_path, capsys, *words, flavor='flavor = "8B"\n'):
    job = tmp_path / "preset.toml"
    job.write_text(TITAN.replace('name = "llama3"\n', f'name = "llama3"\n{flavor}'))
    status = main(["plan", str(job), "--gpus", "8", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_plan_takes_the_model_that_a_torchtitan_toml_names(tmp_path, capsys):
    status, said = plan_of_preset(tmp_path, capsys, "--gpu", "h100")
    assert (status, said["model"]) == (0, "llama3-8b")
    # Llama 3's own model card: 8.03 billion parameters.
    assert said["parameters"] == pytest.approx(8.03e9, rel=1e-3)
    assert "--model llama3-8b" in said["next"]


def test_an_option_wins_over_the_model_that_a_file_names_and_without_a_device_the_batch_alone_is_planned(
    tmp_path, capsys
):
    assert plan_of_preset(tmp_path, capsys, "--gpu", "h100", "--model", "llama2-7b")[1]["model"] == "llama2-7b"
    status, said = plan_of_preset(tmp_path, capsys)
    assert status == 0
    assert "model" not in said


def test_a_flavor_that_is_not_known_is_asked_for_by_name_and_none_at_all_asks_for_the_model(tmp_path, capsys):
    status, said = plan_of_preset(tmp_path, capsys, "--gpu", "h100", flavor='flavor = "debugmodel"\n')
    assert status == 2
    assert "llama3-debugmodel" in said["error"]["value"]
    status, said = plan_of_preset(tmp_path, capsys, "--gpu", "h100", flavor="")
    assert (status, said["error"]["value"]) == (2, "--model")


# What public scripts and recipes hold, by kind; written anew in the same form.
HANDED_ON = r"""
FSDP=${FSDP:-1}
ARGS=(
    --tensor-model-parallel-size 2
    --num-layers 32
    --micro-batch-size 1
    --global-batch-size 64
    --overlap-grad-reduce
    --overlap-param-gather
)
if [ "${FSDP}" = 1 ]; then
    ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params)
fi
RUN="
cd ${MEGATRON};
python ${MEGATRON}/pretrain_gpt.py ${ARGS[@]}"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
srun --mpi=pmix bash -c "${RUN}" 2>&1 | tee log
EOF
"""
JOINED = r"""
PP=4
OVERRIDES=" \
    model.tensor_model_parallel_size=2 \
    model.pipeline_model_parallel_size=$PP \
    train.global_batch_size=64 train.micro_batch_size=1"
CMD="uv run python -m torch.distributed.run \
    --nproc_per_node=${GPUS:-"8"} \
    --nnodes=2 \
    /opt/scripts/training/run_recipe.py \
    --recipe some_config \
    $OVERRIDES"
srun bash -lc "
    export NCCL_DEBUG=WARN
    $CMD
"
"""


@pytest.mark.parametrize("words", ["sbatch <<EOF", "bash <<EOF", "sbatch --partition=x <<EOF"])
def test_a_document_that_is_handed_to_sbatch_is_the_script(check, words):
    status, said = check("run.sh", text=HANDED_ON.replace("sbatch <<EOF", words))
    # 4 x 8 devices, tensor 2: 16 replicas; gathers are overlapped, for which Megatron-FSDP is on.
    assert (status, said["backend"], said["pipeline"], said["data"], said["microbatches"]) == (0, "megatron", 1, 16, 4)


def test_lines_that_are_joined_in_quotes_are_one_command_and_a_default_may_be_quoted(check):
    status, said = check("run.sh", text=JOINED)
    assert (status, said["backend"], said["pipeline"], said["data"], said["microbatches"]) == (0, "nemo", 4, 2, 32)


@pytest.mark.parametrize("default", ["8", '"8"', "'8'"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_default_is_the_same_with_and_without_quotes(check, default, inside):
    word = f"${{GPUS:-{default}}}"
    text = f"G={word}\n" + TORCHRUN.replace(
        "--nproc_per_node 8", '--nproc_per_node "$G"' if inside else "--nproc_per_node $G"
    )
    status, said = check("run.sh", text=text + "--pipeline-model-parallel-size 4")
    assert (status, said["pipeline"], said["data"]) == (0, 4, 8)


@pytest.mark.parametrize(
    "key",
    ["--moe-ffn-hidden-size 1024", "--decoder-seq-length 8", "--calculate-per-token-loss", "--max-tokens-to-oom 1"],
)
def test_another_key_is_no_misspelling(check, key):
    _, said = check("run.sh", text=f"{TORCHRUN} --num-experts 8 --disable-bias-linear {key}")
    assert not [note for note in said["warnings"] if "did you mean" in note]


@pytest.mark.parametrize(
    "key", ["--tensor-model-paralel-size", "--pipline-model-parallel-size", "--num_atention_heads"]
)
def test_a_misspelling_of_one_word_is_one(check, key):
    _, said = check("run.sh", text=f"{TORCHRUN} {key} 2")
    assert len([note for note in said["warnings"] if "did you mean" in note]) == 1


PROVIDED = """
from megatron.bridge.recipes.common import _pretrain_common


def set_layout(model_cfg, layout=None):
    stages = []
    for layer in range(4):
        stages.append(layer)
    layout = stages
    model_cfg.recompute_granularity = "selective"


def _layout_of(stages, next_layers):
    num_layers = stages * 2 + next_layers
    return [["decoder"]] * num_layers


def dense_config():
    cfg = _pretrain_common()
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = 6
    cfg.model.num_layers = 96
    cfg.model.defer_embedding_wgrad_compute = True
    return cfg


def experts_config():
    cfg = _pretrain_common()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 8
    cfg.model.num_layers = 64
    cfg.model.num_moe_experts = 64
    cfg.model.fp4_param_gather = False
    cfg.comm_overlap.overlap_moe_expert_parallel_comm = True
    cfg.mixed_precision = "bf16_mixed"
    set_layout(cfg.model)
    return cfg


def laid_out_config():
    cfg = _pretrain_common()
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.pipeline_model_parallel_layout = _layout_of(8, 1)
    return cfg
"""


def test_recipes_of_a_provider_are_judged_by_what_they_say(check):
    """What a recipe leaves to its provider is not off; helpers are no recipes; what a helper works out is open."""
    status, said = check("recipes.py", text=PROVIDED)
    verdicts = {one["name"]: one for one in said["verdicts"]}
    assert verdicts.keys() == {"dense_config", "experts_config", "laid_out_config"}
    assert {one["backend"] for one in verdicts.values()} == {"nemo"}
    assert verdicts["dense_config"]["legal"] is True
    assert verdicts["experts_config"]["legal"] is True
    assert verdicts["laid_out_config"]["legal"] is None
    assert "pipeline_model_parallel_layout" in json.dumps(verdicts["laid_out_config"])
    assert status == 2


def test_what_a_recipe_says_itself_is_a_fault_still(check):
    text = PROVIDED.replace("fp4_param_gather = False", 'moe_token_dispatcher_type = "allgather"')
    status, said = check("recipes.py", "--framework", "nemo", text=text)
    experts = next(one for one in said["verdicts"] if one["name"] == "experts_config")
    assert (status, experts["legal"]) == (1, False)
    assert "alltoall" in rules(experts)
