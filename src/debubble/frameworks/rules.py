"""Rules that several frameworks share: what must divide what, in devices, batch, heads and experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .setup import NUMBERS, Breach, Setup

LARGEST = 10**12
LARGEST_OF = {"pipeline": 100_000, "chunks": 1_000, "layers": 100_000}  # what is looked at stage by stage
MAY_BE_NOTHING = ("first", "last", "next_layers", "embedding_layers", "loss_layers", "zero", "experts")


def given(setup: Setup, *fields: str) -> tuple[str, ...]:
    """Those of the fields that a setup says."""
    return tuple(field for field in fields if getattr(setup, field) is not None)


def named(fields: Sequence[str]) -> str:
    """Fields as a rule or remedy names them; ``Backend.worded`` puts the framework's keys there."""
    return ", ".join(f"<{field}>" for field in fields)


def sizes(setup: Setup) -> Iterator[Breach]:
    """Every size is 1 or more, and within reason."""
    for field in NUMBERS:
        value, least = getattr(setup, field), 0 if field in MAY_BE_NOTHING else 1
        most = LARGEST_OF.get(field, LARGEST)
        if value is not None and not least <= value <= most:
            yield Breach(f"size of {field}", (field,), f"it is a whole number from {least} to {most:,}")


def devices(setup: Setup) -> Iterator[Breach]:
    """Devices are shared out without rest over tensor, pipeline, context and data."""
    if setup.gpus is None:
        return
    over = f"tensor {setup.tensor or 1} x pipeline {setup.ranks} x context {setup.context or 1}"
    fields = given(setup, "gpus", "pipeline", "tensor", "context")
    if setup.gpus % setup.replica:
        yield Breach("devices", fields, f"a replica takes {over} = {setup.replica} devices, which does not divide it")
    elif setup.data is not None and setup.data * setup.replica != setup.gpus:
        whole = setup.data * setup.replica
        yield Breach(
            "devices", ("gpus", "data", *fields[1:]), f"{over} x data {setup.data} = {whole} is another number"
        )


def batch(setup: Setup) -> Iterator[Breach]:
    """The global batch is a whole number of micro-batches for each replica."""
    size = setup.micro_batch or 1
    if setup.global_batch is None:
        return
    if setup.replicas is None:
        if setup.global_batch % size:
            rule = f"micro-batches of {size} samples do not fill it, whatever the replicas"
            yield Breach("batch", ("global_batch", "micro_batch"), rule)
        return
    unit = size * setup.replicas
    fields = given(setup, "global_batch", "micro_batch", "data")
    if setup.global_batch % unit:
        rule = f"micro-batch {size} x {setup.replicas} replicas = {unit} samples, which does not divide it"
        yield Breach("batch", fields, rule)
    elif setup.microbatches is not None and setup.microbatches * unit != setup.global_batch:
        rule = f"micro-batch {size} x {setup.replicas} replicas x {setup.microbatches} micro-batches"
        rule += f" = {setup.microbatches * unit} samples is another number"
        yield Breach("batch", (*fields, "microbatches"), rule)


def local_batch(setup: Setup) -> Iterator[Breach]:
    """The batch of a replica is a whole number of micro-batches."""
    size = setup.micro_batch
    if setup.local_batch is not None and size and setup.local_batch % size:
        yield Breach("local batch", ("local_batch", "micro_batch"), f"micro-batches of {size} samples do not fill it")
    many = setup.microbatches
    if setup.local_batch is not None and many and setup.local_batch % many:
        cut = _cut(setup.local_batch, many)
        rule = f"a batch of {setup.local_batch} falls into micro-batches of {cut} samples; ranks expect one size"
        yield Breach("equal micro-batches", ("microbatches", "local_batch"), rule)


def _cut(batch: int, parts: int) -> str:
    least, larger = divmod(batch, parts)
    if parts <= 8:
        return ", ".join(str(least + (n < larger)) for n in range(parts))
    return f"{least + 1} and {least}"


def heads(setup: Setup) -> Iterator[Breach]:
    """The tensor group shares heads of attention."""
    if setup.heads and setup.tensor and setup.heads % setup.tensor:
        yield Breach("heads", ("tensor", "heads"), f"it shares {setup.heads} attention heads without rest")


def experts(setup: Setup) -> Iterator[Breach]:
    """Experts are spread evenly, over devices that exist."""
    groups = setup.expert or 1
    if setup.experts and setup.experts % groups:
        yield Breach("experts", ("expert", "experts"), f"it shares {setup.experts} experts without rest")
    each = setup.expert_tensor or setup.tensor or 1
    spread = (setup.replicas or 0) * (setup.context or 1) * (setup.tensor or 1)
    if spread % (groups * each):
        rule = f"a stage has data x context x tensor = {spread} devices; {groups} x {each} of them, the experts' "
        rule += "own degree x the devices that share each expert, must divide that"
        yield Breach("expert devices", _given(setup, "expert", "expert_tensor", "gpus"), rule)


def _given(setup: Setup, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if getattr(setup, name) is not None)


def long_enough(setup: Setup) -> Iterator[Breach]:
    """There is a layer for every stage."""
    stages = setup.ranks * (setup.chunks or 1)
    if setup.layers and stages > setup.layers:
        fields = ("chunks", "pipeline") if (setup.chunks or 1) > 1 else ("pipeline",)
        yield Breach("a layer a stage", (*fields, "layers"), f"{setup.layers} layers cannot fill {stages} stages")


def given_split(setup: Setup) -> Iterator[Breach]:
    """Layers given stage by stage are all the model's, and as many numbers as there are stages."""
    if setup.split is None:
        return
    said = ",".join(map(str, setup.split))
    stages = setup.ranks * (setup.chunks or 1)
    if setup.pipeline and len(setup.split) != stages:
        yield Breach("split stages", ("split",), f"there are {stages} stages", f"give {stages} numbers", said)
    missing = (setup.layers or sum(setup.split)) - sum(setup.split)
    if missing:
        what = f"{missing} layers not assigned" if missing > 0 else f"{-missing} layers more than the model has"
        yield Breach("split layers", ("split",), f"{what}: it must hold {setup.layers}", value=said)
    for stage, layers in enumerate(setup.split):
        if layers == 0:
            rule = f"empty stage: stage {stage} has no layer and only passes activations on"
            yield Breach("empty stage", ("split",), rule, value=said)
            return


COMMON = (sizes, devices, batch, heads, experts, given_split)
