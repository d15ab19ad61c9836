"""Rules that several frameworks share: what must divide what, in devices, batch, heads, experts and layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config.config import Config
from .framework import Breach


def named(fields: Sequence[str]) -> str:
    """Fields as a rule or remedy names them; ``Framework.worded`` puts the framework's keys there."""
    return ", ".join(f"<{field}>" for field in fields)


def devices(config: Config) -> Iterator[Breach]:
    """Devices are shared out without rest over tensor, pipeline, context and data."""
    gpus, replica = config.number("gpus"), config.replica
    over = f"tensor {config.tensor} x pipeline {config.pipeline} x context {config.context}"
    fields = config.said("gpus", "pipeline", "tensor", "context")
    if gpus % replica:
        yield Breach("devices", fields, f"a replica takes {over} = {replica} devices, which does not divide it")
        return
    data = config.number("data")
    if data * replica != gpus:
        whole = data * replica
        blamed = ("gpus", *config.said("data", "sharded", "copies"), *fields[1:])
        yield Breach("devices", blamed, f"{over} x data {data} = {whole} is another number")


def batch(config: Config) -> Iterator[Breach]:
    """The global batch is a whole number of micro-batches for each replica."""
    whole = config.number("global_batch")
    size, replicas = config.micro_batch, config.replicas
    if replicas is None:
        if size is not None and whole % size:
            rule = f"micro-batches of {size} samples do not fill it, whatever the replicas"
            yield Breach("batch", ("global_batch", "micro_batch"), rule)
        return
    unit = (size or 1) * replicas  # replicas alone must divide it, whatever the size of a micro-batch
    what = f"micro-batch {size} x {replicas} replicas = {unit} samples" if size else f"{replicas} replicas"
    fields = config.said("global_batch", "micro_batch", "data")
    if whole % unit:
        yield Breach("batch", fields, f"{what}, which does not divide it")
    elif size is not None and config.microbatches is not None and config.microbatches * unit != whole:
        rule = f"micro-batch {size} x {replicas} replicas x {config.microbatches} micro-batches"
        rule += f" = {config.microbatches * unit} samples is another number"
        yield Breach("batch", (*fields, "microbatches"), rule)


def local_batch(config: Config) -> Iterator[Breach]:
    """The batch of a replica is a whole number of micro-batches, all of one size."""
    whole = config.number("local_batch")
    size, many = config.micro_batch, config.microbatches
    if size and whole % size:
        yield Breach("local batch", ("local_batch", "micro_batch"), f"micro-batches of {size} samples do not fill it")
    if many and whole % many:
        rule = f"a batch of {whole} falls into micro-batches of {_cut(whole, many)} samples; ranks expect one size"
        yield Breach("equal micro-batches", ("microbatches", "local_batch"), rule)


def _cut(batch: int, parts: int) -> str:
    least, larger = divmod(batch, parts)
    if parts <= 8:
        return ", ".join(str(least + (n < larger)) for n in range(parts))
    return f"{least + 1} and {least}"


def heads(config: Config) -> Iterator[Breach]:
    """The tensor group shares heads of attention."""
    if config.number("heads") % config.number("tensor"):
        yield Breach("heads", ("tensor", "heads"), f"it shares {config.heads} attention heads without rest")


def experts(config: Config) -> Iterator[Breach]:
    """Experts are spread evenly over their groups."""
    if config.number("experts") % config.number("expert"):
        yield Breach("experts", ("expert", "experts"), f"it shares {config.experts} experts without rest")


def expert_devices(config: Config) -> Iterator[Breach]:
    """Experts are spread over devices that exist: those of a stage, whatever group they serve otherwise."""
    groups, each = config.number("expert"), config.number("expert_tensor")
    spread = config.number("data") * config.number("context") * config.number("tensor")
    if spread % (groups * each):
        rule = f"a stage has data x context x tensor = {spread} devices; {groups} x {each} of them, the experts' "
        rule += "own degree x the devices that share each expert, must divide that"
        yield Breach("expert devices", config.said("expert", "expert_tensor", "gpus"), rule)


def long_enough(config: Config) -> Iterator[Breach]:
    """There is a layer for every stage."""
    layers, chunks = config.number("layers"), config.number("chunks")
    stages = config.ranks * chunks
    if stages > layers:
        fields = ("chunks", "pipeline") if chunks > 1 else ("pipeline",)
        yield Breach("a layer a stage", (*fields, "layers"), f"{layers} layers cannot fill {stages} stages")


def given_split(config: Config) -> Iterator[Breach]:
    """Layers given stage by stage are all the model's, and as many numbers as there are stages."""
    if not config.said("split") or config.split is None:
        return
    text = ",".join(map(str, config.split))
    stages = config.ranks * config.number("chunks")
    if config.said("pipeline") and len(config.split) != stages:
        yield Breach("split stages", ("split",), f"there are {stages} stages", f"give {stages} numbers", text)
    missing = (config.layers or sum(config.split)) - sum(config.split)
    if missing:
        what = f"{missing} layers not assigned" if missing > 0 else f"{-missing} layers more than the model has"
        yield Breach("split layers", ("split",), f"{what}: it must hold {config.layers}", value=text)
    for stage, layers in enumerate(config.split):
        if layers == 0:
            rule = f"empty stage: stage {stage} has no layer and only passes activations on"
            yield Breach("empty stage", ("split",), rule, value=text)
            return
