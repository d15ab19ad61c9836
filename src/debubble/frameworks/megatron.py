"""Megatron-LM: its flags, the rules that it checks before it starts, and the flags of a layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd

from ..errors import InputError
from ..plan import Layout, even_split
from .layout_string import layout_breaches, read_layout, write_layout
from .rules import COMMON
from .setup import Backend, Breach, Setup, Sizes
from .splits import ends_apart, ends_counted, near_even_ends

VERSION = "NVIDIA/Megatron-LM@d98e8a6"
KEYS = {
    "gpus": "--world-size",
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "data": "--data-parallel-size",
    "context": "--context-parallel-size",
    "expert": "--expert-model-parallel-size",
    "expert_tensor": "--expert-tensor-parallel-size",
    "layers": "--num-layers",
    "heads": "--num-attention-heads",
    "kv_heads": "--num-query-groups",
    "experts": "--num-experts",
    "sequence": "--seq-length",
    "next_layers": "--mtp-num-layers",
    "chunks": "--num-virtual-stages-per-pipeline-rank",
    "chunk_layers": "--num-layers-per-virtual-pipeline-stage",
    "first": "--decoder-first-pipeline-num-layers",
    "last": "--decoder-last-pipeline-num-layers",
    "embedding_layers": "--account-for-embedding-in-pipeline-split",
    "loss_layers": "--account-for-loss-in-pipeline-split",
    "layout": "--pipeline-model-parallel-layout",
    "pattern": "--hybrid-layer-pattern",
    "micro_batch": "--micro-batch-size",
    "microbatches": "micro-batches",
    "global_batch": "--global-batch-size",
    "rampup": "--rampup-batch-size",
    "group": "--microbatch-group-size-per-virtual-pipeline-stage",
    "recompute": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_layers": "--recompute-num-layers",
}
ALIASES = {
    "virtual_pipeline_model_parallel_size": "chunks",
    "microbatch_group_size_per_vp_stage": "group",
    "num_moe_experts": "experts",
    "encoder_num_layers": "layers",
}
PRECISIONS = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp4": "--bf16 --fp4-format e2m1",
}
# Parts of a layout that a flag turns on.
SWITCHES = {
    "zero": "--use-distributed-optimizer",
    "sequence_parallel": "--sequence-parallel",
    "overlap": "--overlap-grad-reduce",
    "overlap_gather": "--overlap-param-gather",
    "tensor_overlap": "--tp-comm-overlap",
}


def settled(setup: Setup) -> Setup:
    """With the chunks that layers per chunk or a layout imply; one chunk a rank means no interleaving."""
    chunks = setup.chunks
    if setup.chunk_layers and setup.layers:
        chunks = setup.layers // setup.ranks // setup.chunk_layers or None
    if setup.layout is not None:
        try:
            chunks = read_layout(setup.layout, setup.ranks).chunks
        except InputError:
            chunks = None
    return replace(setup, chunks=chunks)


def split(setup: Setup) -> tuple[int, ...] | None:
    """Layers of each stage, by layout, uneven ends or ends that count as layers."""
    full = settled(setup)
    if full.layout is not None:
        try:
            return tuple(stage.count("t") for stage in read_layout(full.layout, full.ranks).stages)
        except InputError:
            return None
    if full.layers is None or full.split is not None:
        return full.split
    chunks = full.chunks or 1
    if full.first is not None or full.last is not None:
        ranks = ends_apart(full.layers, full.ranks, full.first, full.last)
        return ranks and tuple(layers // chunks for layers in ranks) * chunks
    return ends_counted(full.layers, full.ranks * chunks, full.embedding_layers or 0, full.loss_layers or 0)


def schedule(setup: Setup) -> str:
    """1F1B, interleaved where a rank has several chunks."""
    return "interleaved" if (setup.chunks or 1) > 1 else "1f1b"


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup (as given, not settled) that Megatron-LM refuses."""
    chunks = settled(setup).chunks
    for rule in COMMON:
        yield from rule(setup)
    own = (_ways_to_split, _layout, _pattern, _ends, _even, _interleaving, _attention, _experts)
    for check in (*own, _recomputation, _batch_growth, _switches):
        yield from check(replace(setup, chunks=chunks) if check is _interleaving else setup)


def _ways_to_split(setup: Setup) -> Iterator[Breach]:
    ways = [field for field in ("chunk_layers", "chunks", "layout") if getattr(setup, field) is not None]
    if len(ways) > 1:
        yield Breach(
            "one way to chunk", tuple(ways), f"only one of {_named(ways)} may be set", f"leave out {_named(ways[1:])}"
        )
    ends = [field for field in ("first", "last") if getattr(setup, field) is not None]
    counted = [field for field in ("embedding_layers", "loss_layers") if getattr(setup, field)]
    for some, others in (
        (ends, counted),
        (ends, _set(setup, "layout", "chunk_layers")),
        (counted, _set(setup, "layout")),
    ):
        if some and others:
            rule = f"{_named(some)} cannot be used with {_named(others)}"
            yield Breach(f"{some[0]} with {others[0]}", (some[0], others[0]), rule, f"leave out {_named(some)}")


def _set(setup: Setup, *names: str) -> list[str]:
    return [field for field in names if getattr(setup, field) is not None]


def _named(names: list[str]) -> str:
    return ", ".join(f"<{field}>" for field in names)


def _layout(setup: Setup) -> Iterator[Breach]:
    if setup.layout is None:
        return
    try:
        laid = read_layout(setup.layout, setup.ranks)
    except InputError as error:
        fault = error.faults[0]
        yield Breach("layout", ("layout",), fault.rule, fault.remedy)
        return
    yield from layout_breaches(laid, setup.layers, setup.next_layers)


def _pattern(setup: Setup) -> Iterator[Breach]:
    """Stages of a hybrid model are cut by bars, and then by nothing else."""
    if setup.pattern is None or "|" not in setup.pattern:
        return
    others = _set(setup, "chunks", "chunk_layers", "first", "last", "layout")
    others += [field for field in ("embedding_layers", "loss_layers") if getattr(setup, field)]
    if others:
        rule = f"with bars in it {_named(others)} cannot be used"
        yield Breach("pattern alone", ("pattern", *others), rule, f"leave out {_named(others)}")
    segments = setup.pattern.split("/")[0].count("|") + 1
    if segments % setup.ranks:
        rule = f"its {segments} stages do not divide over {setup.ranks} ranks"
        yield Breach("pattern stages", ("pattern", "pipeline"), rule, "add or take away a bar")


def _ends(setup: Setup) -> Iterator[Breach]:
    """Uneven ends: what is left divides over the ranks in between, and everything over the chunks."""
    ends = _set(setup, "first", "last")
    if not ends or setup.layers is None or setup.layout is not None:
        return
    given, chunks = [getattr(setup, field) for field in ends], setup.chunks or 1
    rest, ranks = setup.layers - sum(given), setup.ranks - len(ends)
    for field, value in zip(ends, given, strict=True):
        if value < 1:
            yield Breach(f"{field} holds a layer", (field,), "an end holds one layer or more")
        elif value % chunks:
            yield Breach(f"{field} over chunks", (field, "chunks"), f"its layers divide over {chunks} chunks")
    fields = (*ends, "layers", "pipeline")
    if ranks < 0 or rest < 0 or bool(rest) != bool(ranks) or (ranks and rest % ranks):
        rule = f"{rest} layers are left for {ranks} ranks in between, which do not share them evenly"
        yield Breach("middle over ranks", fields, rule)
    elif ranks and rest // ranks % chunks:
        rule = f"each rank in between has {rest // ranks} layers, which do not divide over {chunks} chunks"
        yield Breach("middle over chunks", (*ends, "chunks"), rule)


def _even(setup: Setup) -> Iterator[Breach]:
    """Without uneven ends or a layout, every rank and every chunk holds as many layers."""
    cut = "|" in (setup.pattern or "") or _set(setup, "first", "last", "layout", "split")
    if setup.layers is None or cut:
        return
    counted = (setup.embedding_layers or 0) + (setup.loss_layers or 0)
    units, what = setup.layers + counted, f"{setup.layers} layers"
    what += f" + {counted} for embedding and loss" if counted else ""
    if units % setup.ranks:
        remedy = _uneven(setup.layers, setup.ranks, setup.chunks or 1) if not counted else ""
        yield Breach(
            "even ranks", ("pipeline", "layers"), f"{what} do not split evenly over {setup.ranks} ranks", remedy
        )
        return
    each = units // setup.ranks
    if setup.chunks and each % setup.chunks:
        rule = f"each rank has {each} layers, which do not divide over {setup.chunks} chunks"
        yield Breach("even chunks", ("chunks", "pipeline"), rule)
    elif setup.chunk_layers and each % setup.chunk_layers:
        rule = f"each rank has {each} layers, which do not fall into chunks of {setup.chunk_layers}"
        yield Breach("even chunks", ("chunk_layers", "pipeline"), rule)


def _uneven(layers: int, ranks: int, chunks: int) -> str:
    ways = []
    ends = near_even_ends(layers, ranks, chunks)
    if ends:
        ways.append(f"uneven ends: <first> {ends[0]} <last> {ends[1]}")
    if (layers + 2) % (ranks * chunks) == 0 and (split := ends_counted(layers, ranks, 1, 1)) and min(split) > 0:
        ways.append(f"<embedding_layers> <loss_layers> ({split[0]}, {split[len(split) // 2]}, .., {split[-1]})")
    if not ways and layers >= ranks * chunks:
        ways.append(
            f"<layout> '{write_layout(even_split(layers, ranks * chunks))}' alone, without other keys of a split"
        )
    return "; ".join(ways)


def _interleaving(setup: Setup) -> Iterator[Breach]:
    """Chunks need enough ranks and, in groups of micro-batches, no last group smaller than the ranks."""
    chunks, p, m = setup.chunks or 1, setup.ranks, setup.flush
    if chunks == 1:
        return
    least = 3 if "--no-overlap-p2p-communication" in setup.switches else 2
    if p < least:
        yield Breach("ranks of interleaving", ("pipeline",), f"interleaved chunks need {least} ranks or more")
    if m is None:
        return
    group = setup.group or p
    whose = ("microbatches",) if setup.microbatches else ("global_batch", "micro_batch", "data")
    fields = (*(f for f in whose if getattr(setup, f) is not None), "pipeline")
    if m < p:
        rule = f"m < PP: a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches): none can"
        yield Breach("enough micro-batches", fields, rule, _more(m, p))
    elif not p <= group <= m:
        rule = f"a group of micro-batches holds from {p} (the ranks) to {m} (the micro-batches)"
        yield Breach("group size", ("group", *fields), rule)
    elif 0 < m % group < p:
        rule = f"the last group would hold {m % group} of {m} micro-batches, fewer than the {p} ranks"
        rule += "" if setup.group else "; without <group> they are a multiple of the ranks, chunks do not matter"
        yield Breach("last group", (*(("group",) if setup.group else ()), *fields), rule, _group(m, p))


def _more(m: int, p: int) -> str:
    times = -(-p // m)
    if times == 2:
        return f"double the global batch, or halve the micro-batch: {2 * m} micro-batches"
    return f"{times} times the global batch, or a micro-batch {times} times smaller: {times * m} micro-batches"


def _group(m: int, p: int) -> str:
    group = next((n for n in range(p, m + 1) if m % n == 0 or m % n >= p), None)
    return f"<group> {group}" if group else ""


def _attention(setup: Setup) -> Iterator[Breach]:
    tensor, groups, context = setup.tensor or 1, setup.kv_heads, setup.context or 1
    if groups and groups % tensor and tensor % groups:
        yield Breach(
            "key-value heads", ("tensor", "kv_heads"), f"{groups} query groups are a multiple or divisor of it"
        )
    if setup.sequence and context > 1 and setup.sequence % (2 * context):
        rule = f"{setup.sequence} tokens are cut into 2 x {context} pieces"
        yield Breach("context", ("context", "sequence"), rule)


def _experts(setup: Setup) -> Iterator[Breach]:
    """A layer of experts stops in its first forward of training where a tensor group has no sequence parallelism."""
    many = max(setup.experts or 1, setup.expert or 1) > 1
    if many and (setup.tensor or 1) > 1 and SWITCHES["sequence_parallel"] not in setup.switches:
        rule = "with experts a tensor group trains with sequence parallelism alone, which is off"
        remedy = "turn it on: --sequence-parallel, or sequence_parallel = True"
        fields = ("tensor", *_set(setup, "expert", "experts"))
        yield Breach("experts with sequence parallelism", fields, rule, remedy)


def _recomputation(setup: Setup) -> Iterator[Breach]:
    """A full recomputation says of which layers; a selective one has its own idea."""
    if setup.recompute == "full":
        missing = [f for f in ("recompute_method", "recompute_layers") if getattr(setup, f) is None]
        if missing:
            remedy = "<recompute_method> uniform <recompute_layers> 1 for every layer, or block N for N of each stage"
            yield Breach("layers of a full recomputation", ("recompute",), f"full needs {_named(missing)}", remedy)
        elif setup.recompute_method not in ("uniform", "block"):
            yield Breach("method", ("recompute_method",), "the methods are uniform and block", "give one of them")
    elif setup.recompute == "selective" and setup.recompute_layers is not None:
        rule = "selective recomputes the attention of every layer"
        yield Breach("layers of a selective one", ("recompute_layers",), rule, "leave out <recompute_layers>")


def _batch_growth(setup: Setup) -> Iterator[Breach]:
    if setup.rampup is None or setup.replicas is None:
        return
    said, unit = " ".join(map(str, setup.rampup)), (setup.micro_batch or 1) * setup.replicas
    if len(setup.rampup) != 3:
        yield Breach("three numbers", ("rampup",), "start, increment, samples", "give three numbers", said)
        return
    start, step, _ = setup.rampup
    if start < 1 or step < 1 or start % unit or step % unit:
        remedy = f"nearest: {_near(start, unit)} and {_near(step, unit)}"
        rule = f"start and increment are multiples of micro-batch x replicas = {unit}"
        yield Breach("growth by whole micro-batches", ("rampup",), rule, remedy, said)
    elif setup.global_batch and (setup.global_batch < start or (setup.global_batch - start) % step):
        rule = f"{setup.global_batch} is not reached from {start} in steps of {step}"
        divides = gcd(setup.global_batch - start, step)
        yield Breach(
            "growth arrives", ("rampup",), rule, f"an increment of {divides} does" if divides % unit == 0 else "", said
        )


def _near(value: int, unit: int) -> int:
    return max(round(value / unit), 1) * unit


# Flag -> what it needs, and whether a setup has that.
_NEEDS: dict[str, tuple[str, Callable[[Setup], bool]]] = {
    "--overlap-p2p-communication-warmup-flush": (
        "it needs overlapped point-to-point communication",
        lambda s: "--no-overlap-p2p-communication" not in s.switches and (settled(s).chunks or 1) > 1,
    ),
    "--defer-embedding-wgrad-compute": ("it needs a pipeline of 2 ranks or more", lambda s: s.ranks > 1),
    "--overlap-param-gather-with-optimizer-step": (
        "it works with interleaved chunks alone",
        lambda s: (settled(s).chunks or 1) > 1,
    ),
    "--ckpt-format torch_dcp": ("it does not work with pipeline parallelism", lambda s: s.ranks == 1),
    "--use-torch-fsdp2": ("it does not work with pipeline parallelism", lambda s: s.ranks == 1),
    "--cpu-offloading": ("it does not work with pipeline parallelism", lambda s: s.ranks == 1),
    "--hybrid-context-parallel": ("it does not work with pipeline parallelism", lambda s: s.ranks == 1),
}


def _switches(setup: Setup) -> Iterator[Breach]:
    for flag, (rule, has) in _NEEDS.items():
        if flag in setup.switches and not has(setup):
            yield Breach(flag, ("switches", "pipeline"), rule, f"leave out {flag}", flag)


def emit(layout: Layout, sizes: Sizes) -> str:
    """Flags of a layout, one a line."""
    flags = [
        f"{KEYS['tensor']} {layout.tensor}",
        f"{KEYS['pipeline']} {layout.pipeline}",
        f"{KEYS['context']} {layout.context}",
        f"{KEYS['micro_batch']} {layout.micro_batch}",
        f"{KEYS['global_batch']} {layout.global_batch}",
        f"{KEYS['sequence']} {sizes.sequence}",
        f"{KEYS['layers']} {sizes.layers}",
        *([f"{KEYS['next_layers']} {sizes.next_layers}"] if sizes.next_layers else []),
        *_split_flags(layout, sizes),
    ]
    flags += [f"{KEYS['expert']} {layout.expert}"] if layout.expert > 1 else []
    if max(layout.tensor, layout.expert_shards) > 1 and (sizes.experts or layout.expert > 1):
        flags.append(f"{KEYS['expert_tensor']} {layout.expert_shards}")  # what is taken unsaid differs by version
    if layout.tensor > 1 and layout.sequence_parallel:
        flags.append("--sequence-parallel")
    if layout.tensor_overlap:
        flags.append("--tp-comm-overlap")
    flags += ["--use-distributed-optimizer"] if layout.zero >= 1 else []
    flags += ["--overlap-grad-reduce"] if layout.overlap else []
    flags += ["--overlap-param-gather"] if layout.zero >= 1 and layout.overlap_gather else []
    flags += _recompute_flags(layout)
    flags.append(PRECISIONS[layout.precision])
    return " \\\n".join(flags)


def _split_flags(layout: Layout, sizes: Sizes) -> list[str]:
    split = layout.split(sizes.layers)
    if len(set(split)) > 1:
        return [f"{KEYS['layout']} '{write_layout(split, sizes.next_layers)}'"]
    return [f"{KEYS['chunks']} {layout.chunks}"] if layout.chunks > 1 else []


def _recompute_flags(layout: Layout) -> list[str]:
    if layout.recompute == "none":
        return []
    if layout.recompute == "selective":
        return [f"{KEYS['recompute']} selective"]
    some = layout.recompute_layers
    how = "uniform --recompute-num-layers 1" if some is None else f"block --recompute-num-layers {some}"
    return [f"{KEYS['recompute']} full", f"--recompute-method {how}"]


MEGATRON = Backend(
    "megatron",
    "Megatron-LM",
    VERSION,
    KEYS,
    ALIASES,
    rules,
    settled,
    split,
    schedule,
    emit,
    ("1f1b", "interleaved"),
    SWITCHES,
    lacks=frozenset({"zero"}),
)
