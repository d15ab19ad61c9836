"""nanotron: the parallelism and tokens of its YAML, its engines' rules, and the YAML of a layout."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Layout, even_split
from .framework import (
    Breach,
    Framework,
    Rule,
    a_layer_a_stage,
    batch_divides,
    batch_of,
    devices_multiply,
    expert_devices_divide,
    experts_divide,
    heads_divide,
    launch_line,
    rule,
    split_is_whole,
)

VERSION = "huggingface/nanotron@01de8d9"
KEYS = {
    "gpus": "world_size",
    "tensor": "parallelism.tp",
    "pipeline": "parallelism.pp",
    "data": "parallelism.dp",
    "context": "parallelism.context_parallel_size",
    "expert": "parallelism.expert_parallel_size",
    "expert_tensor": "parallelism.expert_tensor_parallel_size",
    "layers": "model.model_config.num_hidden_layers",
    "heads": "model.model_config.num_attention_heads",
    "kv_heads": "model.model_config.num_key_value_heads",
    "experts": "model.model_config.num_experts",
    "sequence": "tokens.sequence_length",
    "hidden": "model.model_config.hidden_size",
    "ffn": "model.model_config.intermediate_size",
    "vocab": "model.model_config.vocab_size",
    "micro_batch": "tokens.micro_batch_size",
    "microbatches": "tokens.batch_accumulation_per_replica",
    "global_batch": "global batch",
    "schedule": "parallelism.pp_engine",
    "recompute": "parallelism.recompute_layer",
    "zero": "optimizer.zero_stage",
}
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}


def filled(config: Config) -> Config:
    """With the devices that its degrees multiply to; its own engine runs all forwards, then all backwards.

    Nothing is said of: degrees are 1, each expert is on one device, nothing is recomputed.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, expert=1, expert_tensor=1, chunks=1, recompute="none")
    config = config.derived("gpus", lambda c: c.replica * c.number("data")).derived("data", lambda c: c.replicas)
    return config.filled(schedule="afab").renamed("schedule", ENGINES).derived("split", split)


def split(config: Config) -> tuple[int, ...] | None:
    """Layers of each stage as nanotron deals them, as even as can be where the weights of the model are not known."""
    layers, ranks = config.number("layers"), config.ranks
    if config.hidden and config.ffn and config.vocab:
        return _dealt(layers, ranks, config.hidden, config.ffn, config.vocab)
    return even_split(layers, ranks)


def deals(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """The one split that nanotron makes; none where stages would stay empty."""
    found = split(model.changed(pipeline=stages))
    if found is None:
        return ()
    return (found,)


def _dealt(layers: int, ranks: int, hidden: int, ffn: int, vocab: int) -> tuple[int, ...] | None:
    """By the parameters of its products: attention 4 h^2, a gated feed-forward part 3 h f, the head h V."""
    return by_weight(layers, ranks, layer=hidden * (4 * hidden + 3 * ffn), head=hidden * vocab)


def by_weight(layers: int, stages: int, *, layer: int, head: int) -> tuple[int, ...] | None:
    """As nanotron deals blocks: a stage is full once the running weight passes its share of the whole.

    Args:
        layers: transformer layers.
        stages: one a rank.
        layer: weight of each layer.
        head: weight of the head, which comes behind the layers.

    Returns:
        Layers of each stage; None where the head lands before the last one and leaves stages empty.
    """
    whole, stage, held = layers * layer + head, 0, [0] * stages
    for number in range(1, layers + 1):
        if stage == stages:
            return None
        held[stage] += 1
        stage += number * layer > whole * ((stage + 1) / stages)
    return tuple(held) if stage == stages - 1 else None


@rule("config/config.py ParallelismArgs; parallel/pipeline_parallel/utils.py get_pp_engine")
def _engine(config: Config) -> Iterator[Breach]:
    """There are two engines; 1F1B fills its pipe."""
    if config.schedule not in ENGINES.values():
        yield Breach("engine", ("schedule",), "nanotron has the engines 1f1b and afab", "give 1f1b or afab")
    many = config.flush
    if config.schedule == "1f1b" and many is not None and many < config.ranks - 1:
        what = f"1f1b needs at least pp - 1 = {config.ranks - 1} micro-batches"
        yield Breach("micro-batches for ranks", ("microbatches", "pipeline"), what)


@rule("models/llama.py CausalSelfAttention.__init__")
def _heads(config: Config) -> Iterator[Breach]:
    """Each device of a tensor group has key-value heads, and heads share them evenly."""
    groups = config.number("kv_heads")
    if config.said("tensor") and groups < config.number("tensor"):
        what = f"there are {groups} key-value heads, one or more for each device of a tensor group"
        yield Breach("key-value heads", ("tensor",), what)
    if groups and config.heads and config.heads % groups:
        what = f"{config.heads} heads do not share them evenly"
        yield Breach("heads for key-value heads", ("kv_heads", "heads"), what)


@rule("models/base.py build_model")
def _full_stages(config: Config) -> Iterator[Breach]:
    """Layers are dealt by weight, and every stage gets some."""
    if config.number("layers") >= config.ranks and config.split is None:
        what = "layers are dealt by the parameters of layers and head, and here the last stages would stay empty"
        yield Breach("full stages", ("pipeline", "layers"), what)


RULES = (
    Rule(devices_multiply, "config/parallelism_config.py; parallel/context.py ParallelContext.__init__"),
    Rule(batch_divides, "trainer.py DistributedTrainer.__init__"),
    Rule(heads_divide, "models/llama.py CausalSelfAttention.__init__"),
    Rule(experts_divide, "nn/moe.py"),
    Rule(expert_devices_divide, "parallel/context.py ParallelContext.__init__"),
    Rule(split_is_whole, "ours: as many numbers as stages, and all layers"),
    Rule(a_layer_a_stage, "models/base.py build_model"),
    _engine,
    _heads,
    _full_stages,
)


def _experts(layout: Layout, model: Config) -> list[str]:
    if layout.expert == 1 and not model.experts:
        return []
    devices, spread = layout.tensor * layout.data * layout.context, layout.expert * layout.expert_shards
    return [
        f"  expert_parallel_size: {layout.expert}",
        f"  expert_tensor_parallel_size: {layout.expert_shards}",
        f"  expert_data_parallel_size: {devices // spread}",
        "  enabled_moe: true",
    ]


def emit(layout: Layout, model: Config) -> str:
    """The YAML sections that say the layout."""
    engine = "afab" if layout.schedule == "gpipe" else "1f1b"
    dealt = ", ".join(map(str, layout.split(model.number("layers"))))
    return "\n".join(
        [
            f"# nanotron takes no split: it deals layers by parameters, here {dealt}",
            f"# {VERSION}; {batch_of(layout)}",
            f"# {launch_line(layout, 'run_train.py --config-file THIS.yaml')} on each node",
            "parallelism:",
            f"  dp: {layout.data}",
            f"  pp: {layout.pipeline}",
            f"  tp: {layout.tensor}",
            f"  context_parallel_size: {layout.context}",
            *_experts(layout, model),
            f"  pp_engine: {engine}",
            f"  tp_mode: {'REDUCE_SCATTER' if layout.sequence_parallel else 'ALL_REDUCE'}",
            f"  recompute_layer: {str(layout.recompute == 'full').lower()}",
            "tokens:",
            f"  sequence_length: {model.number('sequence')}",
            f"  micro_batch_size: {layout.micro_batch}",
            f"  batch_accumulation_per_replica: {layout.microbatches}",
            "optimizer:",
            f"  zero_stage: {min(layout.zero, 1)}",
        ]
    )


NANOTRON = Framework(
    name="nanotron",
    title="nanotron",
    version=VERSION,
    keys=KEYS,
    rules=RULES,
    filled=filled,
    emit=emit,
    schedules=("1f1b", "gpipe"),
    names={ours: theirs for theirs, ours in ENGINES.items()},
    deals=deals,
    # ddp_bucket_cap_mb: 25; gradients of a whole backward and DDP's buckets have 16 bits, beside the fp32 sum.
    habits={
        "overlap_gather": False,
        "fused_kernels": False,
        "bucket": 25e6,
        "gradient_copies": 4.0,
        "gather_by_tensor": True,
    },
    lacks=frozenset({"some layers", "zero"}),
)
