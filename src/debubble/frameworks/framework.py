"""A framework: its words for a configuration, its rules with their sources, what it takes by itself, and what it emits.

``read`` turns pairs of key and value into what was said; ``filled`` adds what the framework takes by itself and what
follows; ``broken`` asks every rule; ``layout`` is the layout, all known, that it amounts to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..config.config import NUMBERS, Absent, Config, Layout, Open, StillOpen, layout_of

LARGEST = 10**12
LARGEST_OF = {"pipeline": 100_000, "chunks": 1_000, "layers": 100_000}  # what is looked at stage by stage
MAY_BE_NOTHING = (
    *("first", "last", "next_layers", "embedding_layers", "loss_layers", "zero", "experts"),
    "recompute_layers",
)
_FIELD = re.compile(r"<([A-Za-z_]\w*)>")


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a configuration breaks.

    Args:
        law: a short name of the rule; no two rules of a framework share one.
        fields: of ``Config``, or own words: the first is to blame, a change of any one of them may mend it.
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
class Rule:
    """One thing that a framework refuses.

    A rule reads fields of a filled configuration. Where it needs one that nobody said, it has nothing to refuse; where
    it needs one that is open, it cannot tell, and that is reported.

    Args:
        breaches: what of it a filled configuration breaks.
        source: file and function where the framework checks it, in the release that ``Framework.version`` names.
    """

    breaches: Callable[[Config], Iterator[Breach]]
    source: str


def whole_part(amount: int, unit: int) -> int | None:
    """How often a unit goes into an amount; None where something is left over."""
    if unit == 0 or amount % unit:
        return None
    return amount // unit


def habits_of(framework: Framework | None, ranks: int = 1) -> dict[str, Any]:
    """Parts of a ``Layout`` that are so where nobody says otherwise: in a plan as in a table of measured runs.

    Args:
        framework: that runs it; None for any.
        ranks: of the pipeline.
    """
    if framework is None:
        return {}
    if ranks == 1:
        return {**framework.habits}
    return {**framework.habits, **framework.in_pipelines}


def rule(source: str) -> Callable[[Callable[[Config], Iterator[Breach]]], Rule]:
    """A function as a rule, with the place where the framework itself checks it."""
    return lambda breaches: Rule(breaches, source)


def sizes(config: Config) -> Iterator[Breach]:
    """Every size is 1 or more, and within reason: what nobody checks, since nothing could be worked out with it."""
    opened = config.opened()
    for name in NUMBERS:
        if name in opened:
            continue
        value, least = getattr(config, name), 0 if name in MAY_BE_NOTHING else 1
        most = LARGEST_OF.get(name, LARGEST)
        if value is not None and not least <= value <= most:
            yield Breach(f"size of {name}", (name,), f"it is a whole number from {least} to {most:,}")


SIZES = Rule(sizes, "ours: with other numbers nothing can be worked out")


def named(fields: Sequence[str]) -> str:
    """Fields as a rule or remedy names them; ``Framework.worded`` puts the framework's keys there."""
    return ", ".join(f"<{field}>" for field in fields)


def devices_multiply(config: Config) -> Iterator[Breach]:
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


def batch_divides(config: Config) -> Iterator[Breach]:
    """The global batch is a whole number of micro-batches for each replica."""
    whole = config.number("global_batch")
    size, replicas = config.micro_batch, config.replicas
    if replicas is None:
        if size is not None and whole % size:
            rule = f"micro-batches of {size} samples do not fill it, whatever the replicas"
            yield Breach("batch", ("global_batch", "micro_batch"), rule)
        return
    unit, what = replicas, f"{replicas} replicas"  # they alone must divide it, whatever the size of a micro-batch
    if size:
        unit = size * replicas
        what = f"micro-batch {size} x {replicas} replicas = {unit} samples"
    fields = config.said("global_batch", "micro_batch", "data")
    if whole % unit:
        yield Breach("batch", fields, f"{what}, which does not divide it")
    elif size is not None and config.microbatches is not None and config.microbatches * unit != whole:
        rule = f"micro-batch {size} x {replicas} replicas x {config.microbatches} micro-batches"
        rule += f" = {config.microbatches * unit} samples is another number"
        yield Breach("batch", (*fields, "microbatches"), rule)


def local_batch_divides(config: Config) -> Iterator[Breach]:
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


def heads_divide(config: Config) -> Iterator[Breach]:
    """The tensor group shares heads of attention."""
    if config.number("heads") % config.number("tensor"):
        yield Breach("heads", ("tensor", "heads"), f"it shares {config.heads} attention heads without rest")


def experts_divide(config: Config) -> Iterator[Breach]:
    """Experts are spread evenly over their groups."""
    if config.number("experts") % config.number("expert"):
        yield Breach("experts", ("expert", "experts"), f"it shares {config.experts} experts without rest")


def expert_devices_divide(config: Config) -> Iterator[Breach]:
    """Experts are spread over devices that exist: those of a stage, whatever group they serve otherwise."""
    groups, each = config.number("expert"), config.number("expert_tensor")
    spread = config.number("data") * config.number("context") * config.number("tensor")
    if spread % (groups * each):
        rule = f"a stage has data x context x tensor = {spread} devices; {groups} x {each} of them, the experts' "
        rule += "own degree x the devices that share each expert, must divide that"
        yield Breach("expert devices", config.said("expert", "expert_tensor", "gpus"), rule)


def a_layer_a_stage(config: Config) -> Iterator[Breach]:
    """There is a layer for every stage."""
    layers, chunks = config.number("layers"), config.number("chunks")
    stages = config.ranks * chunks
    if stages > layers:
        fields = ["pipeline", "layers"]
        if chunks > 1:
            fields.insert(0, "chunks")
        yield Breach("a layer a stage", tuple(fields), f"{layers} layers cannot fill {stages} stages")


def split_is_whole(config: Config) -> Iterator[Breach]:
    """Layers given stage by stage are all the model's, and as many numbers as there are stages."""
    if not config.said("split") or config.split is None:
        return
    text = ",".join(map(str, config.split))
    stages = config.ranks * config.number("chunks")
    if config.said("pipeline") and len(config.split) != stages:
        yield Breach("split stages", ("split",), f"there are {stages} stages", f"give {stages} numbers", text)
    missing = (config.layers or sum(config.split)) - sum(config.split)
    what = f"{missing} layers not assigned"
    if missing < 0:
        what = f"{-missing} layers more than the model has"
    if missing:
        yield Breach("split layers", ("split",), f"{what}: it must hold {config.layers}", value=text)
    for stage, layers in enumerate(config.split):
        if layers == 0:
            rule = f"empty stage: stage {stage} has no layer and only passes activations on"
            yield Breach("empty stage", ("split",), rule, value=text)
            return


def _rests_on_silence(breach: Breach, config: Config) -> bool:
    """Whether a rule misses a word that nobody said, in a program whose model stands elsewhere.

    A recipe, a provider or a checkpoint that sets the model sets such words with it: they are not off because they are
    absent. A GPT model of Megatron-Bridge has gradient_accumulation_fusion on, that of DeepSeek-V3 dispatches by
    alltoall, though Megatron-Core's own class has them otherwise (megatron/bridge/models/gpt_provider.py).
    """
    opened = config.opened()
    for name in breach.fields:
        if name in opened:
            continue
        if name in Config.__dataclass_fields__:
            if getattr(config, name) is None:
                return True
        elif config.own.get(name) is None:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Judged:
    """What rules say of a configuration.

    Args:
        breaches: with the rule that each breaks.
        undecided: what is open and kept a rule from an answer.
    """

    breaches: tuple[tuple[Breach, Rule], ...]
    undecided: tuple[Open, ...]

    @property
    def faults(self) -> tuple[Breach, ...]:
        """What is broken, without the rules."""
        return tuple(breach for breach, _ in self.breaches)

    @property
    def laws(self) -> frozenset[str]:
        """Names of what is broken."""
        return frozenset(breach.law for breach, _ in self.breaches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Args:
        name: as ``--framework`` knows it.
        title: as people call it.
        version: repository and commit, or release, from which the rules were read.
        keys: the framework's own key for each field of ``Config`` that it has.
        aliases: further keys that mean a field or an own word; ``!word`` where they say the contrary.
        marks: further keys that are nobody else's, by which its configurations are recognised.
        rules: everything that it refuses.
        filled: a configuration with what the framework takes by itself, and what follows, filled in: degrees, chunks,
            the layers of each stage, our name of the schedule, what replicas share out.
        emit: the lines that a user pastes to launch a layout of a model.
        schedules: names of ours that it can run.
        dashed: whether its own words are flags, ``--like-this``, and not fields, ``like_this``.
        habits: parts of a ``Layout`` that are always so with it.
        in_pipelines: parts of a ``Layout`` that are so in a pipeline of 2 ranks or more.
        zeros: what its replicas can share out (0 to 3) in a pipeline of so many ranks, its own choice first; None where
            that is for the layout to say.
        remark: what a plan should say of how it runs there, as a sentence; None where there is nothing to say.
        names: its own name of each of our schedules, where it has names.
        deals: the only splits of a model over so many stages that it can be told; None where it takes any.
        model: the name of the model that a configuration trains, empty if it names none; None if none ever does.
        wraps: the framework whose engine and rules it has, under words and defaults of its own; empty for none.
        programs: a pattern of the commands that launch it, where they tell it from what it wraps.
        inside: beginnings of the keys that speak of the training; empty for all keys. Others are of further models or
            of inference, under the same words.
        provided: whether a recipe or a checkpoint may set the model, with words that no configuration says.
        offered: whether plans offer it unasked.
        auto: fields that -1 leaves to it.
        rest: degrees that -1 sets to the devices that the others leave; they are open until those are known.
        lacks: what it cannot be told of a layout: ``context``, ``expert``, ``expert tensor`` (an expert on several
            devices), ``some layers`` (of a stage recomputed), ``zero`` (more than the optimizer shared out),
            ``bare ends`` (a stage of the head alone), ``gathers alone`` (of weights, without overlapped reductions).
    """

    name: str
    title: str
    version: str
    keys: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    rules: tuple[Rule, ...]
    filled: Callable[[Config], Config]
    emit: Callable[[Layout, Config], str]
    schedules: tuple[str, ...]
    dashed: bool = False
    habits: Mapping[str, bool | float] = field(default_factory=dict)
    in_pipelines: Mapping[str, bool] = field(default_factory=dict)
    zeros: Callable[[int], tuple[int, ...]] | None = None
    remark: Callable[[Layout], str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    deals: Callable[[Config, int], tuple[tuple[int, ...], ...]] | None = None
    model: Callable[[Config], str] | None = None
    wraps: str = ""
    programs: str = ""
    inside: tuple[str, ...] = ()
    provided: bool = False
    offered: bool = True
    auto: frozenset[str] = frozenset({"data", "sharded", "global_batch"})
    rest: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()

    def broken(self, config: Config) -> Judged:
        """Every rule that a configuration, as it was said, breaks."""
        beyond = tuple((breach, SIZES) for breach in sizes(config))
        if beyond:
            return Judged(beyond, ())
        full = self.filled(config)
        breaches: list[tuple[Breach, Rule]] = []
        undecided: dict[Open, None] = {}
        for one in self.rules:
            try:
                for breach in one.breaches(full):  # one by one: those before an unknown field count
                    breaches.append((breach, one))
            except StillOpen as error:
                undecided |= dict.fromkeys(error.fields)
            except Absent:
                continue
        if self.provided:
            breaches = [(breach, one) for breach, one in breaches if not _rests_on_silence(breach, full)]
        return Judged(tuple(breaches), tuple(undecided))

    def layout(self, config: Config, base: Layout | None = None) -> Layout:
        """The layout that a configuration amounts to.

        Args:
            config: as it was said.
            base: what no configuration says; None for the defaults of ``Layout``.

        Raises:
            Unknown: of degrees, batch and schedule, what is open or absent, all at once.
        """
        full = self.filled(config)
        base = base or Layout()
        return layout_of(full, replace(base, **habits_of(self, full.ranks)))

    def with_schedule(self, config: Config, name: str) -> Config:
        """The same configuration with a schedule by our name, where the framework asks for it by name."""
        named = config.changed(schedule=self.names.get(name))
        if self.filled(named).schedule == name:
            return named
        return config

    def key(self, name: str) -> str:
        """The framework's own name of a field; ours where it has none."""
        if name in self.keys:
            return self.keys[name]
        if name in Config.__dataclass_fields__:
            return name.replace("_", " ")
        if self.dashed:
            return "--" + name.replace("_", "-")
        return name

    def worded(self, text: str) -> str:
        """A rule or remedy with the framework's own keys in place of ``<field>``."""
        return _FIELD.sub(lambda match: self.key(match[1]), text)

    def lacking(self, layout: Layout, model: Config) -> tuple[str, ...]:
        """Each part of a layout that the framework has no words for, as a clause; empty where it can say all of it."""
        clauses = []
        if layout.pipeline > 1 and layout.schedule not in self.schedules:
            clauses.append(f"{self.title} has no schedule {layout.schedule}")
        for what in ("context", "expert"):
            if what in self.lacks and getattr(layout, what) > 1:
                clauses.append(f"{self.title} has no {what} parallelism in its pipelines")
        if model.experts and layout.expert_shards > 1 and "expert tensor" in self.lacks:
            clauses.append(f"{self.title} leaves each expert whole, on one device, not on {layout.expert_shards}")
        if layout.recompute_layers is not None and "some layers" in self.lacks:
            clauses.append(f"{self.title} recomputes every layer of a stage or none")
        if self.zeros and layout.zero not in (able := self.zeros(layout.pipeline)):
            what = " or ".join(f"ZeRO-{zero}" for zero in able)
            clauses.append(f"{self.title} shares a model out as {what} does, not as ZeRO-{layout.zero}")
        if layout.zero > 1 and "zero" in self.lacks:
            clauses.append(f"{self.title} shares out the optimizer alone, not ZeRO-{layout.zero}")
        if "gathers alone" in self.lacks and layout.zero and layout.overlap_gather and not layout.overlap:
            clauses.append(f"{self.title} gathers weights beside the forward only where it reduces beside the backward")
        split = layout.split(model.number("layers"))
        if min(split) == 0 and "bare ends" in self.lacks:
            clauses.append(f"{self.title} wants a layer on each stage")
        if self.deals and split not in (own := self.deals(model, layout.stages)):
            dealt = " or ".join(",".join(map(str, one)) for one in own) or "none that fills each stage"
            clauses.append(f"{self.title} deals layers by itself ({dealt}), not {','.join(map(str, split))}")
        return tuple(clauses)


def nodes_of(layout: Layout) -> tuple[int, int]:
    """Nodes of a job and devices of each: 8, or as many below that as share them out evenly."""
    each = next(many for many in range(min(8, layout.gpus), 0, -1) if layout.gpus % many == 0)
    return layout.gpus // each, each


def launch_line(layout: Layout, program: str) -> str:
    """The command that starts a program on each node of a job."""
    nodes, each = nodes_of(layout)
    return f"torchrun --nnodes {nodes} --nproc-per-node {each} {program}"


def batch_of(layout: Layout) -> str:
    """The batch of a step as a clause: what every launch keeps, however its framework says it."""
    many = f"{layout.microbatches} micro-batches of {layout.micro_batch} on each of {layout.data} replicas"
    return f"global batch {layout.global_batch}: {many}"
