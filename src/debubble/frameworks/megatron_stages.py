"""How Megatron-Core cuts a model into stages: layout strings, uneven ends, chunks; and what it refuses of them.

A layout string has stages between bars, ``Et*3|(tt|)*29,m|L``, laid on ranks chunk by chunk: stage i lives on rank
i mod p. Its letters: E embedding, t transformer layer, m layer that predicts further tokens, L loss.

Files are of the release that ``megatron.VERSION`` names. ``arguments.py`` is ``megatron/training/arguments.py``, where
``validate_args`` runs before anything is built; ``transformer_config.py`` and ``model_parallel_config.py`` are
Megatron-Core's classes, which ``__post_init__`` checks whoever builds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import gcd

from ..config.config import Config, ends_counted, even_split
from ..core.errors import Fault, InputError
from .framework import (
    Breach,
    Rule,
    batch_divides,
    devices_multiply,
    expert_devices_divide,
    experts_divide,
    heads_divide,
    named,
    rule,
    split_is_whole,
)

LONGEST = 20_000  # letters and bars when written out; the longest model published has about 130 layers
_LETTERS = {"E": "embedding", "t": "layer", "m": "multi-token layer", "L": "loss"}
_GROUP = re.compile(r"\(([^()]+)\)\*(\d{1,6})")
_REPEAT = re.compile(r"([^*()])\*(\d{1,6})")
_ALIKE = re.compile(r"[EtmL][A-Za-z|*(),\d\s]*\|[A-Za-z|*(),\d\s]*")


@dataclass(frozen=True, slots=True)
class Stages:
    """A layout string, written out.

    Args:
        stages: letters of each stage.
        ranks: positions in the pipeline.
    """

    stages: tuple[str, ...]
    ranks: int

    @property
    def chunks(self) -> int:
        """Stages per rank (the part that is whole)."""
        return len(self.stages) // self.ranks

    def count(self, letter: str) -> int:
        """How often a letter occurs."""
        return sum(stage.count(letter) for stage in self.stages)

    @property
    def per_rank(self) -> tuple[int, ...]:
        """Transformer layers of each rank."""
        return tuple(sum(stage.count("t") for stage in self.stages[rank :: self.ranks]) for rank in range(self.ranks))


def looks_like_layout(text: str) -> bool:
    """Whether a text can only be meant as a layout string, right or wrong."""
    return bool(_ALIKE.fullmatch(text)) and "t" in text


def read_layout(text: str, ranks: int) -> Stages:
    """Write a layout string out.

    Raises:
        InputError: a character that no layout has, or repetitions that do not end.
    """
    written = text.replace(",", "").replace(" ", "")
    for pattern in (_GROUP, _REPEAT):
        _bounded(text, written, pattern)
        written = pattern.sub(lambda match: match[1] * int(match[2]), written)
    open_group = re.search(r"\([^()]*\)(?!\*\d)\*?|[^()|]?\*(?!\d)", written)
    if open_group:
        rule = f"{open_group[0]} does not say how often"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, "put a number behind the star, as in (tt|)*3"))
    strange = sorted(set(written) - set(_LETTERS) - {"|"})
    if strange:
        known = ", ".join(f"{letter} {name}" for letter, name in _LETTERS.items())
        rule = f"no layout has {' '.join(strange)}"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, f"known: {known}, and | between stages"))
    return Stages(tuple(written.split("|")), ranks)


def _bounded(text: str, written: str, pattern: re.Pattern[str]) -> None:
    length = len(written) + sum(len(match[1]) * int(match[2]) for match in pattern.finditer(written))
    if length > LONGEST:
        rule = f"written out it has {length:,} letters"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, f"stay under {LONGEST:,}"))


def layout_breaches(laid: Stages, layers: int | None, next_layers: int | None) -> Iterator[Breach]:
    """What Megatron-LM refuses of a layout."""
    flat = "".join(laid.stages)
    if len(laid.stages) % laid.ranks:
        rule = f"{len(laid.stages)} stages do not divide over {laid.ranks} ranks"
        # pipeline_parallel_layer_layout.py:40
        yield _breach("stages", rule, "add or take away a bar", "pipeline")
    for letter, place, where in (("E", 0, "first"), ("L", -1, "last")):
        many = flat.count(letter)
        if many != 1 or flat[place] != letter:
            here = f"here are {many}"
            if many == 1:
                here = f"here it stands at place {flat.index(letter) + 1} of {len(flat)}"
            # pipeline_parallel_layer_layout.py:94, 97, 102, 105
            yield _breach(f"one {letter}", f"exactly one {letter}, and it comes {where}; {here}", f"put it {where}")
    for letter, wanted, noun in (("t", layers, "layers"), ("m", next_layers, "multi-token layers")):
        if wanted is not None and flat.count(letter) != wanted:
            rule = f"{flat.count(letter)} {letter} for {wanted} {noun} of the model"
            blamed = ["layers"] if letter == "t" else []
            # pipeline_parallel_layer_layout.py:106, 111
            yield _breach(f"count of {letter}", rule, f"write {wanted} {letter}", *blamed)
    yield from _next_breaches(laid, flat)


def _next_breaches(laid: Stages, flat: str) -> Iterator[Breach]:
    many = flat.count("m")
    if not many:
        return
    if "t" in flat[flat.index("m") :]:
        # pipeline_parallel_layer_layout.py:116
        yield _breach("m behind t", "layers t come before every m", "move m behind the last t")
    holders = [stage for stage, held in enumerate(laid.stages) if "m" in held]
    if len(holders) > 1:
        rule = f"all {many} m share one stage; here they are in {len(holders)}"
        # pipeline_parallel_layer_layout.py:128, for each rank's last chunk
        yield _breach("m together", rule, "put them into one stage")
    if any(stage < len(laid.stages) - laid.ranks for stage in holders):
        # pipeline_parallel_layer_layout.py:122
        yield _breach("m in the last chunk", "m lives in the last chunk of its rank", "move m towards the end")
    if laid.ranks > 1 and any(stage % laid.ranks == 0 for stage in holders):
        # pipeline_parallel_layer_layout.py:132; its loop leaves the last chunk out, its message does not
        yield _breach("m off rank 0", "m does not live on the first rank", "move m to another rank")


def _breach(law: str, rule: str, remedy: str, *more: str) -> Breach:
    return Breach(f"layout: {law}", ("layout", *more), rule, remedy)


def write_layout(split: tuple[int, ...], next_layers: int = 0) -> str:
    """The string of a split into stages: embedding first, ``m`` and loss last, equal neighbours grouped."""
    stages = [_repeated(layers) for layers in split]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * next_layers + "L"
    text = ""
    for stage, alike in groupby(stages[:-1]):
        many = len(list(alike))
        if many > 2:
            text += f"({stage}|)*{many}"
        else:
            text += f"{stage}|" * many
    return text + stages[-1]


def _repeated(layers: int) -> str:
    """So many transformer layers, as people write them: nothing, ``t``, ``t*3``."""
    if layers > 1:
        return f"t*{layers}"
    return "t" * layers


def ends_apart(layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """First and last stage as told, the rest even; None where the middle does not divide."""
    head = () if first is None else (first,)
    tail = () if last is None else (last,)
    between = stages - len(head) - len(tail)
    rest = layers - sum(head) - sum(tail)
    if between == 0 and rest == 0:
        return head + tail
    if between <= 0 or rest < 0 or rest % between:
        return None
    return head + (rest // between,) * between + tail


def near_even_ends(layers: int, ranks: int, chunks: int = 1) -> tuple[int, int] | None:
    """Layers of the first and last rank that leave the middle ranks an equal whole number, nearest to even.

    Each rank's number divides over its chunks. None where there are fewer than three ranks.
    """
    if ranks < 3:
        return None
    about = layers // ranks // chunks * chunks
    found = []
    # Further off than two units from even, either an end or the middle is heavier than what is found here.
    for middle in range(about + 2 * chunks, max(about - 3 * chunks, 0), -chunks):
        ends = layers - middle * (ranks - 2)
        last = ends // 2 // chunks * chunks
        first = ends - last
        if last < chunks or first < chunks or first % chunks:
            continue
        heaviest = max(first, middle)
        found.append((heaviest, heaviest - min(last, middle), first, last))
    if not found:
        return None
    _, _, first, last = min(found)
    return first, last


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
        # transformer_config.py:1345
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
            # transformer_config.py:1300, 1317
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
    following = config.next_layers
    if following is None and config.whole:
        following = 0
    yield from layout_breaches(laid, config.layers, following)


@rule("arguments.py validate_args; models/hybrid/hybrid_layer_allocation.py select_pipeline_segment")
def _pattern(config: Config) -> Iterator[Breach]:
    """Stages of a hybrid model are cut by bars in its pattern, and by nothing else."""
    if config.pattern is None:
        return
    main = config.pattern.split("/")[0]
    others = (*config.said("chunks", "chunk_layers", "layout"), *_counted(config))
    if "|" in main:
        others += config.said("first", "last")
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
            # transformer_config.py:1369, 1388
            yield Breach(f"{field} holds a layer", (field,), "an end holds one layer or more")
        elif value % chunks:
            # transformer_config.py:1377, 1396
            yield Breach(f"{field} over chunks", (field, "chunks"), f"its layers divide over {chunks} chunks")
    fields = (*ends, "layers", "pipeline")
    if ranks < 0 or rest < 0 or bool(rest) != bool(ranks) or (ranks and rest % ranks):
        what = f"{rest} layers are left for {ranks} ranks in between, which do not share them evenly"
        # transformer_config.py:1407
        yield Breach("middle over ranks", fields, what)
    elif ranks and rest // ranks % chunks:
        what = f"each rank in between has {rest // ranks} layers, which do not divide over {chunks} chunks"
        # transformer_config.py:1415
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
    chunks = None
    if config.said("chunks"):
        chunks = config.chunks
    if units % ranks:
        remedy = ""
        if not counted:
            remedy = _uneven(layers, ranks, chunks or 1)
        whole = f"{what} do not split evenly over {ranks} ranks"
        # transformer_config.py:1448
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
        # parallel_state.py:747
        yield Breach("ranks of interleaving", ("pipeline",), f"interleaved chunks need {least} ranks or more")
    m = config.flush
    if m is None:
        return
    group = config.group or p
    whose = config.said("microbatches") or config.said("global_batch", "micro_batch", "data")
    fields = (*whose, "pipeline")
    if m < p:
        what = f"m < PP: a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches): none can"
        # schedules.py:1003
        yield Breach("enough micro-batches", fields, what, _more(m, p))
    elif not p <= group <= m:
        what = f"a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches)"
        # schedules.py:1003
        yield Breach("group size", ("group", *fields), what)
    elif 0 < m % group < p:
        what = f"the last group would hold {m % group} of {m} micro-batches, fewer than the {p} ranks"
        if not config.group:
            what += "; without <group> they are a multiple of the ranks, chunks do not matter"
        # schedules.py:1015
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
        # moe_layer.py:380
        yield Breach("experts with sequence parallelism", ("tensor", *config.said("expert", "experts")), what, remedy)


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
        # num_microbatches_calculator.py:476
        yield Breach("growth by whole micro-batches", ("rampup",), what, remedy, text)
    elif start == config.global_batch:
        # num_microbatches_calculator.py:436
        yield Breach("growth by something", ("rampup",), "it starts where it ends", "leave out <rampup>", text)
    elif config.global_batch and (config.global_batch < start or (config.global_batch - start) % step):
        what = f"{config.global_batch} is not reached from {start} in steps of {step}"
        divides, remedy = gcd(config.global_batch - start, step), ""
        if divides % unit == 0:
            remedy = f"an increment of {divides} does"
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


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(devices_multiply, "parallel_state.py initialize_model_parallel; arguments.py validate_args"),
    Rule(batch_divides, "num_microbatches_calculator.py ConstantNumMicroBatchesCalculator.__init__"),
    Rule(heads_divide, "transformer_config.py TransformerConfig.__post_init__"),
    Rule(experts_divide, "transformer/moe/moe_layer.py BaseMoELayer.__init__"),
    Rule(expert_devices_divide, "parallel_state.py initialize_model_parallel"),
    Rule(split_is_whole, "ours: as many numbers as stages, and all layers"),
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
    _batch_growth,
    _flags_of_a_pipeline,
    _flags_without_a_pipeline,
)
