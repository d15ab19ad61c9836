"""What ``plan --emit`` writes, read by each framework itself: the plan's degrees, batch, schedule, split, recompute.

Two hundred random plans each. torchtitan 0.3.0: its config manager. Megatron-Core 0.16.1, which packages no parser of
Megatron-LM's flags: its config classes, its own split and count of micro-batches. DeepSpeed 0.19.8: its JSON.
"""

import importlib
import json
import logging
import random
import re
import shlex
import warnings
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest

from debubble.config.config import Config, Layout, even_split
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.planning.batch import unlaunchable, unsuited

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
PLANS = 200
TORCH = {  # as torch.distributed.pipelining names the classes
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def drawn(name: str) -> list[tuple[Layout, Config]]:
    """Plans that the framework has words for."""
    rng, framework, found = random.Random(len(name)), FRAMEWORKS[name], []
    while len(found) < PLANS:
        schedule = rng.choice(framework.schedules)
        pipeline = rng.choice((1, 2, 3, 4, 8))
        chunks = {"1f1b": 1, "gpipe": 1, "zb-v": 2, "dualpipe-v": 2}.get(schedule, rng.choice((2, 3)))
        schedule, chunks = (schedule, chunks) if pipeline > 1 else ("1f1b", 1)
        stages = pipeline * chunks
        sizes = Config(layers=rng.randint(stages, 48), sequence=8192, heads=32, kv_heads=8, hidden=4096, ffn=14336)
        even = even_split(sizes.layers, stages)
        splits = list(framework.deals(sizes, stages)) if framework.deals else [even, even[::-1]]
        zeros = (0, 1) if framework.zeros is None else framework.zeros(pipeline)
        layout = Layout(
            tensor=rng.choice((1, 2, 4)),
            pipeline=pipeline,
            data=rng.choice((1, 2, 4)),
            context=rng.choice((1, 1, 2)),
            chunks=chunks,
            micro_batch=rng.randint(1, 4),
            microbatches=rng.randint(1, 4 * pipeline),
            sequence=8192,
            schedule=schedule,
            recompute=rng.choice(("none", "selective", "full")),
            layers=rng.choice(splits or [()]),
            zero=rng.choice(zeros),
            overlap_gather=rng.random() < 0.5,
            precision=rng.choice(("bf16", "fp16")) if name != "torchtitan" else "bf16",
        )
        shape = (schedule, pipeline, layout.microbatches, chunks)
        if name == "deepspeed" and layout.recompute == "selective":
            continue
        if framework.lacking(layout, sizes) or unsuited(*shape) or unlaunchable(name, *shape, zero=layout.zero):
            continue
        found.append((layout, sizes))
    return found


def test_torchtitan_0_3_reads_the_plan(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="torchtitan's trainer wants triton")
    pytest.importorskip("torchtitan.trainer", reason="torchtitan is not installed")
    from torch.distributed.pipelining import PipelineStage
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import pipeline_parallel as pipelines
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    monkeypatch.syspath_prepend(str(tmp_path))
    again = {"none": type(None), "selective": SelectiveAC.Config, "full": FullAC.Config}
    logging.disable(logging.CRITICAL)
    for number, (layout, sizes) in enumerate(drawn("torchtitan")):
        name = f"plan_of_{number}"
        (tmp_path / f"{name}.py").write_text(FRAMEWORKS["torchtitan"].emit(layout, sizes))
        importlib.invalidate_caches()
        config = ConfigManager().parse_args(["--module", name, "--config", "plan"])
        ours, batch = config.parallelism, config.training
        degrees = (ours.tensor_parallel_degree, ours.pipeline_parallel_degree, ours.context_parallel_degree)
        assert degrees == (layout.tensor, layout.pipeline, layout.context)
        assert ours.data_parallel_replicate_degree * ours.data_parallel_shard_degree == layout.data
        assert (batch.global_batch_size, batch.seq_len) == (layout.global_batch, layout.sequence)
        assert type(config.activation_checkpoint) is again[layout.recompute]
        if layout.pipeline == 1:  # trainer.py: gradients are accumulated over so many local batches
            assert batch.global_batch_size // (batch.local_batch_size * layout.data) == layout.microbatches
            continue
        parts = ours.module_fqns_per_model_part
        held = tuple(sum(module.startswith("layers.") for module in part) for part in parts)
        assert held == layout.split(sizes.layers)
        stages = []
        for index in range(layout.chunks):
            stage = mock.create_autospec(PipelineStage, instance=True)
            stage.group_rank, stage.group_size, stage.submod = 0, layout.pipeline, None
            stage.stage_index, stage.num_stages = index * layout.pipeline, layout.stages
            stage.is_first, stage.is_last = index == 0, False
            stages.append(stage)
        if layout.schedule in ("zb-v", "dualpipe-v"):  # the second stage of the first rank is the last of all
            stages[1].stage_index, stages[1].is_last = layout.stages - 1, True
        schedule = pipelines._build_pipeline_schedule(
            parallelism=ours, local_batch_size=batch.local_batch_size, stages=stages, loss_fn=lambda *_: None
        )
        assert type(schedule).__name__ == TORCH[layout.schedule]
        assert schedule._n_microbatches == layout.microbatches
    logging.disable(logging.NOTSET)


# Megatron-LM's arguments.py, core_transformer_config_from_args: flags under another name than Megatron-Core's field.
RENAMED = {
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_experts": "num_moe_experts",
}
OF_TRAINING = ("micro_batch_size", "global_batch_size", "seq_length", "mtp_num_layers")
OF_DATA = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")


def flags_of(text: str) -> tuple[dict, list[str]]:
    """The flags of a launch line by Megatron-Core's field, and the words in front of the program."""
    words = shlex.split(re.sub(r"^#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " "))
    program = words.index("pretrain_gpt.py")
    said: dict = {}
    name = ""
    for word in words[program + 1 :]:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            name = RENAMED.get(name, name)
            said[name] = True
        else:
            said[name] = int(word) if word.isdecimal() else word
    return said, words[:program]


def assignments_of(text: str) -> dict:
    """What a recipe assigns, run as the Python that it is, by field of whichever part."""
    cfg = SimpleNamespace(**{part: SimpleNamespace() for part in ("model", "ddp", "comm_overlap", "train")})
    types = SimpleNamespace(float16="float16", bfloat16="bfloat16")
    exec(text, {"cfg": cfg, "torch": types})  # our own text
    said = {**vars(cfg.model), **vars(cfg.ddp), **vars(cfg.comm_overlap), **vars(cfg.train)}
    said["fp16" if cfg.mixed_precision.startswith("fp16") else "bf16"] = True
    return {name: value for name, value in said.items() if value is not None}


@pytest.mark.parametrize("name", ["megatron", "nemo"])
def test_megatron_core_0_16_reads_the_plan(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core = pytest.importorskip("megatron.core.transformer.transformer_config", reason="megatron-core is absent")
        import torch
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.transformer.transformer_block import get_num_layers_to_build
        from torch.testing._internal.distributed.fake_pg import FakeStore

    for layout, sizes in drawn(name):
        text = FRAMEWORKS[name].emit(layout, sizes)
        if name == "megatron":
            said, launch = flags_of(text)
            nodes, each = (int(launch[launch.index(flag) + 1]) for flag in ("--nnodes", "--nproc-per-node"))
            assert nodes * each == layout.gpus
        else:
            said = assignments_of(text) | {"num_layers": sizes.layers}
        training = {field: said.pop(field) for field in OF_TRAINING if field in said}
        ddp = DistributedDataParallelConfig(**{field: said.pop(field, False) for field in OF_DATA})
        for field, value in (("pipeline_dtype", torch.bfloat16), ("overlap_p2p_comm", layout.chunks > 1)):
            said[field] = value
        said["batch_p2p_comm"] = layout.chunks == 1
        config = core.TransformerConfig(num_attention_heads=sizes.heads, hidden_size=sizes.hidden, **said)
        degrees = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size, config.context_parallel_size)
        assert degrees == (layout.tensor, layout.pipeline, layout.context)
        assert (config.recompute_granularity or "none") == layout.recompute
        assert (config.fp16, config.bf16) == (layout.precision == "fp16", layout.precision == "bf16")
        assert ddp.use_distributed_optimizer == (layout.zero == 1)
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.gpus)
        try:
            chunks = config.virtual_pipeline_model_parallel_size
            parallel_state.initialize_model_parallel(
                *degrees[:2], chunks, context_parallel_size=degrees[2], create_gloo_process_groups=False
            )
            replicas = parallel_state.get_data_parallel_world_size()
            assert replicas == layout.data
            runs = schedules.get_forward_backward_func()
            names = {"1f1b": "without_interleaving", "interleaved": "with_interleaving"}
            if layout.pipeline > 1:
                assert runs.__name__ == f"forward_backward_pipelining_{names[layout.schedule]}"
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()
        count = ConstantNumMicroBatchesCalculator(
            training["global_batch_size"], training["micro_batch_size"], replicas, False, 0
        )
        assert (count.get(), training["seq_length"]) == (layout.microbatches, layout.sequence)
        assert held_by(config, get_num_layers_to_build) == layout.split(sizes.layers)


def held_by(config, layers_of) -> tuple[int, ...]:
    """Layers of each stage as Megatron-Core builds them."""
    chunks, ranks = config.virtual_pipeline_model_parallel_size or 1, config.pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is not None:
        rows = config.pipeline_model_parallel_layout.layout
        return tuple(
            sum(str(kind).endswith("decoder") for kind in rows[r][v]) for v in range(chunks) for r in range(ranks)
        )
    at = [(v, r) for v in range(chunks) for r in range(ranks)]
    return tuple(layers_of(config, vp_stage=None if chunks == 1 else v, pp_rank=r) for v, r in at)


def test_deepspeed_0_19_reads_the_plan():
    config = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    from deepspeed.runtime.pipe.module import PipelineModule

    for layout, sizes in drawn("deepspeed"):
        document = json.loads(FRAMEWORKS["deepspeed"].emit(layout, sizes))
        launch = document["_launch"].split()
        nodes, each = (int(launch[launch.index(flag) + 1]) for flag in ("--num_nodes", "--num_gpus"))
        assert nodes * each == layout.gpus
        mpu = SimpleNamespace(get_data_parallel_world_size=lambda d=layout.data: d)
        with mock.patch.object(config.dist, "get_rank", return_value=0):
            read = config.DeepSpeedConfig(document, mpu=mpu)
        batch = (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps)
        assert batch == (layout.global_batch, layout.micro_batch, layout.microbatches)
        assert read.zero_config.stage == layout.zero
        assert read.float16_config.enabled == (layout.precision == "fp16")
        if layout.pipeline == 1:
            continue
        assert read.pipeline["activation_checkpoint_interval"] == (1 if layout.recompute == "full" else 0)
        assert read.pipeline["stages"] == layout.pipeline
        assert dealt(PipelineModule, layout.pipeline, sizes.layers, read.pipeline["partition"]) == layout.split(
            sizes.layers
        )


def dealt(module_class, stages: int, layers: int, method: str) -> tuple[int, ...]:
    """Transformer layers of each stage as DeepSpeed deals an embedding, layers and a head."""
    module = module_class.__new__(module_class)
    module.__dict__ |= {
        "num_stages": stages,
        "global_rank": 1,
        "_layer_specs": [None] * (layers + 2),
        "_topo": SimpleNamespace(get_coord=lambda _: SimpleNamespace(pipe=0)),
        "_find_layer_type": lambda _: range(1, layers + 1),
        "_set_bounds": lambda **_: None,
    }
    module_class._partition_layers(module, method)
    return tuple(sum(1 <= n <= layers for n in range(first, behind)) for first, behind in pairwise(module.parts))
