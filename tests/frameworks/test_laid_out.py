"""A setup as a layout: what a framework was told comes back, and what it was not told is one documented guess."""

from dataclasses import replace

import pytest

from debubble.config.layout import Layout
from debubble.frameworks.flags import script_pairs
from debubble.frameworks.megatron import MEGATRON
from debubble.frameworks.nanotron import NANOTRON
from debubble.frameworks.nemo import NEMO
from debubble.frameworks.read_keys import read_setup
from debubble.frameworks.setup import Setup, Sizes
from debubble.frameworks.to_layout import laid_out
from debubble.frameworks.torchtitan import TORCHTITAN

LAYOUTS = [
    Layout(tensor=4, pipeline=4, data=2, microbatches=8, sequence=8192, zero=1, overlap_gather=True),
    Layout(pipeline=2, chunks=2, data=2, microbatches=4, zero=0, overlap=False, schedule="interleaved"),
    Layout(tensor=2, pipeline=4, micro_batch=2, microbatches=8, zero=0, overlap=False, recompute="full"),
    Layout(
        tensor=2, context=2, data=4, microbatches=8, overlap_gather=True, tensor_overlap=True, recompute="selective"
    ),
    Layout(pipeline=4, data=2, microbatches=8, zero=0, overlap=False, layers=(9, 9, 9, 5)),
    Layout(tensor=4, data=4, expert=16, expert_tensor=1, microbatches=8, zero=0, overlap=False),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_emitted_for_megatron_is_the_same_layout_again(layout):
    pasted = MEGATRON.emit(layout, Sizes(32, layout.sequence)) + f" --world-size {layout.gpus}"
    setup = read_setup(MEGATRON, script_pairs(f"torchrun pretrain_gpt.py {pasted}")).setup
    again = laid_out(MEGATRON, setup)
    assert replace(again, layers=again.split(32)) == replace(
        layout, layers=layout.split(32), sequence_parallel=layout.tensor > 1
    )


def test_nothing_said_is_one_rank_one_micro_batch_and_megatrons_own_defaults():
    off = {"zero": 0, "sequence_parallel": False, "overlap": False}
    assert laid_out(MEGATRON, Setup()) == replace(Layout(), **off)


def test_experts_of_which_nothing_is_said_are_shared_as_each_framework_does():
    said = Setup(tensor=4, data=2, expert=2)
    shards = [laid_out(backend, said).expert_shards for backend in (MEGATRON, NEMO, NANOTRON, TORCHTITAN)]
    assert shards == [4, 4, 1, 1]
    assert laid_out(MEGATRON, replace(said, expert_tensor=2)).expert_shards == 2
    assert laid_out(MEGATRON, replace(said, expert_tensor=4)) == laid_out(MEGATRON, said)


@pytest.mark.parametrize(
    ("said", "ranks", "zero", "beside"),
    [("default", 1, 3, True), ("always", 1, 3, True), ("never", 1, 2, True), ("default", 4, 1, False)],
)
def test_torchtitans_replicas_share_out_what_fsdp_does(said, ranks, zero, beside):
    """Weights by micro-batch without a pipeline; in one both stay whole until PyTorch reduces, after the backwards."""
    pairs = [("fsdp_reshard_after_forward", said), ("pipeline_parallel_degree", ranks)]
    found = laid_out(TORCHTITAN, read_setup(TORCHTITAN, pairs).setup)
    assert (found.zero, found.overlap) == (zero, beside)


@pytest.mark.parametrize(
    ("sharded", "copies", "context", "data", "zero"),
    [(8, 1, 1, 8, 3), (-1, 1, 1, 8, 3), (1, 8, 1, 8, 0), (-1, 8, 1, 8, 0), (4, 2, 1, 8, 3), (1, 4, 2, 4, 3)],
)
def test_torchtitans_replicas_are_copies_times_those_that_share_one_out(sharded, copies, context, data, zero):
    """Copies alone are DDP; a context group is always sharded over (torchtitan folds it into its FSDP mesh)."""
    degrees = {"data_parallel_shard_degree": sharded, "data_parallel_replicate_degree": copies}
    pairs = [*degrees.items(), ("context_parallel_degree", context), ("world_size", 8)]
    found = laid_out(TORCHTITAN, read_setup(TORCHTITAN, pairs).setup)
    assert (found.data, found.zero, found.gpus) == (data, zero, 8)


def test_degrees_of_replicas_that_do_not_make_up_the_devices_are_refused():
    pairs = [("data_parallel_shard_degree", 4), ("data_parallel_replicate_degree", 4), ("world_size", 32)]
    setup = read_setup(TORCHTITAN, [*pairs, ("pipeline_parallel_degree", 4)]).setup
    assert "x data 16 = 64 is another number" in next(iter(TORCHTITAN.rules(setup))).rule


def test_a_policy_that_torchtitan_lacks_is_refused():
    (breach,) = TORCHTITAN.rules(Setup(reshard="sometimes"))
    assert (breach.fields, breach.rule) == (("reshard",), "the policies are default, always, never")


def test_micro_batches_that_are_not_said_are_as_many_as_ranks():
    assert laid_out(MEGATRON, Setup(pipeline=4)).microbatches == 4
    assert laid_out(MEGATRON, Setup(pipeline=4, microbatches=3)).microbatches == 3


def test_what_a_framework_has_no_word_for_comes_from_the_base():
    base = Layout(sequence=2048, zero=2, precision="fp8", sequence_parallel=False)
    found = laid_out(NANOTRON, Setup(pipeline=2), base)
    assert (found.sequence, found.zero, found.precision, found.sequence_parallel) == (2048, 2, "fp8", False)
    assert laid_out(NEMO, Setup(zero=3), base).zero == 3
