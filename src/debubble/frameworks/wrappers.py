"""Programs around Megatron-Core: ms-swift, slime, verl, Primus, accelerate; its rules under words of their own.

Each hands a configuration on to Megatron-Core or Megatron-LM, whose rules therefore hold. What differs stands here: how
a field is called, what is taken where nothing is said, and by what a configuration is recognised. Their model comes
from a checkpoint or another file, so that layers and experts are often not said; then nothing is concluded from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config.config import Config, Layout
from . import megatron
from .framework import Breach, Framework, batch_of, launch_line, nodes_of, rule
from .megatron_core_rules import CORE_RULES
from .megatron_stages import PIPELINE_RULES, write_layout

NEMO_KEYS = {
    "gpus": "world_size",
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "data": "data_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "layers": "num_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "experts": "num_moe_experts",
    "sequence": "seq_length",
    "next_layers": "mtp_num_layers",
    "chunks": "virtual_pipeline_model_parallel_size",
    "first": "num_layers_in_first_pipeline_stage",
    "last": "num_layers_in_last_pipeline_stage",
    "embedding_layers": "account_for_embedding_in_pipeline_split",
    "loss_layers": "account_for_loss_in_pipeline_split",
    "layout": "pipeline_model_parallel_layout",
    "pattern": "hybrid_layer_pattern",
    "micro_batch": "micro_batch_size",
    "microbatches": "micro-batches",
    "global_batch": "global_batch_size",
    "rampup": "rampup_batch_size",
    "group": "microbatch_group_size_per_vp_stage",
    "recompute": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_layers": "recompute_num_layers",
    "recompute_modules": "recompute_modules",
    "hidden": "hidden_size",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
    "sequence_parallel": "sequence_parallel",
    "overlap": "overlap_grad_reduce",
    "overlap_gather": "overlap_param_gather",
    "tensor_overlap": "tp_comm_overlap",
}
NEMO_PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp4": "bf16_with_nvfp4_mixed",
}
FLAGS = {field: f"--{key}" for field, key in NEMO_KEYS.items()}
ALIASES = megatron.ALIASES | {
    key.lstrip("-").replace("-", "_"): field for field, key in megatron.KEYS.items() if key.startswith("--")
}


def _swift(config: Config) -> Config:
    """One sample a micro-batch, 16 a step, the attention core recomputed, the optimizer shared out.

    Read in swift/megatron/arguments/megatron_args.py MegatronArguments.
    """
    if config.whole:
        config = config.filled(micro_batch=1, global_batch=16, recompute="selective", expert_tensor=1)
    shared = {"use_distributed_optimizer": True, **config.own}
    return megatron.filled(_alone(config.changed(own=shared, follows=config.follows)))


def _slime(config: Config) -> Config:
    """One sample a micro-batch, or as many as fill a device's tokens; a step is a part of what was rolled out.

    Read in slime/utils/arguments.py: ``micro_batch_size`` is ignored under ``use_dynamic_batch_size``, and
    ``global_batch_size`` is rollout_batch_size x n_samples_per_prompt / num_steps_per_rollout.
    """
    if config.on("use_dynamic_batch_size"):
        config = config.changed(micro_batch=None)
    elif config.whole:
        config = config.filled(micro_batch=1)
    return megatron.filled(config.derived("global_batch", _rolled_out))


def _rolled_out(config: Config) -> int | None:
    names = ("rollout_batch_size", "n_samples_per_prompt", "num_steps_per_rollout")
    prompts, samples, steps = (str(config.word(name, "")) for name in names)
    if not (prompts.isdecimal() and steps.isdecimal() and int(steps)):
        return None
    whole = int(prompts) * (int(samples) if samples.isdecimal() else 1)
    return whole // int(steps)


def _verl(config: Config) -> Config:
    """Sequence parallelism wherever there is a tensor group; a step is a mini-batch of prompts, each answered n times.

    Read in verl/workers/config/engine.py McoreEngineConfig and verl/trainer/config/engine/megatron.yaml. With
    ``use_dynamic_bsz`` micro-batches hold as many samples as fill a number of tokens.
    """
    if config.on("use_dynamic_bsz"):
        config = config.changed(micro_batch=None)
    config = config.filled(sequence_parallel=True).derived("global_batch", _answered)
    return megatron.filled(_alone(config))


def _answered(config: Config) -> int | None:
    prompts, answers = (str(config.word(name, "")) for name in ("ppo_mini_batch_size", "n"))
    if not prompts.isdecimal():
        return None
    return int(prompts) * (int(answers) if answers.isdecimal() else 1)


def _accelerate(config: Config) -> Config:
    """All layers recomputed one by one, unless only selected parts are; the micro-batch is the data loader's.

    Read in accelerate/utils/dataclasses.py MegatronLMPlugin.__post_init__.
    """
    if config.whole and not config.on("recompute_activations"):
        config = config.filled(recompute="full", recompute_method="uniform", recompute_layers=1)
    return megatron.filled(config.filled(microbatches=1))


def _primus(config: Config) -> Config:
    """The optimizer shared out; else what is not said stands in files that ``config`` and ``model`` name.

    Read in primus/configs/modules/megatron/pre_trainer.yaml and the patch megatron.args.sequence_parallel_tp1.
    """
    shared = {"use_distributed_optimizer": True, **config.own}
    return megatron.filled(_alone(config.changed(own=shared, whole=False, follows=config.follows)))


def _alone(config: Config) -> Config:
    """Sequence parallelism is switched off, not refused, where there is no tensor group."""
    if "tensor" in config.opened() or "sequence_parallel" in config.opened() or (config.tensor or 1) > 1:
        return config
    return config.changed(sequence_parallel=False, follows=config.follows | {"sequence_parallel"})


def _values(layout: Layout, model: Config) -> dict[str, object]:
    """What a layout says, by field, in the order in which people write it."""
    values: dict[str, object] = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch,
        "sequence_parallel": layout.sequence_parallel and layout.tensor > 1,
    }
    if model.experts or layout.expert > 1:
        values |= {"expert": layout.expert, "expert_tensor": layout.expert_shards}
    split = layout.split(model.number("layers"))
    if len(set(split)) > 1:
        values["layout"] = f"'{write_layout(split, model.next_layers or 0)}'"
    elif layout.chunks > 1:
        values["chunks"] = layout.chunks
    if layout.recompute != "none":
        values["recompute"] = layout.recompute
    if layout.recompute == "full":
        values["recompute_method"], values["recompute_layers"] = megatron.recomputed(layout)
    return values


def _emit_swift(layout: Layout, model: Config) -> str:
    """The command, on each node of a job."""
    words = [f"{FLAGS[field]} {value}" for field, value in _values(layout, model).items()]
    if layout.recompute == "none":
        words.append(f"{FLAGS['recompute']} none")  # selective is what it takes unsaid
    nodes, each = nodes_of(layout)
    return (
        f"# {SWIFT.version}; {batch_of(layout)}\nNPROC_PER_NODE={each} NNODES={nodes} megatron sft \\\n"
        + " \\\n".join(words)
    )


def _emit_slime(layout: Layout, model: Config) -> str:
    """Flags of the trainer, beside those of the rollout."""
    nodes, each = nodes_of(layout)
    flags = (f"--actor-num-nodes {nodes}", f"--actor-num-gpus-per-node {each}", *megatron.flags(layout, model))
    return f"# {SLIME.version}; {batch_of(layout)}\npython3 train.py \\\n" + " \\\n".join(flags)


def _emit_verl(layout: Layout, model: Config) -> str:
    """Overrides of the actor; recomputation is handed on to Megatron-Core."""
    values = _values(layout, model)
    nodes, each = nodes_of(layout)
    within = "actor_rollout_ref.actor.megatron"
    lines = [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={each}"]
    lines.append(f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={values.pop('micro_batch')}")
    lines.append(f"actor_rollout_ref.actor.ppo_mini_batch_size={values.pop('global_batch')}")
    lines.append("actor_rollout_ref.rollout.n=1")
    for field, value in values.items():
        if field in _OWN_FIELDS:
            lines.append(f"{within}.{NEMO_KEYS[field]}={value}")
        else:  # ++ adds what verl's schema does not have
            lines.append(f"++{within}.override_transformer_config.{NEMO_KEYS[field]}={value}")
    return f"# {VERL.version}; {batch_of(layout)}\npython3 -m verl.trainer.main_ppo \\\n" + " \\\n".join(lines)


# Fields of verl's own engine configuration; others pass through override_transformer_config.
_OWN_FIELDS = frozenset({"tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "sequence_parallel"})


def _emit_primus(layout: Layout, model: Config) -> str:
    """The YAML of a trainer."""
    lines = [f"      {NEMO_KEYS[field]}: {value}" for field, value in _values(layout, model).items()]
    head = ["modules:", "  pre_trainer:", "    framework: megatron", "    overrides:"]
    return "\n".join([f"# {PRIMUS.version}; {batch_of(layout)}; {layout.gpus} devices", *head, *lines])


def _equal(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """The one split of a plug-in that takes no layout: equally many layers to each stage."""
    layers = model.number("layers")
    if layers % stages:
        return ()
    return ((layers // stages,) * stages,)


def _emit_accelerate(layout: Layout, model: Config) -> str:
    """The YAML of ``accelerate launch``; the micro-batch is said to the data loader."""
    values = _values(layout, model)
    said = {ACCELERATE_KEYS[field]: value for field, value in values.items() if field in ACCELERATE_KEYS}
    if layout.chunks > 1:
        said[ACCELERATE_KEYS["chunk_layers"]] = model.number("layers") // layout.stages
    said |= {"megatron_lm_num_micro_batches": layout.microbatches}
    said |= {"megatron_lm_recompute_activations": layout.recompute == "selective"}
    nodes, _ = nodes_of(layout)
    head = ["distributed_type: MEGATRON_LM", f"num_machines: {nodes}", f"num_processes: {layout.gpus}"]
    note = f"# {ACCELERATE.version}; {batch_of(layout)}; batch size of the data loader: {layout.micro_batch}"
    return "\n".join([note, *head, "megatron_lm_config:", *(f"  {key}: {value}" for key, value in said.items())])


def _emit_nemo(layout: Layout, model: Config) -> str:
    """Python assignments on the model provider and the training configuration, behind the recipe of a model."""
    split, following = layout.split(model.number("layers")), model.next_layers or 0
    said: dict[str, int | str | None] = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
        "expert_tensor": layout.expert_shards if model.experts or layout.expert > 1 else None,
        "chunks": layout.chunks if layout.chunks > 1 else None,
        "next_layers": following or None,
        "layout": None,
        "recompute": None,
    }
    if model.pattern is not None:
        said |= {"pattern": repr(megatron.barred(model.pattern, split)), "chunks": None}  # its bars cut the stages
    elif len(set(split)) > 1:
        said["layout"] = repr(write_layout(split, following))
        said["chunks"] = None  # the layout says it
    if layout.recompute != "none":
        said["recompute"] = repr(layout.recompute)
    lines = [f"# {NEMO.version}; {batch_of(layout)}", f"# {launch_line(layout, 'train.py')} on each node"]
    lines += [f"cfg.model.{NEMO_KEYS[field]} = {value}" for field, value in said.items()]
    if layout.recompute == "full":
        how, many = megatron.recomputed(layout)
        lines += [f"cfg.model.recompute_method = {how!r}", f"cfg.model.recompute_num_layers = {many}"]
    together = layout.sequence_parallel and layout.tensor > 1
    lines += [
        f"cfg.model.sequence_parallel = {together}",
        f"cfg.ddp.use_distributed_optimizer = {layout.zero >= 1}",
        f"cfg.ddp.overlap_grad_reduce = {layout.overlap}",
        f"cfg.ddp.overlap_param_gather = {layout.zero >= 1 and layout.overlap_gather and layout.overlap}",
        f"cfg.comm_overlap.tp_comm_overlap = {layout.tensor_overlap and together}",
        f"cfg.mixed_precision = {NEMO_PRECISIONS[layout.precision]!r}",
        f"cfg.model.pipeline_dtype = torch.{'float16' if layout.precision == 'fp16' else 'bfloat16'}",
        f"cfg.model.seq_length = {model.number('sequence')}",
        f"cfg.train.micro_batch_size = {layout.micro_batch}",
        f"cfg.train.global_batch_size = {layout.global_batch}",
    ]
    return "\n".join(lines)


@rule("model_parallel_config.py ModelParallelConfig.__post_init__")
def _sequence_parallel(config: Config) -> Iterator[Breach]:
    """Sequence parallelism is of a tensor group; Megatron-LM switches it off itself on one device."""
    if config.sequence_parallel and config.number("tensor") == 1:
        what = "it needs a tensor group of 2 or more"
        yield Breach("sequence parallelism alone", ("sequence_parallel", "tensor"), what, "turn it off", "on")


_CORE = (*PIPELINE_RULES, *CORE_RULES)
# Megatron-LM's own, but for a micro-batch, which these programs have by themselves.
_UNSAID_BATCH = tuple(one for one in megatron.MEGATRON.rules if one is not megatron.a_micro_batch)

# What all of them are: another program that hands Megatron-LM its settings in words of its own, without dashes.
_WRAPPER = replace(megatron.MEGATRON, wraps="megatron", provided=True, offered=False, dashed=False)

NEMO = replace(
    megatron.MEGATRON,
    name="nemo",
    title="NeMo and Megatron-Bridge",
    version="NVIDIA-NeMo/Megatron-Bridge@067f987",
    keys=NEMO_KEYS,
    aliases={"num_experts": "experts", "hybrid_override_pattern": "pattern"},
    rules=(*_CORE, _sequence_parallel),
    emit=_emit_nemo,
    dashed=False,
    provided=True,
    programs=r"\bmegatron[./]bridge\b|\bMegatron-Bridge\b|\brun_recipe\.py\b",
)
SWIFT = replace(
    _WRAPPER,
    name="swift",
    title="ms-swift",
    version="modelscope/ms-swift@3602360",
    keys=FLAGS,
    aliases=ALIASES,
    marks=frozenset({"tuner_type", "train_type", "load_safetensors", "save_safetensors", "padding_free", "merge_lora"}),
    rules=_CORE,
    filled=_swift,
    emit=_emit_swift,
    programs=r"\bmegatron (pt|sft|rlhf|export)\b|swift[/.]cli[/.]_megatron",
)
SLIME = replace(
    _WRAPPER,
    name="slime",
    title="slime",
    version="THUDM/slime@624b824",
    marks=frozenset(
        {"rollout_batch_size", "n_samples_per_prompt", "actor_num_nodes", "num_rollout", "rollout_num_gpus"}
    ),
    rules=_UNSAID_BATCH,
    filled=_slime,
    emit=_emit_slime,
    dashed=megatron.MEGATRON.dashed,  # its flags are Megatron-LM's own
)
VERL = replace(
    _WRAPPER,
    name="verl",
    title="verl",
    version="verl-project/verl@1dda039",
    keys=NEMO_KEYS | {"micro_batch": "ppo_micro_batch_size_per_gpu", "global_batch": "samples of a step"},
    aliases=ALIASES,
    marks=frozenset({"actor_rollout_ref.model.path", "actor_rollout_ref.rollout.name", "ppo_mini_batch_size"}),
    rules=_CORE,
    filled=_verl,
    emit=_emit_verl,
    programs=r"\bverl\.trainer\b",
    inside=("actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout.n", "trainer."),
)
PRIMUS = replace(
    _WRAPPER,
    name="primus",
    title="Primus",
    version="AMD-AGI/Primus@fd1eeab",
    keys=NEMO_KEYS,
    aliases=ALIASES,
    marks=frozenset(f"overrides.{key}" for key in NEMO_KEYS.values()) | {"enable_primus_turbo"},
    filled=_primus,
    emit=_emit_primus,
)
ACCELERATE_KEYS = {
    "gpus": "num_processes",
    "tensor": "megatron_lm_tp_degree",
    "pipeline": "megatron_lm_pp_degree",
    "context": "megatron_lm_context_parallel_size",
    "expert": "megatron_lm_expert_model_parallel_size",
    "expert_tensor": "megatron_lm_expert_tensor_parallel_size",
    "microbatches": "megatron_lm_num_micro_batches",
    "chunk_layers": "megatron_lm_num_layers_per_virtual_pipeline_stage",
    "last": "megatron_lm_decoder_last_pipeline_num_layers",
    "sequence_parallel": "megatron_lm_sequence_parallelism",
    "recompute": "megatron_lm_recompute_granularity",
    "recompute_method": "megatron_lm_recompute_method",
    "recompute_layers": "megatron_lm_recompute_num_layers",
}
ACCELERATE = replace(
    _WRAPPER,
    name="accelerate",
    title="accelerate",
    version="huggingface/accelerate@16cb6eb",
    keys=ACCELERATE_KEYS,
    marks=frozenset(ACCELERATE_KEYS.values()) - {"num_processes"},
    aliases={
        "megatron_lm_use_distributed_optimizer": "use_distributed_optimizer",
        "megatron_lm_recompute_activations": "recompute_activations",
    },
    rules=_UNSAID_BATCH,
    filled=_accelerate,
    emit=_emit_accelerate,
    deals=_equal,
)
WRAPPERS: tuple[Framework, ...] = (SWIFT, SLIME, VERL, PRIMUS, ACCELERATE)
