"""DeepSpeed: its JSON, its pipeline engine's rules, and the JSON of a layout."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..config.config import Config
from ..config.layout import Layout
from ..config.splits import ends_counted, even_split
from . import common_rules as common
from .framework import Breach, Framework, Rule, rule

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
ALIASES = {
    "partition_method": "partition",  # an own word
    "pipeline.partition": "partition",
    "num_stages": "pipeline",
    "pipe_parallel_size": "pipeline",
    "model_parallel_size": "tensor",
}


def filled(config: Config) -> Config:
    """With the one of batch, micro-batch and accumulation that follows from the other two; 1F1B is all that it has.

    Nothing is said of: degrees are 1, nothing is recomputed and nothing is shared out.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, chunks=1, recompute="none", zero=0, schedule="1f1b")
    config = config.derived("data", lambda c: c.replicas)
    config = config.derived("global_batch", _whole_batch)
    config = config.derived("micro_batch", lambda c: _share(c, "microbatches"))
    config = config.derived("microbatches", lambda c: _share(c, "micro_batch"))
    return config.derived("split", split)


def _whole_batch(config: Config) -> int:
    return config.number("micro_batch") * config.number("microbatches") * config.number("data")


def _share(config: Config, other: str) -> int | None:
    """What is left of the batch of a replica for micro-batch or accumulation; None where it does not divide."""
    whole, unit = config.number("global_batch"), config.number("data") * config.number(other)
    return whole // unit if unit and whole % unit == 0 else None


def split(config: Config) -> tuple[int, ...]:
    """Layers of each stage: ``uniform`` counts embedding and head as layers, ``type:`` deals layers alone, evenly.

    Raises:
        Unknown: the number of layers is not known.
    """
    layers, ranks = config.number("layers"), config.ranks
    counted = ends_counted(layers, ranks, 1, 1) if config.word("partition") == "uniform" else None
    return counted or even_split(layers, ranks)


def deals(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """Both splits that its methods make, where each stage has a layer."""
    layers = model.number("layers")
    found = [even_split(layers, stages), ends_counted(layers, stages, 1, 1)]
    return tuple(dict.fromkeys(one for one in found if one and min(one) > 0))


@rule("runtime/config.py DeepSpeedConfig._batch_assertion, _set_batch_related_parameters")
def _some_batch(config: Config) -> Iterator[Breach]:
    """Of batch, micro-batch and accumulation enough is given that the rest follows."""
    fields = ("global_batch", "micro_batch", "microbatches")
    if config.said("gpus") and not config.said("global_batch", "micro_batch"):
        what = "a batch or a micro-batch must be given"
        yield Breach("a batch", fields, what, f"add {KEYS['micro_batch']}", "nothing")


@rule("runtime/pipe/engine.py PipelineEngine.__init__")
def _zero(config: Config) -> Iterator[Breach]:
    """A pipeline shares out the optimizer alone."""
    if config.ranks > 1 and config.number("zero") >= 2:
        yield Breach("zero", ("zero",), "ZeRO 2 and 3 do not work with its pipeline engine")


RULES = (
    Rule(common.devices, "runtime/pipe/topology.py PipelineParallelGrid.__init__"),
    Rule(common.batch, "runtime/config.py DeepSpeedConfig._batch_assertion"),
    Rule(common.heads, "of the user's own tensor parallelism"),
    Rule(common.given_split, "ours: as many numbers as stages, and all layers"),
    Rule(common.long_enough, "runtime/pipe/module.py PipelineModule._partition_layers"),
    _some_batch,
    _zero,
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
