"""Launch scripts as a shell would run them: what is a launch line, which branch is taken, what stays open."""

import pytest

from debubble.frameworks.catalog import FRAMEWORKS, configurations_of, jobs_in, read_text
from debubble.frameworks.keys import read_config
from debubble.frameworks.shell import run

MEGATRON = FRAMEWORKS["megatron"]


def jobs(script: str):
    """Each job of a script of Megatron-LM."""
    blocks = jobs_in(read_text(script, ".sh", "train.sh", "train.sh"), MEGATRON)
    return [read_config(MEGATRON, block.pairs, block.name) for block in blocks]


def job(script: str):
    (found,) = jobs(script)
    return found


LINE = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size {}"


@pytest.mark.parametrize(
    "text", ["${PP}", "$PP", "$(nproc)", "$((GPUS / 8))", "${PP%%x*}", "$1", "`cat pp`", "${PP:?}"]
)
def test_what_the_surroundings_set_is_open_with_its_line(text):
    (one,) = [o for o in job(f"#!/bin/bash\n{LINE.format(text)}\n").open if o.field == "pipeline"]
    assert (one.text.strip("\"'"), one.place) == (text, "train.sh:2")


@pytest.mark.parametrize(
    "before",
    [
        "PP=4",
        "export PP=4",
        "PP=${PP:-4}",
        "PP=${1:-4}",
        ": \nPP=8\nPP=4",
        "P=2; PP=$((P * 2))",
        "declare -i PP=4",
        'if [ -z "$PP" ]; then PP=4; fi',
        '[ -z "$PP" ] && PP=4',
        'SIZE=8B\nif [[ $SIZE == "8B" ]]; then\n  PP=4\nelif [ $SIZE = 70B ]; then\n  PP=8\nelse\n  PP=1\nfi',
        "SIZE=8B\ncase $SIZE in\n  70B) PP=8 ;;\n  8B|7B)\n    PP=4\n    ;;\n  *) PP=1 ;;\nesac",
        "PP=4\nwhile [ $# -gt 0 ]; do\n  case $1 in --pp) PP=$2; shift;; esac\n  shift\ndone",
        "set_sizes() {\n  PP=$1\n}\nset_sizes 4",
        "PP=4\nusage() {\n  PP=99\n  echo --pipeline-model-parallel-size 7\n}",
        "N=16\nif [ $N -gt 8 ]; then PP=4; else PP=2; fi",
        "if [ 8 -lt 4 ] || [ a != a ]; then PP=9; else PP=4; fi",
        "PP=4 # PP=8",
    ],
)
def test_what_the_script_decides_itself_is_known(before):
    assert job(f"{before}\n{LINE.format('$PP')}\n").pipeline == 4


@pytest.mark.parametrize(
    "before",
    [
        'if [ "$MODEL" = big ]; then PP=8; else PP=4; fi',
        "PP=2\nif [ $MODEL = big ]; then\n  PP=8\nfi",
        "case $MODEL in big) PP=8;; *) PP=4;; esac",
        "PP=4\n[ -f override ] && PP=8",
        "source env.sh",
    ],
)
def test_what_rests_on_the_surroundings_is_open_where_branches_differ(before):
    assert "pipeline" in job(f"{before}\n{LINE.format('$PP')}\n").opened()


def test_flags_that_a_branch_may_add_are_taken_as_given():
    text = 'ARGS="--seq-length 2048"\nif [ -n "$FAST" ]; then\n  ARGS="$ARGS --use-distributed-optimizer"\nfi\n'
    found = job(text + LINE.format(4) + " $ARGS\n")
    assert (found.sequence, found.on("use_distributed_optimizer")) == (2048, True)


USAGE = """usage() { echo "usage: train.sh --pipeline-model-parallel-size N --num-layers N"; exit 1; }
# torchrun pretrain_gpt.py --pipeline-model-parallel-size 3 --num-layers 7
cat <<'EOT'
  --tensor-model-parallel-size 99
EOT
python tools/preprocess_data.py --workers 8 --seq-length 4096 --input data.json
"""


def test_help_comments_and_other_commands_are_no_launch_line():
    found = job(USAGE + LINE.format(8) + "\n")
    assert (found.layers, found.pipeline, found.tensor, found.sequence) == (32, 8, None, None)


@pytest.mark.parametrize(
    "launch",
    [
        "srun bash -c '{}'",
        'srun --nodes 2 bash -lc "{}"',
        'CMD="{}"\neval $CMD',
        'CMD="{}"\n$CMD',
        "run() {{\n  {}\n}}\nrun",
        "nohup {} > log 2>&1 &",
        "{} | tee train.log",
        "cd /workspace && {}",
        "(cd x; {})",
        "if ! {}; then\n  echo failed\nfi",
        "ssh host1 '{}'",
        'for host in a b; do ssh $host "{}"; done',
    ],
)
def test_a_launch_line_is_found_however_it_is_wrapped(launch):
    found = jobs(launch.format(LINE.format(8)) + "\n")
    assert {(one.layers, one.pipeline) for one in found} == {(32, 8)}


def test_two_launches_are_two_jobs_and_a_loop_is_one_for_each_word():
    found = jobs(f"for PP in 1 2 4; do\n  {LINE.format('$PP')}\ndone\n")
    assert [one.pipeline for one in found] == [1, 2, 4]
    assert [one.name for one in jobs(f"{LINE.format(2)}\n\n{LINE.format(4)}\n")] == ["line 1", "line 3"]


def test_lists_keep_words_apart_and_grow_and_may_be_quoted():
    text = "ARGS=(\n  --num-layers 32  # layers\n  # --num-experts 8\n"
    text += '  --pipeline-model-parallel-layout "Et*3|(tt|)*2 t|L"\n)\n'
    text += 'ARGS+=(--seq-length 2048)\ntorchrun pretrain_gpt.py "${ARGS[@]}" --tensor-model-parallel-size 2\n'
    found = job(text)
    assert (found.layers, found.sequence, found.tensor, found.experts) == (32, 2048, 2, None)
    assert found.layout == "Et*3|(tt|)*2 t|L"


def test_slurms_header_says_nodes_and_devices():
    text = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8  # all of them\n"
    text += "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_PER_NODE train.py --num-layers 8\n"
    assert job(text).gpus == 32
    assert job("#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\nsrun python train.py --num-layers 8\n").gpus == 8


def test_a_document_that_a_script_writes_is_read_with_the_scripts_variables():
    text = 'MICRO=2\ncat <<EOT > ds.json\n{"train_micro_batch_size_per_gpu": $MICRO,\n'
    text += '"zero_optimization": {"stage": 1}}\nEOT\n'
    text += "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json --pipe-parallel-size 4\n"
    blocks = jobs_in(read_text(text, ".sh", "train.sh", "train.sh"), FRAMEWORKS["deepspeed"])
    found = read_config(FRAMEWORKS["deepspeed"], blocks[0].pairs)
    assert (found.micro_batch, found.zero, found.pipeline) == (2, 1, 4)


@pytest.mark.parametrize("word", ["true", "True", "1", "on", "yes", ""])
def test_a_switch_may_have_a_value(word):
    assert job(f"{LINE.format(4)} --sequence-parallel {word} --bf16\n").sequence_parallel is True


@pytest.mark.parametrize("word", ["false", "False", "0", "off"])
def test_a_switch_may_be_off_by_its_value(word):
    assert job(f"{LINE.format(4)} --sequence_parallel={word}\n").sequence_parallel is False


def test_a_part_of_a_script_is_asked_for_by_its_line(tmp_path):
    (tmp_path / "two.sh").write_text(f"{LINE.format(2)}\n{LINE.format(4)}\n")
    (one,) = configurations_of(tmp_path / "two.sh:line 2")
    assert one.pipeline == 4


def test_loops_and_functions_that_never_end_do_end():
    assert run("f() { f; }\nf\nwhile true; do torchrun a.py --x 1; done\n").commands
    assert len(run("for i in $(seq 9); do for j in 1 2 3; do echo $i$j; done; done").commands) == 0
