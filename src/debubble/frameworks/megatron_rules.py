"""What Megatron-LM checks before it starts: stages, groups of micro-batches, degrees, recomputation, growth, flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd

from .megatron_setup import SWITCHES, settled
from .megatron_stages import stage_rules
from .rules import COMMON, given, named
from .setup import Breach, Setup


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup (as given, not settled) that Megatron-LM refuses."""
    for rule in (*COMMON, stage_rules):
        yield from rule(setup)
    yield from _interleaving(replace(setup, chunks=settled(setup).chunks))
    for rule in (_attention, _experts, _recomputation, _batch_growth, _switches):
        yield from rule(setup)


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
    fields = (*given(setup, *whose), "pipeline")
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
        fields = ("tensor", *given(setup, "expert", "experts"))
        yield Breach("experts with sequence parallelism", fields, rule, remedy)


def _recomputation(setup: Setup) -> Iterator[Breach]:
    """A full recomputation says of which layers; a selective one has its own idea."""
    if setup.recompute == "full":
        missing = [f for f in ("recompute_method", "recompute_layers") if getattr(setup, f) is None]
        if missing:
            remedy = "<recompute_method> uniform <recompute_layers> 1 for every layer, or block N for N of each stage"
            yield Breach("layers of a full recomputation", ("recompute",), f"full needs {named(missing)}", remedy)
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
