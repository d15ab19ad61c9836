"""DeepSpeed: its JSON, its pipeline engine's rules, and the JSON of a layout."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..config.config import Config, Layout, ends_counted, even_split
from .framework import (
    Breach,
    Framework,
    Rule,
    batch_divides,
    batch_of,
    devices_multiply,
    heads_divide,
    nodes_of,
    rule,
    split_is_whole,
    whole_part,
)

VERSION = "deepspeedai/DeepSpeed@edaa722"
KEYS = {
    "gpus": "world_size",
    "tensor": "model_parallel_size",
    "pipeline": "pipeline.stages",
    "data": "data_parallel_size",
    "layers": "layers",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "microbatches": "gradient_accumulation_steps",
    "global_batch": "train_batch_size",
    "zero": "zero_optimization.stage",
    "split": "layers per stage",
    "recompute": "pipeline.activation_checkpoint_interval",
}
LAYER = "type:TransformerLayer"  # a pattern of the class of the user's own layers
# Parts of the JSON that this release refuses where they are left over from a former one.
REMOVED = (
    *("nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue"),
    *("sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning", "progressive_layer_drop"),
    *("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"),
)
ALIASES = {
    "num_stages": "pipeline",
    "pipe_parallel_size": "pipeline",
    "model_parallel_size": "tensor",
    "partition_method": "partition",
    "pipeline.partition": "partition",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
    "bfloat16.enabled": "bf16",
    "zero_optimization.offload_optimizer.ratio": "offload_ratio",
    **{f"{name}.enabled": name for name in REMOVED},
}
ENDS = 2  # the embedding and the head, which are layers of a PipelineModule too
METHODS = ("uniform", "parameters", "type:Class")


def filled(config: Config) -> Config:
    """With what follows of batch, micro-batch and accumulation from those that are given; 1F1B is all that it has.

    Nothing is said of: degrees are 1, nothing is recomputed and nothing is shared out, gradients are not accumulated.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, chunks=1, recompute="none", zero=0, schedule="1f1b")
    config = config.derived("data", lambda c: c.replicas)
    if config.whole and len(config.said("global_batch", "micro_batch", "microbatches")) == 1:
        config = config.filled(microbatches=1)
    config = config.derived("global_batch", _whole_batch)
    config = config.derived("micro_batch", lambda c: _share(c, "microbatches"))
    config = config.derived("microbatches", lambda c: _share(c, "micro_batch"))
    config = config.derived("precision", lambda c: next((n for n in ("bf16", "fp16") if c.on(n)), None))
    return config.derived("split", split)


def _whole_batch(config: Config) -> int:
    return config.number("micro_batch") * config.number("microbatches") * config.number("data")


def _share(config: Config, other: str) -> int | None:
    """What is left of the batch of a replica for micro-batch or accumulation; None where it does not divide."""
    return whole_part(config.number("global_batch"), config.number("data") * config.number(other))


def split(config: Config) -> tuple[int, ...]:
    """Layers of each stage: ``uniform`` counts embedding and head as layers, ``type:`` deals layers alone, evenly.

    Raises:
        Unknown: the number of layers is not known.
    """
    layers, ranks = config.number("layers"), config.ranks
    counted = None
    if config.word("partition") == "uniform":
        counted = ends_counted(layers, ranks, 1, 1)
    return counted or even_split(layers, ranks)


def deals(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """Both splits that its methods make, where each stage has a layer."""
    layers = model.number("layers")
    found = [even_split(layers, stages), ends_counted(layers, stages, 1, 1)]
    return tuple(dict.fromkeys(one for one in found if one and min(one) > 0))


@rule("runtime/config.py DeepSpeedConfig._set_batch_related_parameters")
def _some_batch(config: Config) -> Iterator[Breach]:
    """Of batch, micro-batch and accumulation enough is given that the rest follows."""
    fields = ("global_batch", "micro_batch", "microbatches")
    if config.said("gpus") and not config.said("global_batch", "micro_batch"):
        what = "a batch or a micro-batch must be given"
        # config.py:649
        yield Breach("a batch", fields, what, f"add {KEYS['micro_batch']}", "nothing")


@rule("runtime/config.py DeepSpeedConfig._batch_assertion")
def _accumulation(config: Config) -> Iterator[Breach]:
    """Where no micro-batch is given, accumulation and replicas divide the batch."""
    if config.micro_batch is not None:
        return
    unit = config.number("microbatches") * config.number("data")
    if config.number("global_batch") % unit:
        what = f"accumulation {config.microbatches} x {config.data} replicas = {unit} do not divide it"
        # config.py:598
        yield Breach("accumulation", config.said("global_batch", "microbatches", "data"), what)


@rule("runtime/pipe/engine.py PipelineEngine.__init__; runtime/config.py DeepSpeedConfig._do_error_check")
def _zero(config: Config) -> Iterator[Breach]:
    """A pipeline shares out the optimizer alone; there are stages 0 to 3."""
    stage = config.number("zero")
    if stage > 3:
        yield Breach("zero stage", ("zero",), "the stages are 0 to 3", "give 3")
    elif config.ranks > 1 and stage >= 2:
        # engine.py:76
        yield Breach("zero", ("zero",), "ZeRO 2 and 3 do not work with its pipeline engine")


@rule("runtime/config.py DeepSpeedConfig._initialize_params, _do_error_check; runtime/zero/config.py")
def _state(config: Config) -> Iterator[Breach]:
    """What state is kept in, and where."""
    stage = config.number("zero")
    if config.on("fp16") and config.on("bf16"):
        # config.py:511
        yield Breach("one precision", ("fp16", "bf16"), "only one of fp16 and bf16 may be on", "switch one off", "on")
    for name in ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if config.on(name) and not stage:
            yield Breach(f"{name} whole", (name, "zero"), "it needs ZeRO 1 or more", "give <zero> 1", "on")
    if config.on("bf16_optimizer_states") and not config.on("bf16_master_weights_and_grads"):
        what = "it needs <bf16_master_weights_and_grads>"
        # config.py:714
        yield Breach("states without weights", ("bf16_optimizer_states",), what, value="on")
    ratio = config.word("offload_ratio")
    if ratio is not None and float(str(ratio)) < 1 and stage != 3:
        what = "a part of the optimizer is offloaded with ZeRO 3 alone"
        yield Breach("part of the optimizer", ("offload_ratio", "zero"), what, "give 1", str(ratio))
    if not config.on("compute_grad_norm", otherwise=True) and stage not in (1, 2):
        what = "gradients go without their norm with ZeRO 1 and 2 alone"
        yield Breach("norm of gradients", ("compute_grad_norm", "zero"), what, "leave it out", "off")
    if config.word("gradient_allreduce_op") == "sum" and stage == 3:
        what = "sums are not for ZeRO 3"
        # config.py:696
        yield Breach("sums of gradients", ("gradient_allreduce_op", "zero"), what, "leave it out", "sum")


@rule("runtime/pipe/module.py PipelineModule._partition_layers")
def _method(config: Config) -> Iterator[Breach]:
    """The methods by which layers are dealt."""
    method = config.word("partition")
    if method is None or config.ranks == 1:
        return
    low = str(method).lower()
    if low not in ("uniform", "parameters", "best") and not low.startswith("type:"):
        what = f"the methods are {', '.join(METHODS)}"
        # module.py:421
        yield Breach("method", ("partition",), what, "give uniform", str(method))


@rule("runtime/config.py _reject_removed_config_keys")
def _removed(config: Config) -> Iterator[Breach]:
    """Parts that this release has no longer."""
    for name in REMOVED:
        value = config.word(name)
        if value is not None:
            yield Breach(
                f"{name} is gone", (name,), "this release refuses it: it was removed", "leave it out", str(value)
            )


@rule("runtime/pipe/module.py PipelineModule._partition_layers; torch's Optimizer.add_param_group")
def _full_stages(config: Config) -> Iterator[Breach]:
    """Each stage has parameters: a layer, or the embedding or the head alone."""
    layers, ranks = config.number("layers"), config.ranks
    if ranks > layers + ENDS:
        what = f"{layers} layers, the embedding and the head cannot fill {ranks} stages"
        # torch: optimizer.py:400
        yield Breach("a layer a stage", ("pipeline", "layers"), what)


RULES = (
    Rule(devices_multiply, "runtime/pipe/module.py PipelineModule.__init__; topology.py PipelineParallelGrid.__init__"),
    Rule(batch_divides, "runtime/config.py DeepSpeedConfig._batch_assertion"),
    Rule(heads_divide, "of the user's own tensor parallelism"),
    Rule(split_is_whole, "ours: as many numbers as stages, and all layers"),
    _some_batch,
    _accumulation,
    _zero,
    _state,
    _method,
    _removed,
    _full_stages,
)


def emit(layout: Layout, model: Config) -> str:
    """The JSON, with what the code must say as one of its keys."""
    split = layout.split(model.number("layers"))
    method = LAYER if split == even_split(model.number("layers"), layout.pipeline) else "uniform"
    document = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.microbatches,
        "zero_optimization": {"stage": min(layout.zero, 1) if layout.pipeline > 1 else layout.zero},
        "bf16": {"enabled": layout.precision not in ("fp16", "tf32", "fp32")},
        "fp16": {"enabled": layout.precision == "fp16"},
        "pipeline": {
            "stages": layout.pipeline,
            "partition": method,
            "activation_checkpoint_interval": 1 if layout.recompute == "full" else 0,
        },
    }
    nodes, each = nodes_of(layout)
    head = {
        "_release": f"{VERSION}; {batch_of(layout)}",
        "_launch": f"deepspeed --num_nodes {nodes} --num_gpus {each} train.py --deepspeed_config THIS.json",
    }
    if layout.pipeline == 1:
        del document["pipeline"]
        if layout.tensor > 1:
            head["_in_code"] = f"tensor {layout.tensor} is the model's own"
        return json.dumps(head | document, indent=2)
    note = f"PipelineModule(num_stages={layout.pipeline}, partition_method={method!r}): "
    note += f"layers {', '.join(map(str, split))}; it takes no other split than these two methods make"
    if layout.tensor > 1:
        note += f"; tensor {layout.tensor} is the model's own"
    return json.dumps({**head, "_in_code": note, **document}, indent=2)


DEEPSPEED = Framework(
    name="deepspeed",
    title="DeepSpeed",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=RULES,
    filled=filled,
    emit=emit,
    schedules=("1f1b",),
    habits={"blocking_sends": True, "scattered_sends": True, "overlap_gather": False},
    deals=deals,
    lacks=frozenset({"context", "expert", "some layers"}),
)
