"""What Megatron-LM and Megatron-Core refuse: stages, groups of micro-batches, degrees, recomputation, growth, flags.

Files are of the releases that ``megatron.VERSION`` names. ``arguments.py`` is ``megatron/training/arguments.py``, where
``validate_args`` runs before anything is built; ``transformer_config.py`` and ``model_parallel_config.py`` are
Megatron-Core's classes, which ``__post_init__`` checks whoever builds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from ..config.config import Config
from ..config.layout import ends_counted, even_split, near_even_ends
from ..core.errors import InputError
from . import common_rules as common
from .common_rules import named
from .framework import Breach, Rule, rule
from .layout_string import layout_breaches, read_layout, write_layout


@rule("arguments.py validate_args")
def _ways_to_chunk(config: Config) -> Iterator[Breach]:
    """One flag says the chunks of a rank."""
    ways = config.said("chunk_layers", "chunks", "layout")
    if len(ways) > 1:
        yield Breach("one way to chunk", ways, f"only one of {named(ways)} may be set", f"leave out {named(ways[1:])}")


@rule("transformer_config.py TransformerConfig.__post_init__")
def _chunks_of_layout(config: Config) -> Iterator[Breach]:
    """A layout and the chunks beside it agree."""
    if not config.said("layout") or not config.said("chunks") or config.layout is None:
        return
    try:
        found = read_layout(config.layout, config.ranks).chunks
    except InputError:
        return  # a rule by itself
    if config.chunks != found:
        yield Breach("chunks of the layout", ("chunks", "layout"), f"the layout has {found} chunks on each rank")


@rule("transformer_config.py TransformerConfig.__post_init__")
def _ways_to_split(config: Config) -> Iterator[Breach]:
    """One way to say uneven ends."""
    ends, counted = config.said("first", "last"), _counted(config)
    for some, others in (
        (ends, counted),
        (ends, config.said("layout", "chunk_layers")),
        (counted, config.said("layout")),
    ):
        if some and others:
            what = f"{named(some)} cannot be used with {named(others)}"
            yield Breach(f"{some[0]} with {others[0]}", (some[0], others[0]), what, f"leave out {named(some)}")


def _counted(config: Config) -> tuple[str, ...]:
    """Which of embedding and loss count as layers."""
    return tuple(field for field in ("embedding_layers", "loss_layers") if getattr(config, field))


@rule("transformer/pipeline_parallel_layer_layout.py PipelineParallelLayerLayout.validate_layer_layout")
def _layout(config: Config) -> Iterator[Breach]:
    """A layout string is well formed and holds the model."""
    if config.layout is None:
        return
    try:
        laid = read_layout(config.layout, config.ranks)
    except InputError as error:
        fault = error.faults[0]
        yield Breach("layout", ("layout",), fault.rule, fault.remedy)
        return
    following = 0 if config.next_layers is None and config.whole else config.next_layers
    yield from layout_breaches(laid, config.layers, following)


@rule("arguments.py validate_args; models/hybrid/hybrid_layer_allocation.py select_pipeline_segment")
def _pattern(config: Config) -> Iterator[Breach]:
    """Stages of a hybrid model are cut by bars in its pattern, and by nothing else."""
    if config.pattern is None:
        return
    main = config.pattern.split("/")[0]
    others = (*config.said("chunks", "chunk_layers", "layout"), *_counted(config))
    others += config.said("first", "last") if "|" in main else ()
    if others:
        what = f"with it {named(others)} cannot be used: its bars say the stages"
        yield Breach("pattern alone", ("pattern", *others), what, f"leave out {named(others)}")
    segments, layers = main.count("|") + 1, len(main.replace("|", ""))
    if segments > 1 and segments % config.ranks:
        what = f"its {segments} stages do not divide over {config.ranks} ranks"
        yield Breach("pattern stages", ("pattern", "pipeline"), what, "add or take away a bar")
    elif segments == 1 and layers % config.ranks and not config.said("first", "last"):
        what = f"its {layers} layers without a bar do not split evenly over {config.ranks} ranks"
        yield Breach("pattern over ranks", ("pattern", "pipeline"), what, "put a bar between stages")


@rule("transformer_config.py TransformerConfig.__post_init__, uneven PP")
def _ends(config: Config) -> Iterator[Breach]:
    """Uneven ends: what is left divides over the ranks in between, and everything over the chunks."""
    ends = config.said("first", "last")
    if not ends or config.layout is not None:
        return
    held = [config.number(field) for field in ends]
    chunks = config.number("chunks")
    rest, ranks = config.number("layers") - sum(held), config.ranks - len(ends)
    for field, value in zip(ends, held, strict=True):
        if value < 1:
            yield Breach(f"{field} holds a layer", (field,), "an end holds one layer or more")
        elif value % chunks:
            yield Breach(f"{field} over chunks", (field, "chunks"), f"its layers divide over {chunks} chunks")
    fields = (*ends, "layers", "pipeline")
    if ranks < 0 or rest < 0 or bool(rest) != bool(ranks) or (ranks and rest % ranks):
        what = f"{rest} layers are left for {ranks} ranks in between, which do not share them evenly"
        yield Breach("middle over ranks", fields, what)
    elif ranks and rest // ranks % chunks:
        what = f"each rank in between has {rest // ranks} layers, which do not divide over {chunks} chunks"
        yield Breach("middle over chunks", (*ends, "chunks"), what)


@rule("transformer/transformer_block.py get_num_layers_to_build; arguments.py validate_args")
def _even(config: Config) -> Iterator[Breach]:
    """Without uneven ends or a layout, every rank and every chunk holds as many layers."""
    if config.pattern is not None or config.said("first", "last", "layout", "split"):
        return
    layers, ranks = config.number("layers"), config.ranks
    counted = (config.embedding_layers or 0) + (config.loss_layers or 0)
    units, what = layers + counted, f"{layers} layers"
    if counted:
        what += f" + {counted} for embedding and loss"
    chunks = config.chunks if config.said("chunks") else None
    if units % ranks:
        remedy = "" if counted else _uneven(layers, ranks, chunks or 1)
        whole = f"{what} do not split evenly over {ranks} ranks"
        yield Breach("even ranks", ("pipeline", "layers"), whole, remedy)
        return
    each = units // ranks
    if chunks and each % chunks:
        whole = f"each rank has {each} layers, which do not divide over {chunks} chunks"
        yield Breach("even chunks", ("chunks", "pipeline"), whole)
    elif config.chunk_layers and each % config.chunk_layers:
        whole = f"each rank has {each} layers, which do not fall into chunks of {config.chunk_layers}"
        yield Breach("even chunks", ("chunk_layers", "pipeline"), whole)


def _uneven(layers: int, ranks: int, chunks: int) -> str:
    """Ways to write a split that is not even."""
    ways = []
    ends = near_even_ends(layers, ranks, chunks)
    if ends:
        ways.append(f"uneven ends: <first> {ends[0]} <last> {ends[1]}")
    if (layers + 2) % (ranks * chunks) == 0 and (split := ends_counted(layers, ranks, 1, 1)) and min(split) > 0:
        ways.append(f"<embedding_layers> <loss_layers> ({split[0]}, {split[len(split) // 2]}, .., {split[-1]})")
    if not ways and layers >= ranks * chunks:
        string = write_layout(even_split(layers, ranks * chunks))
        ways.append(f"<layout> '{string}' alone, without other keys of a split")
    return "; ".join(ways)


@rule("arguments.py validate_args; pipeline_parallel/schedules.py forward_backward_pipelining_with_interleaving")
def _interleaving(config: Config) -> Iterator[Breach]:
    """Chunks need enough ranks and, in groups of micro-batches, no last group smaller than the ranks."""
    chunks, p = config.number("chunks"), config.ranks
    if chunks == 1:
        return
    least = 2 if config.on("overlap_p2p_comm", otherwise=True) else 3
    if p < least:
        yield Breach("ranks of interleaving", ("pipeline",), f"interleaved chunks need {least} ranks or more")
    m = config.flush
    if m is None:
        return
    group = config.group or p
    whose = ("microbatches",) if config.said("microbatches") else ("global_batch", "micro_batch", "data")
    fields = (*config.said(*whose), "pipeline")
    if m < p:
        what = f"m < PP: a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches): none can"
        yield Breach("enough micro-batches", fields, what, _more(m, p))
    elif not p <= group <= m:
        what = f"a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches)"
        yield Breach("group size", ("group", *fields), what)
    elif 0 < m % group < p:
        what = f"the last group would hold {m % group} of {m} micro-batches, fewer than the {p} ranks"
        what += "" if config.group else "; without <group> they are a multiple of the ranks, chunks do not matter"
        yield Breach("last group", (*config.said("group"), *fields), what, _group(m, p))


def _more(m: int, p: int) -> str:
    times = -(-p // m)
    if times == 2:
        return f"double the global batch, or halve the micro-batch: {2 * m} micro-batches"
    return f"{times} times the global batch, or a micro-batch {times} times smaller: {times * m} micro-batches"


def _group(m: int, p: int) -> str:
    group = next((n for n in range(p, m + 1) if m % n == 0 or m % n >= p), None)
    return f"<group> {group}" if group else ""


@rule("transformer_config.py TransformerConfig.__post_init__")
def _key_value_heads(config: Config) -> Iterator[Breach]:
    groups, tensor = config.number("kv_heads"), config.number("tensor")
    if groups and groups % tensor and tensor % groups:
        what = f"{groups} query groups are a multiple or divisor of it"
        yield Breach("key-value heads", ("tensor", "kv_heads"), what)


@rule("training/utils.py get_batch_on_this_cp_rank")
def _context(config: Config) -> Iterator[Breach]:
    """A sequence is cut into two pieces for each member of a context group, so that causal work is even."""
    context = config.number("context")
    if context > 1 and config.number("sequence") % (2 * context):
        what = f"{config.sequence} tokens are cut into 2 x {context} pieces"
        yield Breach("context", ("context", "sequence"), what)


@rule("transformer/moe/moe_layer.py MoELayer.forward; model_parallel_config.py ModelParallelConfig.__post_init__")
def _experts_in_sequence(config: Config) -> Iterator[Breach]:
    """A layer of experts stops in its first forward of training where a tensor group has no sequence parallelism."""
    many = max(config.experts or 1, config.number("expert")) > 1
    if many and config.number("tensor") > 1 and not config.sequence_parallel:
        what = "with experts a tensor group trains with sequence parallelism alone, which is off"
        remedy = "turn it on: --sequence-parallel, or sequence_parallel = True"
        yield Breach("experts with sequence parallelism", ("tensor", *config.said("expert", "experts")), what, remedy)


@rule("transformer_config.py TransformerConfig.__post_init__")
def _recomputation(config: Config) -> Iterator[Breach]:
    """A full recomputation says of which layers; a selective one has its own idea."""
    if config.recompute not in ("none", "full", "selective"):
        yield Breach("granularity", ("recompute",), "it is full or selective", "give one of them")
    elif config.recompute == "full":
        missing = [f for f in ("recompute_method", "recompute_layers") if getattr(config, f) is None]
        if missing:
            remedy = "<recompute_method> uniform <recompute_layers> 1 for every layer, or block N for N of each stage"
            yield Breach("layers of a full recomputation", ("recompute",), f"full needs {named(missing)}", remedy)
        elif config.recompute_method not in ("uniform", "block"):
            yield Breach("method", ("recompute_method",), "the methods are uniform and block", "give one of them")
    elif config.recompute == "selective" and config.recompute_layers is not None:
        what = "selective recomputes the attention of every layer"
        yield Breach("layers of a selective one", ("recompute_layers",), what, "leave out <recompute_layers>")
    elif config.recompute == "selective" and config.recompute_method not in (None, "uniform", "block"):
        yield Breach("method", ("recompute_method",), "the methods are uniform and block", "leave it out")


@rule("num_microbatches_calculator.py RampupBatchsizeNumMicroBatchesCalculator; training.py update_train_iters")
def _batch_growth(config: Config) -> Iterator[Breach]:
    """A batch that grows starts at, and grows by, whole micro-batches of every replica, and arrives."""
    if config.rampup is None or config.replicas is None:
        return
    text, unit = " ".join(map(str, config.rampup)), (config.micro_batch or 1) * config.replicas
    if len(config.rampup) != 3:
        yield Breach("three numbers", ("rampup",), "start, increment, samples", "give three numbers", text)
        return
    start, step, _ = config.rampup
    if start < 1 or step < 1 or start % unit or step % unit:
        remedy = f"nearest: {_near(start, unit)} and {_near(step, unit)}"
        what = f"start and increment are multiples of micro-batch x replicas = {unit}"
        yield Breach("growth by whole micro-batches", ("rampup",), what, remedy, text)
    elif start == config.global_batch:
        yield Breach("growth by something", ("rampup",), "it starts where it ends", "leave out <rampup>", text)
    elif config.global_batch and (config.global_batch < start or (config.global_batch - start) % step):
        what = f"{config.global_batch} is not reached from {start} in steps of {step}"
        divides = gcd(config.global_batch - start, step)
        remedy = "" if divides % unit else f"an increment of {divides} does"
        yield Breach("growth arrives", ("rampup",), what, remedy, text)


def _near(value: int, unit: int) -> int:
    return max(round(value / unit), 1) * unit


@rule("model_parallel_config.py ModelParallelConfig.__post_init__; arguments.py validate_args")
def _flags_of_a_pipeline(config: Config) -> Iterator[Breach]:
    """Switches that work with a pipeline alone, or with several chunks alone."""
    chunks = config.number("chunks") > 1
    overlapped = config.on("overlap_p2p_comm", otherwise=True) and chunks
    needs = (
        ("overlap_p2p_comm_warmup_flush", overlapped, "it needs overlapped point-to-point communication"),
        ("defer_embedding_wgrad_compute", config.ranks > 1, "it needs a pipeline of 2 ranks or more"),
        ("overlap_param_gather_with_optimizer_step", chunks, "it works with interleaved chunks alone"),
    )
    for name, has, what in needs:
        if config.on(name) and not has:
            yield _flag(name, what)


@rule("transformer_config.py TransformerConfig.__post_init__; arguments.py validate_args")
def _flags_without_a_pipeline(config: Config) -> Iterator[Breach]:
    """Switches that do not work with a pipeline."""
    if config.ranks == 1:
        return
    for name in ("use_torch_fsdp2", "cpu_offloading", "hybrid_context_parallel"):
        if config.on(name):
            yield _flag(name, "it does not work with pipeline parallelism")
    for name in ("ckpt_format", "dist_ckpt_format"):
        if config.word(name) == "torch_dcp":
            yield _flag(name, "it does not work with pipeline parallelism", "torch_dcp")


def _flag(name: str, what: str, value: str = "on") -> Breach:
    return Breach(name, (name, "pipeline"), what, f"leave out <{name}>", value)


@rule("arguments.py validate_args")
def a_micro_batch(config: Config) -> Iterator[Breach]:
    """What every launch must say."""
    if config.whole and config.micro_batch is None:
        yield Breach("a micro-batch", ("micro_batch",), "every launch says it", "give <micro_batch>", "nothing")


@rule("arguments.py validate_args")
def _gathers(config: Config) -> Iterator[Breach]:
    """Gathers of weights beside the forward need weights that are shared out, and reductions beside the backward."""
    if not config.overlap_gather:
        return
    if not config.number("zero"):
        what = "it needs the distributed optimizer or Megatron-FSDP"
        yield Breach("gathers of what is whole", ("overlap_gather",), what, "add --use-distributed-optimizer", "on")
    if not config.overlap:
        yield Breach("gathers alone", ("overlap_gather", "overlap"), "it needs <overlap>", "add <overlap>", "on")


@rule("arguments.py validate_args")
def _fully_sharded(config: Config) -> Iterator[Breach]:
    """PyTorch's FSDP2 goes with data parallelism and little else."""
    if not config.on("use_torch_fsdp2"):
        if config.whole and config.word("ckpt_format") == "torch_dcp":
            what = "it works with --use-torch-fsdp2 alone"
            yield Breach("torch_dcp alone", ("ckpt_format",), what, "leave out <ckpt_format>", "torch_dcp")
        return
    others = (
        (config.number("expert") > 1, "expert", "expert parallelism"),
        (config.on("use_distributed_optimizer"), "use_distributed_optimizer", "the distributed optimizer"),
        (config.on("fp16"), "fp16", "fp16"),
    )
    for broken, name, what in others:
        if broken:
            law = f"fsdp2 with {what}"
            yield Breach(law, ("use_torch_fsdp2", name), f"it does not work with {what}", f"leave out <{name}>", "on")


@rule("arguments.py validate_args")
def _activations_spread(config: Config) -> Iterator[Breach]:
    """Recomputation in a tensor group: saved inputs are spread in a full one, a selective one has no method."""
    if config.on("distribute_saved_activations"):
        if config.number("tensor") == 1:
            what = "activations are spread over a tensor group of 2 or more"
            yield Breach("activations on one device", ("distribute_saved_activations", "tensor"), what, value="on")
        if config.recompute != "full":
            what = "it is for full recomputation"
            yield Breach("activations that stay", ("distribute_saved_activations", "recompute"), what, value="on")
    if config.recompute == "selective" and config.recompute_method is not None:
        what = "a selective recomputation has no method"
        yield Breach("method of a selective one", ("recompute_method",), what, "leave out <recompute_method>")


@rule("arguments.py validate_args")
def _sequence_lengths(config: Config) -> Iterator[Breach]:
    """Positions reach as far as the sequence, and heads have whole widths."""
    reach = config.word("max_position_embeddings")
    if reach is not None and str(reach).isdecimal() and int(str(reach)) < config.number("sequence"):
        what = f"it reaches over the sequence of {config.sequence}"
        yield Breach("positions", ("max_position_embeddings", "sequence"), what, "give <sequence> or more", str(reach))
    if config.word("kv_channels") is None and config.hidden and config.heads and config.hidden % config.heads:
        what = f"{config.heads} heads share a width of {config.hidden} without rest, unless <kv_channels> says theirs"
        yield Breach("width of heads", ("hidden", "heads"), what)


@rule("arguments.py validate_args")
def _overlapped_products(config: Config) -> Iterator[Breach]:
    """Tensor collectives run beside products only with sequence parallelism."""
    if config.tensor_overlap and not (config.sequence_parallel and config.number("tensor") > 1):
        what = "it needs <sequence_parallel> over a tensor group"
        yield Breach("overlap without sequence parallelism", ("tensor_overlap", "sequence_parallel"), what, value="on")


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(common.devices, "parallel_state.py initialize_model_parallel; arguments.py validate_args"),
    Rule(common.batch, "num_microbatches_calculator.py ConstantNumMicroBatchesCalculator.__init__"),
    Rule(common.heads, "transformer_config.py TransformerConfig.__post_init__"),
    Rule(common.experts, "transformer/moe/moe_layer.py BaseMoELayer.__init__"),
    Rule(common.expert_devices, "parallel_state.py initialize_model_parallel"),
    Rule(common.given_split, "ours: as many numbers as stages, and all layers"),
    _chunks_of_layout,
    _ways_to_split,
    _layout,
    _pattern,
    _ends,
    _even,
    _interleaving,
    _key_value_heads,
    _context,
    _experts_in_sequence,
    _recomputation,
    _batch_growth,
    _flags_of_a_pipeline,
    _flags_without_a_pipeline,
)
# Of Megatron-LM's own flags; Megatron-Core behind another front end does not ask them.
ARGUMENT_RULES: tuple[Rule, ...] = (
    _ways_to_chunk,
    a_micro_batch,
    _gathers,
    _fully_sharded,
    _activations_spread,
    _sequence_lengths,
    _overlapped_products,
)
