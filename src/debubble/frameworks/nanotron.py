"""nanotron: the parallelism and tokens of its YAML, its engines' rules, and the YAML of a layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config.layout import Layout
from .rules import COMMON, long_enough
from .setup import Backend, Breach, Setup, Sizes
from .splits import by_weight, even

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


def settled(setup: Setup) -> Setup:
    """With the devices that its degrees multiply to; each expert is on one device unless told otherwise."""
    full = replace(setup, expert_tensor=setup.expert_tensor or 1)
    if setup.gpus is None and setup.data:
        return replace(full, gpus=setup.replica * setup.data)
    return full


def split(setup: Setup) -> tuple[int, ...] | None:
    """Layers of each stage as nanotron deals them, as even as can be where the weights of the model are not known."""
    if setup.layers and setup.hidden and setup.ffn and setup.vocab:
        return _dealt(setup.layers, setup.ranks, setup.hidden, setup.ffn, setup.vocab)
    return even(setup)


def deals(sizes: Sizes, stages: int) -> tuple[tuple[int, ...], ...]:
    """The one split that nanotron makes; none where stages would stay empty."""
    model = Setup(layers=sizes.layers, hidden=sizes.hidden, ffn=sizes.ffn, vocab=sizes.vocab)
    found = split(replace(model, pipeline=stages))
    return (found,) if found else ()


def _dealt(layers: int, ranks: int, hidden: int, ffn: int, vocab: int) -> tuple[int, ...] | None:
    """By the parameters of its products: attention 4 h^2, a gated feed-forward part 3 h f, the head h V."""
    return by_weight(layers, ranks, layer=hidden * (4 * hidden + 3 * ffn), head=hidden * vocab)


def schedule(setup: Setup) -> str | None:
    """All forwards, then all backwards, is its own choice; 1F1B where asked for."""
    return ENGINES.get(setup.schedule or "afab")


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup that nanotron refuses."""
    full = settled(setup)
    for rule in (*COMMON, long_enough, _engine, _heads, _full_stages):
        yield from rule(full)


def _engine(setup: Setup) -> Iterator[Breach]:
    if schedule(setup) is None:
        yield Breach("engine", ("schedule",), "nanotron has the engines 1f1b and afab", "give 1f1b or afab")
    many = setup.flush
    if schedule(setup) == "1f1b" and many is not None and many < setup.ranks - 1:
        rule = f"1f1b needs at least pp - 1 = {setup.ranks - 1} micro-batches"
        yield Breach("micro-batches for ranks", ("microbatches", "pipeline"), rule)


def _heads(setup: Setup) -> Iterator[Breach]:
    if setup.kv_heads and setup.tensor and setup.kv_heads < setup.tensor:
        rule = f"there are {setup.kv_heads} key-value heads, one or more for each device of a tensor group"
        yield Breach("key-value heads", ("tensor",), rule)
    if setup.kv_heads and setup.heads and setup.heads % setup.kv_heads:
        rule = f"{setup.heads} heads do not share them evenly"
        yield Breach("heads for key-value heads", ("kv_heads", "heads"), rule)


def _full_stages(setup: Setup) -> Iterator[Breach]:
    if setup.layers and setup.layers >= setup.ranks and split(setup) is None:
        rule = "layers are dealt by the parameters of layers and head, and here the last stages would stay empty"
        yield Breach("full stages", ("pipeline", "layers"), rule)


def _experts(layout: Layout, sizes: Sizes) -> list[str]:
    if layout.expert == 1 and not sizes.experts:
        return []
    devices, spread = layout.tensor * layout.data * layout.context, layout.expert * layout.expert_shards
    return [
        f"  expert_parallel_size: {layout.expert}",
        f"  expert_tensor_parallel_size: {layout.expert_shards}",
        f"  expert_data_parallel_size: {devices // spread}",
        "  enabled_moe: true",
    ]


def emit(layout: Layout, sizes: Sizes) -> str:
    """The YAML sections that say the layout."""
    engine = "afab" if layout.schedule == "gpipe" else "1f1b"
    dealt = ", ".join(map(str, layout.split(sizes.layers)))
    return "\n".join(
        [
            f"# nanotron takes no split: it deals layers by parameters, here {dealt}",
            "parallelism:",
            f"  dp: {layout.data}",
            f"  pp: {layout.pipeline}",
            f"  tp: {layout.tensor}",
            f"  context_parallel_size: {layout.context}",
            *_experts(layout, sizes),
            f"  pp_engine: {engine}",
            f"  tp_mode: {'REDUCE_SCATTER' if layout.sequence_parallel else 'ALL_REDUCE'}",
            f"  recompute_layer: {str(layout.recompute == 'full').lower()}",
            "tokens:",
            f"  sequence_length: {sizes.sequence}",
            f"  micro_batch_size: {layout.micro_batch}",
            f"  batch_accumulation_per_replica: {layout.microbatches}",
            "optimizer:",
            f"  zero_stage: {min(layout.zero, 1)}",
        ]
    )


NANOTRON = Backend(
    name="nanotron",
    title="nanotron",
    version=VERSION,
    keys=KEYS,
    aliases={},
    rules=rules,
    settled=settled,
    split=split,
    schedule=schedule,
    emit=emit,
    schedules=("1f1b", "gpipe"),
    names={ours: theirs for theirs, ours in ENGINES.items()},
    deals=deals,
    habits={"overlap_gather": False, "fused_kernels": False, "bucket": 25e6},  # ddp_bucket_cap_mb: 25
    lacks=frozenset({"some layers", "zero"}),
)
