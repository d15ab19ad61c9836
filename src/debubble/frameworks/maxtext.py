"""MaxText: its circular pipeline, in which each micro-batch runs around the ranks once for every repeat.

A loop of XLA carries all forwards, and its gradient all backwards: with one repeat that is GPipe, with several the
breadth-first order over chunks, whose idle share is the one that MaxText's base.yml states:
(stages - 1) / (repeats x micro-batches + stages - 1).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Layout, Value
from .framework import Breach, Framework, batch_of, rule, whole_part
from .keys import REST

VERSION = "AI-Hypercomputer/maxtext@e591f30"
KEYS = {
    "gpus": "devices",
    "tensor": "ici_tensor_parallelism",
    "pipeline": "ici_pipeline_parallelism",
    "context": "ici_context_parallelism",
    "expert": "ici_expert_parallelism",
    "sharded": "ici_fsdp_parallelism",
    "data": "replicas",
    "layers": "base_num_decoder_layers",
    "heads": "base_num_query_heads",
    "kv_heads": "base_num_kv_heads",
    "experts": "num_experts",
    "sequence": "max_target_length",
    "chunk_layers": "num_layers_per_pipeline_stage",
    "chunks": "num_pipeline_repeats",
    "microbatches": "num_pipeline_microbatches",
    "recompute": "remat_policy",
}
PROGRAM = "python3 -m maxtext.trainers.pre_train.train base.yml"
MARKS = frozenset({"dcn_data_parallelism", "per_device_batch_size", "dcn_pipeline_parallelism", "base_emb_dim"})
AXES = ("tensor", "pipeline", "context", "expert")
# Further axes of devices, of which no field says the degree: within a slice, and between slices.
FURTHER = (
    *("ici_data_parallelism", "ici_fsdp_transpose_parallelism", "ici_sequence_parallelism", "dcn_data_parallelism"),
    *("dcn_fsdp_parallelism", "dcn_pipeline_parallelism", "dcn_tensor_parallelism", "dcn_context_parallelism"),
    *("dcn_expert_parallelism", "ici_tensor_sequence_parallelism", "ici_tensor_transpose_parallelism"),
)


def filled(config: Config) -> Config:
    """Axes within and between slices multiplied, one layer a stage, as many repeats as the layers fill.

    Read in maxtext/configs/types.py, the pipeline part of the validation; micro-batches are as many as stages.
    """
    config = _filled_up(config)
    for axis in AXES:
        across = config.word(f"dcn_{axis}_parallelism", 1)
        if isinstance(across, int) and across > 1 and axis not in config.opened():
            config = config.changed(**{axis: (getattr(config, axis) or 1) * across}, follows=config.follows)
    config = config.filled(tensor=1, pipeline=1, context=1, expert=1, expert_tensor=1, chunk_layers=1)
    config = config.filled(recompute="full").renamed("recompute", REMAT)
    config = config.derived("chunks", _repeats).derived("microbatches", _rounds)
    config = config.derived("schedule", lambda c: "looped-bfs" if c.number("chunks") > 1 else "gpipe")
    return config.derived("split", _dealt)


def _filled_up(config: Config) -> Config:
    """An axis of -1 takes the devices that the other axes of a slice leave, once they are known.

    Read in maxtext/utils/max_utils.py fill_unspecified_mesh_axes. fsdp is -1 unless it is said (configs/base.yml), so
    that another axis of -1 wants a number there.
    """
    left = [one for one in config.open if one.field in AXES and one.text == REST]
    gpus = config.known().get("gpus")
    if len(left) != 1 or not isinstance(gpus, int) or config.sharded is None:
        return config
    taken = config.sharded
    for axis in AXES:
        if axis != left[0].field:
            taken *= getattr(config, axis) or 1
    for word in FURTHER:
        taken *= _count(config.word(word, 1))
    degree = whole_part(gpus, taken)
    if degree is None:
        return config
    return config.changed(**{left[0].field: degree}, follows=config.follows)


def _count(value: Value) -> int:
    """Devices of a further axis: those that -1 leaves to it are not taken from this one."""
    return value if isinstance(value, int) and value > 0 else 1


@rule("maxtext/utils/max_utils.py fill_unspecified_mesh_axes")
def _unspecified(config: Config) -> Iterator[Breach]:
    """One axis of a slice takes what the others leave; fsdp does unless it is said."""
    left = [one.field for one in config.open if one.field in AXES and one.text == REST]
    if len(left) > 1 or (left and config.whole and config.sharded is None):
        what = "one axis of a slice may be -1, and fsdp is unless it is said"
        yield Breach("axes left open", ("sharded", *left), what, "give <sharded> a number", "-1")


REMAT = {"minimal": "selective", "save_qkv_proj": "selective", "custom": "selective"}


def _repeats(config: Config) -> int | None:
    """Times that a micro-batch runs around; None where layers do not fill whole rounds."""
    if config.ranks == 1:
        return 1
    layers, unit = _pipelined(config), config.ranks * config.number("chunk_layers")
    if not layers or layers % unit:
        return None
    return layers // unit


def _pipelined(config: Config) -> int:
    """Layers in the pipeline; the rest runs beside it, shared out as replicas share them."""
    some = config.word("pipeline_parallel_layers", -1)
    if isinstance(some, int) and some > 0:
        return some
    return config.number("layers")


def _rounds(config: Config) -> int | None:
    """Micro-batches: as many as stages, twice that where what is sent waits a turn."""
    if config.ranks == 1:
        return None
    return config.ranks * (2 if config.on("pipeline_delay_activation_forwarding") else 1)


def _dealt(config: Config) -> tuple[int, ...] | None:
    if config.ranks == 1:
        return (config.number("layers"),)
    return (config.number("chunk_layers"),) * (config.ranks * config.number("chunks"))


@rule("maxtext/configs/types.py, pipeline")
def _layers(config: Config) -> Iterator[Breach]:
    """Stages, repeats and the layers of a stage multiply to the layers of the pipeline."""
    if config.ranks == 1:
        return
    layers, each = _pipelined(config), config.number("chunk_layers")
    unit = config.ranks * each
    if layers % unit:
        what = f"{config.ranks} stages of {each} layers do not divide {layers} layers"
        yield Breach("layers over stages", ("pipeline", "chunk_layers", "layers"), what)
    elif config.number("chunks") * unit != layers:
        what = f"{config.ranks} stages x {config.chunks} repeats x {each} layers are not {layers}"
        yield Breach("repeats", ("chunks", "chunk_layers", "pipeline"), what)


@rule("maxtext/configs/types.py, pipeline")
def _micro_batches(config: Config) -> Iterator[Breach]:
    """Micro-batches fill whole rounds of the stages."""
    if config.ranks == 1:
        return
    many, ranks = config.number("microbatches"), config.ranks
    if many % ranks:
        yield Breach("rounds", ("microbatches", "pipeline"), f"it is a multiple of {ranks} stages")
    elif config.on("pipeline_delay_activation_forwarding") and many < 2 * ranks:
        what = f"what is sent waits a turn, which takes {2 * ranks} or more"
        yield Breach("delayed rounds", ("microbatches", "pipeline"), what)


@rule("maxtext/configs/types.py, pipeline_fsdp_ag_per_repeat")
def _gathers(config: Config) -> Iterator[Breach]:
    """Weights are gathered for a repeat where there are several, of one layer a stage, and nothing is delayed."""
    if config.ranks == 1 or not config.on("pipeline_fsdp_ag_per_repeat"):
        return
    several = config.number("chunks") > 1 and config.number("chunk_layers") == 1
    if not several or config.on("pipeline_delay_activation_forwarding"):
        what = "it wants several repeats of one layer a stage, and no delay"
        yield Breach("gathers per repeat", ("pipeline_fsdp_ag_per_repeat",), what, "leave it out", "on")


def deals(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """Equally many layers to each stage, or none."""
    layers = model.number("layers")
    if layers % stages:
        return ()
    return ((layers // stages,) * stages,)


def emit(layout: Layout, model: Config) -> str:
    """Arguments that say the layout."""
    each = model.number("layers") // layout.stages
    return " \\\n".join(
        [
            f"# {VERSION}; {batch_of(layout)}; {layout.gpus} devices\n{PROGRAM}",
            f"ici_tensor_parallelism={layout.tensor}",
            f"ici_pipeline_parallelism={layout.pipeline}",
            f"ici_context_parallelism={layout.context}",
            f"ici_fsdp_parallelism={layout.data}",
            f"num_layers_per_pipeline_stage={each}",
            f"num_pipeline_repeats={layout.chunks}",
            f"num_pipeline_microbatches={layout.microbatches}",
            f"base_num_decoder_layers={model.number('layers')}",
            f"max_target_length={model.number('sequence')}",
            f"remat_policy={ {'selective': 'minimal'}.get(layout.recompute, layout.recompute) }",
        ]
    )


MAXTEXT = Framework(
    name="maxtext",
    title="MaxText",
    version=VERSION,
    keys=KEYS,
    aliases={"num_decoder_layers": "layers"},
    marks=MARKS,
    rules=(_unspecified, _layers, _micro_batches, _gathers),
    filled=filled,
    emit=emit,
    schedules=("gpipe", "looped-bfs"),
    deals=deals,
    lacks=frozenset({"some layers", "expert", "expert tensor"}),
    programs=r"\bmaxtext\b|\bMaxText\b",
    offered=False,
    auto=frozenset({"sharded", "chunks", "microbatches"}),
    rest=frozenset(AXES),
)
