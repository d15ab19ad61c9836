"""A setup: what a configuration says of a launch in words that all frameworks share, and what breaks their rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from math import prod

from ..config.layout import Layout


@dataclass(frozen=True, slots=True)
class Setup:
    """A launch as one framework's configuration states it; None where it is silent.

    Args:
        gpus: devices of the whole job.
        tensor: devices that share each layer; likewise ``context`` and ``expert``.
        expert_tensor: devices that share each expert; None for what the framework takes by itself.
        pipeline: ranks of one pipeline, p.
        data: data-parallel replicas.
        sharded: replicas that share one model out among them; ``copies`` of such groups make up ``data``.
        layers: transformer layers of the model; likewise ``heads``, ``kv_heads``, ``experts``, ``sequence``.
        next_layers: layers that predict further tokens.
        hidden: width of the residual; likewise ``ffn`` of the feed-forward part and ``vocab`` of the head.
        chunks: stages per rank, v.
        chunk_layers: layers of each chunk, from which the framework works out ``chunks``.
        first: layers of the first rank, ``last`` of the last one, where the ends are told apart.
        embedding_layers: layers as which the embedding counts in the split; likewise ``loss_layers``.
        split: layers of each stage, where all are given.
        partition: DeepSpeed's method by which it deals layers itself.
        layout: Megatron's string of stages.
        pattern: Megatron's string of layers of a hybrid model, with bars where stages are cut.
        micro_batch: samples in a micro-batch, b.
        microbatches: per pipeline and step, m.
        local_batch: samples of one replica in a step.
        global_batch: samples of all replicas in a step.
        rampup: samples at the start, by how many they grow, and over how many samples.
        group: micro-batches that pass a chunk before the next has its turn.
        schedule: by the framework's own name.
        recompute: ``none``, ``selective`` or ``full``.
        recompute_method: Megatron-Core's, ``uniform`` or ``block``, with its ``recompute_layers``.
        zero: what data-parallel ranks share out, 0 to 3.
        reshard: torchtitan's word for when weights that were gathered are let go of.
        switches: further flags that are on, by the framework's own name.
    """

    gpus: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    sharded: int | None = None
    copies: int | None = None
    context: int | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    experts: int | None = None
    sequence: int | None = None
    next_layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    chunks: int | None = None
    chunk_layers: int | None = None
    first: int | None = None
    last: int | None = None
    embedding_layers: int | None = None
    loss_layers: int | None = None
    split: tuple[int, ...] | None = None
    partition: str | None = None
    layout: str | None = None
    pattern: str | None = None
    micro_batch: int | None = None
    microbatches: int | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    rampup: tuple[int, ...] | None = None
    group: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    recompute_method: str | None = None
    recompute_layers: int | None = None
    zero: int | None = None
    reshard: str | None = None
    switches: frozenset[str] = frozenset()

    @property
    def ranks(self) -> int:
        """Ranks of one pipeline; 1 where nothing is said."""
        return self.pipeline or 1

    @property
    def replica(self) -> int:
        """Devices of one data-parallel replica."""
        return prod(size or 1 for size in (self.tensor, self.pipeline, self.context))

    @property
    def replicas(self) -> int | None:
        """Data-parallel replicas, as given or as the devices leave them; None where that cannot be told."""
        if self.data is not None:
            return self.data
        if not self.gpus or self.gpus % self.replica:
            return None
        return self.gpus // self.replica

    @property
    def flush(self) -> int | None:
        """Micro-batches per pipeline and step, as given or as the batch leaves them; None where it does not divide."""
        if self.microbatches is not None:
            return self.microbatches
        if self.local_batch is not None:
            return _whole(self.local_batch, self.micro_batch or 1)
        if self.global_batch is None or self.replicas is None:
            return None
        return _whole(self.global_batch, (self.micro_batch or 1) * self.replicas)


def _whole(amount: int, of: int) -> int | None:
    return amount // of if of > 0 and amount % of == 0 and amount >= of else None


NUMBERS = tuple(f.name for f in fields(Setup) if f.type == "int | None")
OF_THE_MODEL = ("layers", "heads", "kv_heads", "experts", "next_layers", "hidden", "ffn", "vocab", "sequence")


def changed(setup: Setup, field: str, value: int) -> Setup:
    """The same setup with another number in one field."""
    return replace(setup, **{field: value})  # type: ignore[arg-type]  # a name in NUMBERS


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a setup breaks.

    Args:
        law: a short name of the rule; no two rules of a framework share one.
        fields: of ``Setup``: the first is to blame, a change of any one of them may mend it.
        rule: what the framework asks, as a clause; ``<field>`` stands for the framework's own key of a field.
        remedy: what to do, where it is not another number; likewise.
        value: what is wrong, where it is not the value of the first field.
    """

    law: str
    fields: tuple[str, ...]
    rule: str
    remedy: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What ``emit`` and a framework that deals layers by itself must know of a model besides its layout.

    Args:
        layers: transformer layers; likewise ``experts`` of a layer, 0 where it has none.
        sequence: tokens in a sample.
        next_layers: layers that predict further tokens, on the last stage.
        hidden: width of the residual; likewise ``ffn`` of the feed-forward part and ``vocab`` of the head.
    """

    layers: int
    sequence: int
    experts: int = 0
    next_layers: int = 0
    hidden: int = 0
    ffn: int = 0
    vocab: int = 0


_FIELD = re.compile(r"<([a-z_]+)>")
Rules = Callable[[Setup], Iterator[Breach]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One framework.

    Args:
        name: as ``--backend`` knows it.
        title: as people call it.
        version: repository and commit, or release, from which the rules were read.
        keys: the framework's own key for each field of ``Setup`` that it has.
        aliases: further keys that mean a field.
        rules: everything in a setup that the framework refuses.
        settled: a setup with what the framework works out by itself filled in.
        split: transformer layers of each stage; None where that cannot be told.
        schedule: our name of the schedule that a setup runs; None where the framework has no such schedule.
        emit: the lines that a user pastes to launch a layout.
        schedules: names of ours that it can run.
        switches: its flag for each part of a ``Layout`` that is on or off; off where the flag is not given.
        habits: parts of a ``Layout`` that are always so with it.
        in_pipelines: parts of a ``Layout`` that are so in a pipeline of 2 ranks or more.
        zeros: what its replicas can share out (0 to 3) in a pipeline of so many ranks, its own choice first; None where
            that is for the layout to say.
        remark: what a plan should say of how it runs there, as a sentence; None where there is nothing to say.
        names: its own name of each of our schedules, where it has names.
        deals: the only splits of a model over so many stages that it can be told; None where it takes any.
        lacks: what it cannot be told of a layout: ``context``, ``expert``, ``expert tensor`` (an expert on several
            devices), ``some layers`` (of a stage recomputed), ``zero`` (more than the optimizer shared out),
            ``bare ends`` (a stage of the head alone).
    """

    name: str
    title: str
    version: str
    keys: Mapping[str, str]
    aliases: Mapping[str, str]
    rules: Rules
    settled: Callable[[Setup], Setup]
    split: Callable[[Setup], tuple[int, ...] | None]
    schedule: Callable[[Setup], str | None]
    emit: Callable[[Layout, Sizes], str]
    schedules: tuple[str, ...]
    switches: Mapping[str, str] = dataclass_field(default_factory=dict)
    habits: Mapping[str, bool | float] = dataclass_field(default_factory=dict)
    in_pipelines: Mapping[str, bool] = dataclass_field(default_factory=dict)
    zeros: Callable[[int], tuple[int, ...]] | None = None
    remark: Callable[[Layout], str] | None = None
    names: Mapping[str, str] = dataclass_field(default_factory=dict)
    deals: Callable[[Sizes, int], tuple[tuple[int, ...], ...]] | None = None
    lacks: frozenset[str] = frozenset()

    def with_schedule(self, setup: Setup, name: str) -> Setup:
        """The same setup with a schedule by our name, where it is one that the framework asks for by name."""
        named = replace(setup, schedule=self.names.get(name))
        return named if self.schedule(self.settled(named)) == name else setup

    def key(self, field: str) -> str:
        """The framework's own name of a field; ours where it has none."""
        return self.keys.get(field, field.replace("_", " "))

    def worded(self, text: str) -> str:
        """A rule or remedy with the framework's own keys in place of ``<field>``."""
        return _FIELD.sub(lambda match: self.key(match[1]), text)
