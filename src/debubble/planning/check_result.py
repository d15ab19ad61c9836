"""What a framework would say to a configuration, as scripts and reports have it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..config.config import Config, Open, StillOpen, ask
from ..core.results import SPARSE, Result
from ..frameworks.engines import implied_engine
from ..frameworks.framework import Framework
from ..frameworks.layout_string import Stages
from .check import Broken, Checked


@dataclass(frozen=True, slots=True)
class NearestLegal:
    """A value that would be legal, and the idle share that it costs; None if that cannot be told."""

    key: str
    value: str | int
    idle_share: float | None


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
    def status(self) -> int:
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
    def status(self) -> int:
        """Exit status: 1 if one is illegal, else 2 if one is open."""
        return {True: 0, False: 1, None: 2}[self.legal]


def judgement_of(name: str, checked: Checked, notes: tuple[str, ...]) -> ConfigurationCheck:
    """What was found of a configuration, under the keys of its JSON.

    Args:
        name: of the configuration.
        checked: what was found.
        notes: sentences beside its warnings.
    """
    framework, facts = checked.framework, checked.facts
    return ConfigurationCheck(
        name=name,
        legal=checked.legal,
        faults=tuple(_fault(framework, fault) for fault in checked.faults),
        open=tuple(_open(framework, one) for one in checked.open),
        warnings=(*checked.warnings, *notes),
        framework=framework.name,
        backend=framework.name,
        title=framework.title,
        rules_of=framework.version,
        pipeline=facts.pipeline,
        chunks=facts.chunks,
        data=facts.data,
        microbatches=facts.microbatches,
        schedule=facts.schedule,
        engine=_engine(checked.config),
        split=facts.split,
        balance=facts.balance,
        idle_share=facts.idle_share,
        idle_evidence=facts.evidence,
        layout=None if facts.layout is None else _layout(facts.layout),
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
    return None if engine is None else engine.name


def checks_of(verdicts: tuple[ConfigurationCheck, ...]) -> ConfigurationCheck | SeveralChecks:
    """One verdict as it is, several together."""
    if len(verdicts) == 1:
        return verdicts[0]
    legal = [verdict.legal for verdict in verdicts]
    return SeveralChecks(legal=False if False in legal else None if None in legal else True, verdicts=verdicts)


def _fault(framework: Framework, fault: Broken) -> ConfigurationFault:
    nearest = tuple(NearestLegal(framework.key(one.field), one.value, one.idle_share) for one in fault.alternatives)
    return ConfigurationFault(
        key=fault.key,
        value=fault.value,
        rule=fault.rule,
        remedy=fault.remedy,
        alternatives=nearest,
        place=fault.place,
        source=fault.source,
    )


def _open(framework: Framework, one: Open) -> OpenKey:
    return OpenKey(key=framework.key(one.field), value=one.text, place=one.place, remedy=ask(one.field))


def _layout(laid: Stages) -> LayoutString:
    return LayoutString(
        chunks=len(laid.stages),
        vpp=laid.chunks,
        layers=laid.count("t"),
        mtp=laid.count("m"),
        loss_slots=laid.count("L"),
        per_rank_layers=tuple(laid.per_rank),
    )
