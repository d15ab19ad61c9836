"""A setup as a layout: what a framework was told comes back, and what it was not told is one documented guess."""

from dataclasses import replace

import pytest

from debubble.config.config import Absent, Config, Layout, Open, StillOpen
from debubble.frameworks.catalog import script_pairs
from debubble.frameworks.keys import Said, read_config
from debubble.frameworks.megatron import MEGATRON
from debubble.frameworks.nanotron import NANOTRON
from debubble.frameworks.torchtitan import TORCHTITAN
from debubble.frameworks.wrappers import NEMO

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
    pasted = MEGATRON.emit(layout, Config(layers=32, sequence=layout.sequence)) + f" --world-size {layout.gpus}"
    setup = read_config(MEGATRON, script_pairs(f"torchrun pretrain_gpt.py {pasted}"))
    again = MEGATRON.layout(setup)
    assert replace(again, layers=again.split(32)) == replace(
        layout, layers=layout.split(32), sequence_parallel=layout.tensor > 1
    )


BATCH = {"data": 1, "micro_batch": 1, "microbatches": 1}


def test_nothing_but_a_batch_said_is_one_rank_and_megatrons_own_defaults():
    off = {"zero": 0, "sequence_parallel": False, "overlap": False}
    assert MEGATRON.layout(Config(**BATCH)) == replace(Layout(), **off)


def test_a_batch_that_nobody_said_is_asked_for_and_never_1():
    with pytest.raises(Absent) as error:
        MEGATRON.layout(Config(pipeline=4))
    assert error.value.fields == ("data", "micro_batch", "microbatches")


def test_a_layout_of_an_open_sequence_asks_for_it():
    with pytest.raises(StillOpen, match=r"sequence = \$SEQ"):
        MEGATRON.layout(Config(**BATCH, open=(Open("sequence", "$SEQ"),)))


def test_experts_of_which_nothing_is_said_are_shared_as_each_framework_does():
    said = Config(tensor=4, expert=2, **{**BATCH, "data": 2})
    shards = [backend.layout(said).expert_shards for backend in (MEGATRON, NEMO, NANOTRON, TORCHTITAN)]
    assert shards == [4, 4, 1, 1]
    assert MEGATRON.layout(said.changed(expert_tensor=2)).expert_shards == 2
    assert MEGATRON.layout(said.changed(expert_tensor=4)) == MEGATRON.layout(said)


@pytest.mark.parametrize(
    ("said", "ranks", "zero", "beside"),
    [("default", 1, 3, True), ("always", 1, 3, True), ("never", 1, 2, True), ("default", 4, 1, False)],
)
def test_torchtitans_replicas_share_out_what_fsdp_does(said, ranks, zero, beside):
    """Weights by micro-batch without a pipeline; in one both stay whole until PyTorch reduces, after the backwards."""
    pairs = [("fsdp_reshard_after_forward", said), ("pipeline_parallel_degree", ranks)]
    found = TORCHTITAN.filled(read_config(TORCHTITAN, [Said(*pair) for pair in pairs]))
    assert (found.zero, found.overlap) == (zero, beside)


@pytest.mark.parametrize(
    ("sharded", "copies", "context", "data", "zero"),
    [(8, 1, 1, 8, 3), (-1, 1, 1, 8, 3), (1, 8, 1, 8, 0), (-1, 8, 1, 8, 0), (4, 2, 1, 8, 3), (1, 4, 2, 4, 3)],
)
def test_torchtitans_replicas_are_copies_times_those_that_share_one_out(sharded, copies, context, data, zero):
    """Copies alone are DDP; a context group is always sharded over (torchtitan folds it into its FSDP mesh)."""
    degrees = {"data_parallel_shard_degree": sharded, "data_parallel_replicate_degree": copies}
    pairs = [*degrees.items(), ("context_parallel_degree", context), ("world_size", 8)]
    said = read_config(TORCHTITAN, [Said(*pair) for pair in (*pairs, ("num_pp_microbatches", 1))])
    found = TORCHTITAN.layout(said.changed(micro_batch=1))
    assert (found.data, found.zero, found.gpus) == (data, zero, 8)


def test_degrees_of_replicas_that_do_not_make_up_the_devices_are_refused():
    pairs = [("data_parallel_shard_degree", 4), ("data_parallel_replicate_degree", 4), ("world_size", 32)]
    setup = read_config(TORCHTITAN, [Said(*pair) for pair in (*pairs, ("pipeline_parallel_degree", 4))])
    assert "x data 16 = 64 is another number" in TORCHTITAN.broken(setup).faults[0].rule


def test_a_policy_that_torchtitan_lacks_is_refused():
    (breach,) = TORCHTITAN.broken(Config(own={"fsdp_reshard_after_forward": "sometimes"})).faults
    assert (breach.fields, breach.rule) == (("fsdp_reshard_after_forward",), "the policies are default, always, never")


def test_what_a_framework_has_no_word_for_comes_from_the_base():
    base = Layout(sequence=2048, zero=2, precision="fp8", sequence_parallel=False)
    found = NANOTRON.layout(Config(pipeline=2, **BATCH), base)
    assert (found.sequence, found.zero, found.precision, found.sequence_parallel) == (2048, 2, "fp8", False)
    assert NEMO.layout(Config(zero=3, **BATCH), base).zero == 3
