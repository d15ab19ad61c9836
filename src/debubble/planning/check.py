"""Checking a configuration: every rule that it breaks with what would mend it, what is open, what is legal but poor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..config.config import NUMBERS, OF_THE_MODEL, Config, Open, StillOpen, Unknown, ask
from ..core.errors import InputError
from ..core.results import HIDDEN, SPARSE, Result
from ..frameworks.engines import implied_engine
from ..frameworks.framework import SIZES, Breach, Framework, Rule
from ..frameworks.megatron_stages import Stages, read_layout
from ..schedules.catalog import called
from .idle import enough, evidence, idle_share
from .splits import MOST, best_splits, judged

FARTHEST = 256  # steps to look on either side; all rules are asked anew at each
Mends = Callable[[frozenset[str]], bool]  # of the rules that are still broken

ENOUGH = 0.10  # idle share that is worth a warning above
MOST_SIMULATED = 40_000  # ops of a split that is simulated for a remedy
_FOLLOWING = (
    *("pipeline", "chunks", "data", "microbatches", "schedule"),
    *("split", "balance", "idle_share", "idle_evidence", "layout"),
)


@dataclass(frozen=True, slots=True)
class NearestLegal:
    """A value that would be legal.

    Args:
        key: the framework's own.
        value: what to give instead.
        idle_share: of the configuration with it, 0 to 1; None if that cannot be told.
        field: of ``Config``.
    """

    key: str
    value: int
    idle_share: float | None
    field: str = field(metadata=HIDDEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFault:
    """A rule that is broken, in the framework's own words.

    Args:
        key: the framework's own key.
        value: what it was given.
        rule: what the framework asks.
        remedy: the nearest legal values, each with its idle share if that can be told.
        alternatives: the same as numbers.
        place: where the key was said; empty if nobody did.
        source: file and function where the framework checks it.
    """

    key: str
    value: str
    rule: str
    remedy: str
    alternatives: tuple[NearestLegal, ...]
    place: str
    source: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.rule}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenKey:
    """A key that is left open, its text, where that is, and how to say it."""

    key: str
    value: str
    place: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutString:
    """What a layout string of Megatron-LM means.

    Args:
        chunks: stages.
        vpp: chunks of a rank.
        layers: of the decoder.
        mtp: layers of multi-token prediction.
        loss_slots: stages that hold the loss.
        per_rank_layers: of each rank.
    """

    chunks: int
    vpp: int
    layers: int
    mtp: int
    loss_slots: int
    per_rank_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One configuration, held against every rule of its framework.

    Args:
        name: of the configuration in its file.
        legal: whether no rule is broken; None if none is, but something that rules rest on is open.
        faults: every rule that is broken.
        open: what is left open and keeps rules from an answer.
        warnings: what is legal but poor.
        framework: whose rules, by name.
        backend: the same, under its former name.
        title: of the framework.
        rules_of: the version of the framework whose rules they are.
        pipeline: ranks; so too the other sizes that follow, if they can be told.
        engine: how it communicates, by the name that ``show --engine`` takes; None where that is not known.
        split: layers of each stage.
        balance: mean layers of a stage over the most.
        idle_share: of even stages.
        idle_evidence: ``exact`` or ``simulated``, of the idle share.
        layout: what a layout string means.
        evidence: of the verdict.
    """

    name: str
    legal: bool | None
    faults: tuple[ConfigurationFault, ...]
    open: tuple[OpenKey, ...]
    warnings: tuple[str, ...]
    framework: str
    backend: str
    title: str
    rules_of: str
    pipeline: int | None = field(metadata=SPARSE)
    chunks: int | None = field(metadata=SPARSE)
    data: int | None = field(metadata=SPARSE)
    microbatches: int | None = field(metadata=SPARSE)
    schedule: str | None = field(metadata=SPARSE)
    engine: str | None = field(metadata=SPARSE)
    split: tuple[int, ...] | None = field(metadata=SPARSE)
    balance: float | None = field(metadata=SPARSE)
    idle_share: float | None = field(metadata=SPARSE)
    idle_evidence: str | None = field(metadata=SPARSE)
    layout: LayoutString | None = field(metadata=SPARSE)
    evidence: str

    @property
    def exit_status(self) -> int:
        """Exit status: 1 if a rule is broken, 2 if something is open."""
        return {True: 0, False: 1, None: 2}[self.legal]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ConfigurationCheck(Judgement, Result):
    """One configuration that was checked (see ``Judgement``)."""

    schema: ClassVar[str] = "check/1"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SeveralChecks(Result):
    """Configurations of one file that were checked.

    Args:
        legal: whether all of them are; None if none is illegal and one is open.
        verdicts: of each.
    """

    schema: ClassVar[str] = "check-several/1"

    legal: bool | None
    verdicts: tuple[Judgement, ...]

    @property
    def exit_status(self) -> int:
        """Exit status: 1 if one is illegal, else 2 if one is open."""
        return {True: 0, False: 1, None: 2}[self.legal]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a framework would say to a configuration.

    Args:
        framework: whose rules.
        config: what was said, with what the framework works out filled in.
        faults: every rule that is broken.
        open: what is left open and keeps rules from an answer.
        warnings: what is legal but poor.
        is_sized: whether its sizes are sizes at all; nothing follows from them if not.
    """

    framework: Framework
    config: Config
    faults: tuple[ConfigurationFault, ...]
    open: tuple[Open, ...]
    warnings: tuple[str, ...]
    is_sized: bool = True

    @property
    def legal(self) -> bool | None:
        """Whether no rule is broken; None where none is, but something that rules rest on is open."""
        if self.faults:
            return False
        return None if self.open else True


def check(framework: Framework, config: Config) -> Checked:
    """Hold a configuration against every rule of a framework."""
    judged = framework.broken(config)
    faults = tuple(_broken(framework, config, breach, rule) for breach, rule in judged.breaches)
    if any(rule is SIZES for _, rule in judged.breaches):
        return Checked(framework, config, faults, (), (), is_sized=False)
    full = framework.filled(config)
    # What is illegal is told alone: advice on the layers of a pipeline that cannot start would be noise.
    warnings = [*_whole(_poor(framework, full))]
    if not faults:
        warnings += _whole(_about_split(framework, full))
    return Checked(framework, full, faults, judged.undecided, tuple(warnings))


def _whole(sentences: Iterator[str]) -> Iterator[str]:
    """Sentences, up to the first that needs what is not known."""
    with suppress(Unknown):
        yield from sentences


def judgement_of(name: str, checked: Checked, notes: tuple[str, ...]) -> ConfigurationCheck:
    """What was found of a configuration, under the keys of its JSON.

    Args:
        name: of the configuration.
        checked: what was found.
        notes: sentences beside its warnings.
    """
    framework = checked.framework
    return ConfigurationCheck(
        name=name,
        legal=checked.legal,
        faults=checked.faults,
        open=tuple(_open(framework, one) for one in checked.open),
        warnings=(*checked.warnings, *notes),
        framework=framework.name,
        backend=framework.name,
        title=framework.title,
        rules_of=framework.version,
        engine=_engine(checked.config),
        **_sizes(framework, checked),
        evidence="exact",
    )


def _engine(config: Config) -> str | None:
    """The engine that it implies; None where no pipeline is known, or a switch that decides it is open."""
    try:
        if (config.pipeline or 1) == 1:
            return None
        engine = implied_engine(config)
    except StillOpen:  # what is open is asked for where it decides the verdict; this is beside it
        return None
    return engine.name if engine else None


def checks_of(verdicts: tuple[ConfigurationCheck, ...]) -> ConfigurationCheck | SeveralChecks:
    """One verdict as it is, several together."""
    if len(verdicts) == 1:
        return verdicts[0]
    legal = [verdict.legal for verdict in verdicts]
    whole: bool | None = None if None in legal else True
    if False in legal:
        whole = False
    return SeveralChecks(legal=whole, verdicts=verdicts)


def _open(framework: Framework, one: Open) -> OpenKey:
    return OpenKey(key=framework.key(one.field), value=one.text, place=one.place, remedy=ask(one.field))


def _sizes(framework: Framework, checked: Checked) -> dict[str, Any]:
    """Sizes that follow from a configuration, by the names of ``Judgement``; None if they cannot be told."""
    full = checked.config
    sizes: dict[str, Any] = dict.fromkeys(_FOLLOWING)
    if not checked.is_sized:
        return sizes
    with suppress(Unknown):
        sizes |= {"pipeline": full.ranks, "chunks": full.chunks, "schedule": full.schedule}
        laid = _laid(full)
        sizes["layout"] = None if laid is None else _layout(laid)
    with suppress(Unknown):
        sizes |= {"data": full.replicas, "microbatches": full.flush}
    # A split that nobody said is worth a word only if the whole is legal: else it may follow from what is wrong.
    if "split" in full.known() and full.split and (not checked.faults or full.said("split")):
        split = full.split
        sizes["split"] = split
        if max(split):
            sizes["balance"] = sum(split) / len(split) / max(split)
    idle = idle_of(framework, full)
    if idle is not None:
        sizes["idle_share"] = idle
        sizes["idle_evidence"] = evidence(full.schedule or "", full.ranks, full.flush or 1, full.number("chunks"))
    return sizes


def _layout(laid: Stages) -> LayoutString:
    return LayoutString(
        chunks=len(laid.stages),
        vpp=laid.chunks,
        layers=laid.count("t"),
        mtp=laid.count("m"),
        loss_slots=laid.count("L"),
        per_rank_layers=tuple(laid.per_rank),
    )


def _broken(framework: Framework, config: Config, breach: Breach, rule: Rule) -> ConfigurationFault:
    offered: tuple[NearestLegal, ...] = ()
    if rule is not SIZES:  # of what is no size, nothing is near
        offered = alternatives(framework, config, breach)
    texts = [*_choices(offered), breach.remedy, _better_split(framework, config, breach)]
    first = breach.fields[0]
    return ConfigurationFault(
        key=framework.key(first),
        value=breach.value or _value(config, first),
        rule=framework.worded(breach.rule),
        remedy=framework.worded("; or ".join(filter(None, texts))),
        alternatives=offered,
        place=config.where(first),
        source=rule.source,
    )


def _value(config: Config, name: str) -> str:
    """What a field or an own word was given."""
    known = config.known()
    return str(known[name] if name in known else config.own.get(name))


def _choices(offered: tuple[NearestLegal, ...]) -> Iterator[str]:
    """``--pipeline-model-parallel-size 4 (idle 16.3 %) or 8 (idle 31.1 %)``, a text for each key."""
    values: dict[str, list[str]] = {}
    for one in offered:
        share = ""
        if one.idle_share is not None:
            share = f" (idle {100 * one.idle_share:.1f} %)"
        values.setdefault(one.key, []).append(f"{one.value}{share}")
    for key, texts in values.items():
        yield f"{key} {' or '.join(texts)}"


def _better_split(framework: Framework, config: Config, breach: Breach) -> str:
    """Splits that hold all layers, shortest first."""
    # Only rules about layers of stages have a split for a remedy.
    if not breach.law.startswith(("split", "empty stage")):
        return ""
    try:
        full = framework.filled(config)
        layers, ranks = full.number("layers"), full.ranks
        many = full.flush or ranks
        if full.number("chunks") > 1 or layers < ranks or ranks * many * 2 > MOST_SIMULATED:
            return ""
    except Unknown:
        return ""
    best = best_splits([1.0] * layers, ranks, many)[:2]
    shown = [f"{','.join(map(str, s.blocks))} (takes {s.makespan:g} times a layer's F and B)" for s in best]
    return f"heavy stages first: {framework.key('split')} {' or '.join(shown)}"


def _laid(config: Config) -> Stages | None:
    """What a layout string means."""
    if config.layout is None:
        return None
    try:
        return read_layout(config.layout, config.ranks)
    except InputError:
        return None


def _poor(framework: Framework, full: Config) -> Iterator[str]:
    """What is legal but wastes time or memory."""
    ranks = full.ranks
    if full.word("fsdp_reshard_after_forward") == "always" and ranks > 1:
        key = framework.key("fsdp_reshard_after_forward")
        yield (
            f"{key} always gathers weights again for each micro-batch, and saves no memory: "
            "in a pipeline they stay after the first backward"
        )
    many = full.flush
    if many is not None and many < ranks:
        yield f"m < p: {many} micro-batches cannot keep {ranks} ranks busy at the same moment"
    idle = idle_of(framework, full)
    if idle is not None and idle > ENOUGH:
        least = enough(full.schedule or "1f1b", ranks, ENOUGH, full.number("chunks"))
        cure = f"; {least} bring it to {100 * ENOUGH:g} % or less" if least else ""
        yield f"idle share {100 * idle:.1f} % with {many} micro-batches{cure}"


def _about_split(framework: Framework, full: Config) -> Iterator[str]:
    """What is poor about the layers of each stage."""
    split, ranks = full.split, full.ranks
    if not split or sum(split) == 0:
        return
    laid = _laid(full)
    if laid is not None and len(laid.stages) != len(split):
        laid = None  # the string is of another pipeline, and this framework reads none of it
    empty = []
    for stage, layers in enumerate(split):
        if not layers and (laid is None or laid.stages[stage] == ""):  # embedding or loss alone is no empty stage
            empty.append(stage)
    if empty:
        yield f"stage {', '.join(map(str, empty))} is empty: it only passes activations on"
    if laid is not None:
        return
    given = bool(full.said("split"))
    if given and framework.deals and full.layers:
        own = framework.deals(full, ranks)
        if split not in own:
            dealt = " or ".join(",".join(map(str, one)) for one in own)
            yield f"{framework.title} deals layers by itself, as {dealt}: another split takes a change of its code"
    # Embedding and loss weigh as many layers as the framework was told to count them for, else nothing.
    loads = [sum(split[rank::ranks]) for rank in range(ranks)]
    loads[0] += full.embedding_layers or 0
    loads[-1] += full.loss_layers or 0
    whole = sum(loads)
    least = -(-whole // ranks)
    # Layers are whole: beyond an even split nothing but more or fewer ranks helps.
    if max(loads) == least and whole % ranks:
        idle = 100 * (1 - whole / ranks / least)
        yield (
            f"rebalancing cannot help: the largest stage stays ceil({whole}/{ranks}) = {least} layers, "
            f"so {idle:.1f} % idle at any number of micro-batches"
        )
    elif max(loads) > least and (given or not framework.deals):
        yield f"the largest rank holds {max(loads)} layers, an even split {least}: {_gain(loads, full)}"


def _gain(loads: list[int], full: Config) -> str:
    """What an even split would gain, simulated where it is small."""
    ranks = full.ranks
    many = full.flush or ranks
    if full.number("chunks") > 1 or ranks * many * 2 > MOST_SIMULATED or sum(loads) > MOST:
        return "balance it, unless the end ranks carry the embedding and the head"
    # Layers alike: what embedding and head weigh is not known without the model.
    blocks = [1.0] * sum(loads)
    now, best = judged(loads, blocks, many), best_splits(blocks, ranks, many)[0]
    better = ",".join(map(str, best.blocks))
    return f"{better} would be {now.makespan / best.makespan:.2f} times as fast, if embedding and head weighed nothing"


def alternatives(framework: Framework, config: Config, breach: Breach) -> tuple[NearestLegal, ...]:
    """For each number that the rule is about, the nearest below and above that break no rule which held before.

    Where there is none, those that mend this rule: others could not be asked before it held (how many samples a replica
    trains, before the devices divide).
    """
    # A value that mends one rule and breaks another is no remedy, so all rules are asked again.
    before = framework.broken(config).laws - {breach.law}
    strictly = _offered(framework, config, breach, lambda laws: laws <= before)
    return strictly or _offered(framework, config, breach, lambda laws: breach.law not in laws)


def _offered(framework: Framework, config: Config, breach: Breach, mends: Mends) -> tuple[NearestLegal, ...]:
    known = config.known()
    fields = [f for f in breach.fields if f in NUMBERS and f not in OF_THE_MODEL and f in known]
    offered = []
    for name in fields:
        for value in sorted(_nearest(framework, config, name, mends)):
            idle = idle_of(framework, config.changed(**{name: value}))
            offered.append(NearestLegal(framework.key(name), value, idle, name))
    return tuple(offered)


def _nearest(framework: Framework, config: Config, field: str, mends: Mends) -> Iterator[int]:
    """The nearest value that mends it on each side."""
    value = config.number(field)
    step = _unit(framework, config) if field == "global_batch" else 1
    whole = value // step * step
    below = whole if whole < value else whole - step
    for direction, start in ((-1, below), (1, whole + step)):
        end = start + FARTHEST * step
        if direction < 0:
            end = max(start - (FARTHEST + 1) * step, 0)
        for number in range(max(start, 0), end, direction * step):
            if abs(number - value) > max(FARTHEST, 4 * value):
                break
            if mends(framework.broken(config.changed(**{field: number})).laws):
                yield number
                break


def _unit(framework: Framework, config: Config) -> int:
    """Samples by which a global batch may grow."""
    try:
        full = framework.filled(config)
        return (full.micro_batch or 1) * (full.replicas or 1)
    except Unknown:
        return 1


def idle_of(framework: Framework, config: Config) -> float | None:
    """Idle share of what a configuration runs; None where its schedule or its micro-batches cannot be told."""
    try:
        full = framework.filled(config)
        name, many = full.schedule, full.flush
        if name is None or called(name) is None or many is None or many < 1:
            return None
        return idle_share(name, full.ranks, many, full.number("chunks"))
    except InputError:  # something is not known, or nobody has a schedule of this name
        return None
