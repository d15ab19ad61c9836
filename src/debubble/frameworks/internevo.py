"""InternEvo: tables of its Python configuration, what it asks of them, and how it deals layers to chunks."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Layout, even_split
from .framework import Breach, Framework, Rule, batch_of, devices_multiply, heads_divide, rule

VERSION = "InternLM/InternEvo@c628a8c"
KEYS = {
    "gpus": "world_size",
    "tensor": "parallel.tensor.size",
    "pipeline": "parallel.pipeline.size",
    "layers": "model.num_layers",
    "heads": "model.num_attention_heads",
    "kv_heads": "model.num_kv_attention_heads",
    "experts": "model.num_experts",
    "hidden": "model.hidden_size",
    "vocab": "model.vocab_size",
    "chunks": "model.num_chunks",
    "sequence": "data.seq_len",
    "micro_batch": "data.micro_bsz",
    "microbatches": "data.micro_num",
    "global_batch": "samples of a step",
    "recompute": "model.checkpoint",
}
ALIASES = {
    "parallel.tensor": "tensor",
    "parallel.pipeline": "pipeline",
    "parallel.tensor.mode": "tensor_mode",
    "parallel.weight.size": "weight_size",
    "parallel.weight": "weight_size",
    "parallel.zero1.size": "zero1_size",
    "parallel.zero1": "zero1_size",
    "parallel.zero1.fsdp": "fsdp",
    "parallel.pipeline.interleaved_overlap": "interleaved_overlap",
}
MODES = ("mtp", "msp", "fsp", "isp")


def filled(config: Config) -> Config:
    """Degrees of 1, one micro-batch, one chunk; several chunks are interleaved; experts lie on the replicas.

    Read in internlm/core/context/parallel_context.py ParallelContext.init_parallel_groups and
    internlm/initialize/launch.py args_sanity_check.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, expert_tensor=1, chunks=1, recompute="none")
    if config.whole:
        config = config.filled(microbatches=1)
    config = config.derived("data", lambda c: c.replicas)
    # Experts lie on the data-parallel group, as many devices of it as there are experts.
    config = config.derived("expert", _expert)
    config = config.derived("schedule", _schedule)
    config = config.derived("zero", lambda c: 3 if c.on("fsdp") else 1)
    return config.derived("split", dealt)


def _expert(config: Config) -> int:
    """Groups of experts: one without experts."""
    if not config.experts:
        return 1
    return min(config.number("data"), config.experts)


def _schedule(config: Config) -> str:
    """InterleavedPipelineScheduler where a rank has several chunks; else PipelineScheduler, which is 1F1B."""
    if config.number("chunks") > 1 and config.ranks > 1:
        return "interleaved"
    return "1f1b"


def dealt(config: Config) -> tuple[int, ...] | None:
    """Each chunk's layers over the ranks, the last ranks taking what does not divide; None where that is refused."""
    layers, ranks, chunks = config.number("layers"), config.ranks, config.number("chunks")
    of_a_chunk = layers // chunks
    if layers % chunks or of_a_chunk < ranks:
        return None
    least, over = divmod(of_a_chunk, ranks)
    return ((least,) * (ranks - over) + (least + 1,) * over) * chunks


def deals(model: Config, stages: int) -> tuple[tuple[int, ...], ...]:
    """Equal stages; what does not divide is the last ranks', which says a split where each has one chunk."""
    layers = model.number("layers")
    if layers < stages:
        return ()
    return (even_split(layers, stages)[::-1],)


@rule("internlm/solver/pipeline_utils.py partition_uniform")
def _layers(config: Config) -> Iterator[Breach]:
    """Chunks have equally many layers, and each rank gets one of them."""
    layers, chunks = config.number("layers"), config.number("chunks")
    if layers % chunks:
        yield Breach("layers over chunks", ("chunks", "layers"), f"{layers} layers do not fall into equal chunks")
    elif layers // chunks < config.ranks:
        what = f"{layers // chunks} layers of a chunk cannot fill {config.ranks} ranks"
        yield Breach("a layer a stage", ("pipeline", "chunks", "layers"), what)


@rule("internlm/core/scheduler/pipeline_scheduler.py InterleavedPipelineScheduler.__init__; initialize/launch.py")
def _interleaved(config: Config) -> Iterator[Breach]:
    """Chunks take whole rounds of micro-batches, and wait for no message."""
    if config.number("chunks") == 1:
        return
    if not config.on("interleaved_overlap"):
        what = "several chunks want it"
        yield Breach("chunks without overlap", ("interleaved_overlap", "chunks"), what, "give True", "off")
    if config.ranks > 1 and config.number("microbatches") % config.ranks:
        what = f"with several chunks it is a multiple of {config.ranks} ranks"
        yield Breach("rounds", ("microbatches", "pipeline"), what)


@rule("internlm/initialize/launch.py args_sanity_check")
def _sharing(config: Config) -> Iterator[Breach]:
    """Which ways of sharing a model out go together."""
    mode = str(config.word("tensor_mode", "mtp"))
    if mode not in MODES:
        yield Breach("tensor mode", ("tensor_mode",), f"the modes are {', '.join(MODES)}", "give mtp", mode)
    if mode != "isp" and int(str(config.word("weight_size", 1))) > 1:
        yield Breach("weights in mtp", ("weight_size",), "weights are shared out in mode isp alone", "give 1")
    if config.on("fsdp") and (config.ranks > 1 or mode == "isp" or (config.experts or 1) > 1):
        what = "FSDP goes with no pipeline, no isp and no experts"
        yield Breach("fsdp", ("fsdp", "pipeline"), what, "switch it off", "on")


@rule("internlm/core/context/parallel_context.py ParallelContext.init_parallel_groups")
def _replicas(config: Config) -> Iterator[Breach]:
    """Replicas share out the optimizer and the experts evenly."""
    data, zero = config.number("data"), int(str(config.word("zero1_size", -1)))
    if zero > 0 and (zero > data or data % zero) and str(config.word("tensor_mode")) != "isp":
        what = f"it divides the {data} replicas"
        yield Breach("optimizer over replicas", ("zero1_size", "gpus"), what, "give -1 for all of them", str(zero))
    experts = config.experts or 1
    if data % experts and experts % data:
        yield Breach("experts", ("experts", "gpus"), f"{data} replicas cannot share them evenly")


RULES = (
    Rule(devices_multiply, "internlm/core/context/parallel_context.py ParallelContext.check_sanity"),
    Rule(heads_divide, "internlm/model/modules/mha.py"),
    _layers,
    _interleaved,
    _sharing,
    _replicas,
)


def emit(layout: Layout, model: Config) -> str:
    """Tables of the configuration that say the layout."""
    interleaved = layout.chunks > 1
    return "\n".join(
        [
            f"# {VERSION}; {batch_of(layout)}; {layout.gpus} devices",
            f"parallel = dict(zero1=dict(size=-1), tensor=dict(size={layout.tensor}, mode='mtp'),",
            f"    pipeline=dict(size={layout.pipeline}, interleaved_overlap={interleaved}), weight=dict(size=1))",
            f"data = dict(seq_len={model.number('sequence')}, micro_num={layout.microbatches}, "
            f"micro_bsz={layout.micro_batch})",
            f"model = dict(num_layers={model.number('layers')}, num_chunks={layout.chunks}, "
            f"checkpoint={layout.recompute == 'full'})",
        ]
    )


INTERNEVO = Framework(
    name="internevo",
    title="InternEvo",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    marks=frozenset((*KEYS.values(), *ALIASES)) - {"world_size", "model.num_layers", "model.vocab_size"},
    rules=RULES,
    filled=filled,
    emit=emit,
    schedules=("1f1b", "interleaved"),
    deals=deals,
    lacks=frozenset({"context", "expert", "some layers", "zero", "bare ends"}),
    offered=False,
)
