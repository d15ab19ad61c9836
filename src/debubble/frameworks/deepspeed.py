"""DeepSpeed: its JSON, its pipeline engine's rules, and the JSON of a layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from ..config.layout import Layout, even_split
from .rules import COMMON, long_enough
from .setup import Backend, Breach, Setup, Sizes
from .splits import ends_counted, even

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
    "partition": "pipeline.partition",
    "recompute": "pipeline.activation_checkpoint_interval",
}
LAYER = "type:TransformerLayer"  # a pattern of the class of the user's own layers
ALIASES = {
    "partition_method": "partition",
    "num_stages": "pipeline",
    "pipe_parallel_size": "pipeline",
    "model_parallel_size": "tensor",
}


def settled(setup: Setup) -> Setup:
    """With the one of batch, micro-batch and accumulation that follows from the other two."""
    data, batch, size, steps = setup.replicas, setup.global_batch, setup.micro_batch, setup.microbatches
    if not data:
        return setup
    if batch is None and size and steps:
        return replace(setup, global_batch=size * steps * data)
    if size is None and batch and steps and batch % (steps * data) == 0:
        return replace(setup, micro_batch=batch // (steps * data))
    if steps is None and batch and size and batch % (size * data) == 0:
        return replace(setup, microbatches=batch // (size * data))
    return setup


def split(setup: Setup) -> tuple[int, ...] | None:
    """Layers of each stage: ``uniform`` counts embedding and head as layers, ``type:`` deals layers alone, evenly."""
    if setup.partition == "uniform" and setup.split is None and setup.layers is not None:
        return ends_counted(setup.layers, setup.ranks, 1, 1)
    return even(setup)


def deals(sizes: Sizes, stages: int) -> tuple[tuple[int, ...], ...]:
    """Both splits that its methods make, where each stage has a layer."""
    found = (split(Setup(pipeline=stages, layers=sizes.layers, partition=name)) for name in (LAYER, "uniform"))
    return tuple(dict.fromkeys(one for one in found if one and min(one) > 0))


def schedule(setup: Setup) -> str:  # noqa: ARG001 - every backend is asked the same
    """1F1B is all that its pipeline engine has."""
    return "1f1b"


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup that DeepSpeed refuses."""
    full = settled(setup)
    for rule in (*COMMON, long_enough, _some_batch, _zero):
        yield from rule(full)


def _some_batch(setup: Setup) -> Iterator[Breach]:
    fields = ("global_batch", "micro_batch", "microbatches")
    if setup.gpus and setup.global_batch is None and setup.micro_batch is None:
        yield Breach(
            "a batch", fields, "a batch or a micro-batch must be given", f"add {KEYS['micro_batch']}", "nothing"
        )


def _zero(setup: Setup) -> Iterator[Breach]:
    if setup.ranks > 1 and (setup.zero or 0) >= 2:
        yield Breach("zero", ("zero",), "ZeRO 2 and 3 do not work with its pipeline engine")


def emit(layout: Layout, sizes: Sizes) -> str:
    """The JSON, with what the code must say as one of its keys."""
    split = layout.split(sizes.layers)
    method = LAYER if split == even_split(sizes.layers, layout.pipeline) else "uniform"
    document = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.microbatches,
        "zero_optimization": {"stage": min(layout.zero, 1) if layout.pipeline > 1 else layout.zero},
        "bf16": {"enabled": layout.precision != "fp16"},
        "pipeline": {
            "stages": layout.pipeline,
            "partition": method,
            "activation_checkpoint_interval": 1 if layout.recompute == "full" else 0,
        },
    }
    if layout.pipeline == 1:
        del document["pipeline"]
    note = f"PipelineModule(num_stages={layout.pipeline}, partition_method={method!r}): "
    note += f"layers {', '.join(map(str, split))}; it takes no other split than these two methods make"
    note += f"; tensor {layout.tensor} is the model's own" if layout.tensor > 1 else ""
    return json.dumps({"_in_code": note, **document} if layout.pipeline > 1 else document, indent=2)


DEEPSPEED = Backend(
    name="deepspeed",
    title="DeepSpeed",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=rules,
    settled=settled,
    split=split,
    schedule=schedule,
    emit=emit,
    schedules=("1f1b",),
    habits={"blocking_sends": True, "scattered_sends": True, "overlap_gather": False},
    deals=deals,
    lacks=frozenset({"context", "expert", "some layers"}),
)
