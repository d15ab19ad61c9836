"""torchtitan's rules as we state them, against torchtitan 0.3.0: thousands of configurations, both ways."""

import dataclasses
import logging
import random
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from agreement import Said, compared, setting, together, wording
from debubble.frameworks.torchtitan import TORCHTITAN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("triton", reason="torchtitan's trainer wants triton")
    trainer = pytest.importorskip("torchtitan.trainer", reason="torchtitan is not installed")
    from torch.distributed.pipelining import PipelineStage
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import pipeline_parallel as pipelines
    from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
    from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy
    from torchtitan.models.llama3 import llama3_configs

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
REFUSALS = (ValueError, AssertionError, RuntimeError, NotImplementedError, ZeroDivisionError)
LOG = logging.getLogger()


def base(rng: random.Random) -> Said:
    """A legal launch."""
    t, p, c, d = (rng.choice(some) for some in ((1, 1, 2, 4), (1, 2, 2, 4), (1, 1, 2), (1, 2, 4)))
    schedule = rng.choice(("1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble", "LoopedBFS"))
    local = 2 * p * rng.choice((1, 2)) * 2
    said: Said = {
        "gpus": t * p * c * d,
        "tensor": t,
        "pipeline": p,
        "context": c,
        "sharded": rng.choice((None, d)),
        "layers": p * 4,
        "heads": 8,
        "kv_heads": rng.choice((None, 8, 4)),
        "sequence": 64,
        "local_batch": local,
        "schedule": schedule,
        "own": {"disable_cuda_graphs": True},
    }
    if rng.random() < 0.4:
        said["global_batch"] = local * d * rng.choice((1, 2, 3))
    return said


def replicated(said: Said, rng: random.Random) -> None:
    said |= {"copies": rng.choice((1, 2, 4)), "sharded": rng.choice((None, 1, 2))}


def staged(said: Said, rng: random.Random) -> None:
    said |= {"chunk_layers": rng.choice((1, 2, 3, 4, 5, 6)), "layers": rng.choice((6, 8, 10, 14, 16, 30))}


def given_parts(said: Said, rng: random.Random) -> None:
    """Modules of each stage by name: as many as there are stages, or not."""
    stages = rng.choice((2, 3, 4, 8))
    said["split"] = tuple(1 for _ in range(stages))
    said["layers"] = stages


ON = (True, True, False)
EDITS = [
    setting("gpus", 2, 3, 4, 6, 8, 12, 16, 32),
    setting("tensor", 1, 2, 3, 4, 8),
    setting("pipeline", 1, 2, 3, 4, 8),
    setting("context", 1, 2, 3, 4),
    setting("expert", 1, 2, 3, 4, 8),
    *[replicated] * 2,
    together(embedding_layers=(1, 2, 4), loss_layers=(1, 2, 4), layers=(5, 8), pipeline=(4,)),
    together(schedule=("1F1B", "DualPipeV"), pipeline=(4,), local_batch=(2, 4, 8)),
    setting("layers", 1, 2, 5, 8, 13, 30),
    setting("heads", 4, 6, 8, 12),
    setting("kv_heads", 1, 2, 3, 4, 8, None),
    setting("sequence", 30, 36, 64, 100),
    setting("sequence_parallel", True, False),
    setting("local_batch", 1, 2, 3, 4, 6, 8, 16),
    setting("micro_batch", 1, 2, 3, 4),
    setting("global_batch", 4, 8, 16, 24, 48, 64, None),
    setting(
        "schedule",
        "1F1B",
        "GPipe",
        "Interleaved1F1B",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
        "LoopedBFS",
    ),
    together(schedule=("Interleaved1F1B", "InterleavedZeroBubble"), pipeline=(2, 4), local_batch=(5, 6, 7, 8, 9, 10)),
    setting("schedule", "1F1", "Interleaved", "interleaved1f1b", "dualpipev"),
    setting("embedding_layers", 0, 1, 2, 3, 6),
    setting("loss_layers", 0, 1, 2, 3, 6),
    staged,
    staged,
    given_parts,
    setting("recompute", "none", "selective", "full", "memory_budget"),
    wording(compile=ON, enable_async_tensor_parallel=ON),
    wording(fsdp_reshard_after_forward=("default", "always", "never", "sometimes")),
    wording(spmd_backend=("partial_dtensor", "full_dtensor", "spmd_types", "none")),
    wording(context_parallel_load_balancer=("headtail", "")),
    wording(batch_invariant=ON),
    wording(disable_cuda_graphs=ON),
    wording(spmd_typechecking=ON),
    wording(enable_weight_tying=ON),
]
LAWS = [
    *("devices", "heads", "key-value heads", "heads for key-value heads", "sequence", "global batch", "local batch"),
    *("expert devices", "stages over ranks", "two stages a rank", "stages a rank", "stages for layers"),
    *("weight of embedding_layers", "weight of loss_layers", "schedule", "rounds", "micro-batches for stages"),
    *("split stages", "copies", "reshard", "spmd_backend", "balancer", "tied weights", "invariant batches"),
    *("graphs in a pipeline", "types in a pipeline", "budget without a compiler", "async without a compiler"),
]


class Passed(Exception):
    """The trainer got as far as its first stage."""


def refuses(said: Said) -> str:
    """What torchtitan says: of its configuration, its meshes, its trainer and its pipeline; empty where it takes it."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=said["gpus"])
    logging.disable(logging.CRITICAL)
    try:
        _launched(said)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        logging.disable(logging.NOTSET)
        torch.distributed.destroy_process_group()
    return ""


def _launched(said: Said) -> None:
    config = _configuration(said)
    dims = ParallelDims(
        dp_replicate=config.parallelism.data_parallel_replicate_degree,
        dp_shard=config.parallelism.data_parallel_shard_degree,
        cp=config.parallelism.context_parallel_degree,
        tp=config.parallelism.tensor_parallel_degree,
        pp=config.parallelism.pipeline_parallel_degree,
        ep=config.parallelism.expert_parallel_degree,
        world_size=said["gpus"],
        spmd_backend=config.parallelism.spmd_backend,
    )
    dims.build_mesh()
    get_fsdp_reshard_after_forward_policy(config.parallelism.fsdp_reshard_after_forward, dims.pp > 1)
    _trained(config, dims)
    if dims.pp > 1:
        _piped(config, dims)


def _configuration(said: Said):
    """The tree of configurations, whose own checks run as it is built."""
    own = said["own"]
    names = {"pipeline": "pipeline_parallel_degree", "tensor": "tensor_parallel_degree"}
    names |= {"context": "context_parallel_degree", "expert": "expert_parallel_degree"}
    names |= {"sharded": "data_parallel_shard_degree", "copies": "data_parallel_replicate_degree"}
    names |= {"schedule": "pipeline_parallel_schedule", "micro_batch": "pipeline_parallel_microbatch_size"}
    names |= {"chunk_layers": "pipeline_parallel_layers_per_stage", "sequence_parallel": "enable_sequence_parallel"}
    names |= {"embedding_layers": "pipeline_parallel_first_stage_less_layers"}
    names |= {"loss_layers": "pipeline_parallel_last_stage_less_layers"}
    fields = {key: said[name] for name, key in names.items() if said.get(name) is not None}
    for word in ("fsdp_reshard_after_forward", "spmd_backend", "context_parallel_load_balancer"):
        if word in own:
            fields[word] = own[word]
    if said.get("split"):
        fields["module_fqns_per_model_part"] = [[f"layers.{n}"] for n in range(len(said["split"]))]
    again = {"selective": SelectiveAC, "full": FullAC, "memory_budget": MemoryBudgetAC}.get(said.get("recompute"))
    batch = {"local_batch_size": said["local_batch"], "seq_len": said["sequence"]}
    if said.get("global_batch") is not None:
        batch["global_batch_size"] = said["global_batch"]
    return trainer.Trainer.Config(
        parallelism=ParallelismConfig(**fields),
        training=TrainingConfig(**batch, disable_cuda_graphs=own.get("disable_cuda_graphs", False)),
        activation_checkpoint=again.Config() if again else None,
        compile=CompileConfig(
            enable=own.get("compile", False),
            enable_async_tensor_parallel=own.get("enable_async_tensor_parallel", False),
        ),
        debug=DebugConfig(
            batch_invariant=own.get("batch_invariant", False), spmd_typechecking=own.get("spmd_typechecking", False)
        ),
        model_spec=SimpleNamespace(name="llama3", flavor="debug", model=_model(said)),
    )


def _model(said: Said):
    """A Llama of so many heads; its layers are counted, never built."""
    model = llama3_configs["debugmodel"]
    model = model("flex") if callable(model) else model
    layer = model.layers[0]
    attention = dataclasses.replace(layer.attention, n_heads=said["heads"], n_kv_heads=said.get("kv_heads"))
    layers = [dataclasses.replace(layer, attention=attention)] * said["layers"]
    return dataclasses.replace(model, layers=layers, enable_weight_tying=said["own"].get("enable_weight_tying", False))


def _trained(config, dims) -> None:
    """The trainer's own checks, up to its first stage."""

    def stop(*_, **__):
        raise Passed

    model = config.model_spec.model
    heads, groups = model.layers[0].attention.n_heads, model.layers[0].attention.n_kv_heads
    query, key = torch.zeros(1, heads, 2, 4), torch.zeros(1, groups or heads, 2, 4)
    torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)  # as its first forward does
    stand_in = mock.MagicMock()
    stand_in.get_nparams_and_flops.return_value = (1, 1)
    stand_in.update_from_config.side_effect = model.update_from_config
    spec = SimpleNamespace(name="llama3", flavor="debug", model=stand_in, pipelining_fn=stop, parallelize_fn=stop)
    seen = mock.MagicMock(wraps=config)
    for field in dataclasses.fields(config):
        setattr(seen, field.name, getattr(config, field.name))
    seen.model_spec, seen.metrics, seen.loss = spec, mock.MagicMock(), mock.MagicMock()
    seen.to_dict.side_effect, seen.maybe_log.side_effect = dict, lambda: None
    seen.override = SimpleNamespace(imports=[])
    for name in ("tokenizer", "dataloader", "optimizer", "profiler", "validator", "checkpoint"):
        setattr(seen, name, mock.MagicMock())
    seen.checkpoint.create_seed_checkpoint = False
    one = trainer.Trainer.__new__(trainer.Trainer)
    with (
        mock.patch.object(trainer.Trainer, "init_distributed", return_value=dims),
        mock.patch.object(trainer, "utils"),
        mock.patch.object(trainer, "dist_utils"),
        mock.patch.object(trainer, "has_quantization", return_value=False),
        pytest.raises(Passed),
    ):
        one.__init__(seen)


def _piped(config, dims) -> None:
    """Stages over ranks and the schedule's own checks."""
    parallelism = config.parallelism
    stages, layers, first, last = pipelines._get_pipeline_metadata(dims, parallelism, config.model_spec.model)
    names = parallelism.module_fqns_per_model_part
    if names is None:
        names = pipelines._generate_llm_fqn_per_model_part(stages, layers, first, last)
    schedule, ranks, many = parallelism.pipeline_parallel_schedule, dims.pp, len(names)
    mine = pipelines._get_pp_rank_to_stage_indices_mapping(0, ranks, schedule, many)
    built = []
    for index in mine:
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, ranks, None
        stage.stage_index, stage.num_stages, stage.is_first, stage.is_last = index, many, index == 0, index == many - 1
        built.append(stage)
    pipelines._build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=config.training.local_batch_size,
        stages=built,
        loss_fn=lambda *_: (None, None),
    )


# What torchtitan lets pass and we do not, with the reason.
KNOWN = {
    "stages a rank": "_build_pipeline_schedule takes stages[0] of a single-stage schedule: the other lists never run",
    "split layers": "_split_module keeps what is named: a layer that no list names is lost without a word",
}


# What torchtitan refuses and we let pass, with the reason: trainer.py:163, which rests on the attention of the model,
# FlexAttention here, that no field of a configuration says.
UNSAID = "with FlexAttention while SPMD typechecking is enabled"


def ASKED():
    return TORCHTITAN, base, EDITS, refuses, LAWS


def test_two_thousand_configurations_are_judged_as_torchtitan_0_3_judges_them():
    tally = compared(*ASKED())
    assert tally.legal_share >= 0.40, tally.legal_share
    rare = {law: tally.fired[law] for law in LAWS if tally.fired[law] < 20}
    assert not rare, (tally.draws, rare)
    apart = [one for one in tally.disagreements if UNSAID not in one[2]]
    tally.disagreements = [one for one in apart if one[2] or not set(one[1]) <= KNOWN.keys()]
    assert not tally.disagreements, f"{len(tally.disagreements)} of {tally.draws}\n{tally.told()}"
