"""What ``check`` says of a schedule or of configurations: the verdict, every fault on a line, and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import counted, percent
from .sections import Report, Section, Sentences

if TYPE_CHECKING:
    from ..core.order_check import OrderCheck
    from ..planning.check import Judgement, SeveralChecks

LONGEST = 200  # characters of a value that a line shows
# Ways of sending, as options and results name them, in words.
WAYS = {
    "async": "sends that wait for nobody",
    "blocking": "sends that keep the sender",
    "rendezvous": "sends and receives that wait for each other",
}


def of_order(check: OrderCheck, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a checked schedule: which ways of sending cannot hang, if it is legal."""
    lines = [str(fault) for fault in check.faults]
    if not check.faults:
        order = "as it states them" if check.states_transfers else "placed for it"
        for way in check.ways:
            lines.append(f"no deadlock with {WAYS[way]} (sends and receives {order})")
    for sentence in check.warnings:
        lines.append(f"warning: {sentence}")
    lines += check.waits
    sizes = f"{check.ranks} ranks, {check.stages} stages, {check.microbatches} micro-batches"
    title = f"{check.schedule}: {sizes}: {_verdict(check.legal, len(check.faults))}"
    return Report(title, (), [Sentences("", lines, plain=True, whole=True)])


def of_configuration(check: Judgement, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of one configuration."""
    return Report(_title(check), (), _sections(check))


def of_several(checks: SeveralChecks, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a file that holds several configurations: each in turn."""
    sections: list[Section] = []
    for check in checks.verdicts:
        sections.append(Sentences("", [f"{check.name}: {_title(check)}"], plain=True, margin=0))
        sections += _sections(check)
    legal = [check for check in checks.verdicts if check.legal]
    return Report(f"{len(legal)} of {len(checks.verdicts)} configurations are legal", (), sections)


def _verdict(legal: bool | None, faults: int) -> str:
    if legal is None:
        return "cannot say"  # something that it rests on is open
    if faults:
        return counted(faults, "fault")
    return "legal"


def _title(check: Judgement) -> str:
    """Whose rules, and the verdict."""
    return f"{check.title} (rules of {check.rules_of}): {_verdict(check.legal, len(check.faults))}"


def _sections(check: Judgement) -> list[Section]:
    """Faults and what is open, each on a line of its own, to be searched for; then what follows and warnings."""
    # Faults on whole lines, so that grep finds a key with its value; prose may wrap.
    warnings = [f"warning: {sentence}" for sentence in check.warnings]
    return [
        Sentences("", list(_faults(check)), plain=True, whole=True),
        Sentences("", [*_facts(check), *warnings], plain=True),
    ]


def _faults(check: Judgement) -> Iterator[str]:
    for fault in check.faults:
        # Of what was typed, the user need not be told where it is.
        where = f" ({fault.place})" if fault.place not in ("", "command line") else ""
        yield f"{fault.key} = {fault.value}{where}: {fault.rule}"
        # A way out a line: they are alternatives, and the first is the nearest.
        for way in filter(None, fault.remedy.split("; or ")):
            yield f"    {way}"
    for gap in check.open:
        where = f" ({gap.place})" if gap.place else ""
        value = str(gap.value)
        if len(value) > LONGEST:  # a variable may double itself
            value = f"{value[:LONGEST]}.."
        yield f"{gap.key} is open, {value}{where}: {gap.remedy}"


def _facts(check: Judgement) -> Iterator[str]:
    """The sizes that follow, the bubble of even stages, and the layers of each stage if they differ."""
    sizes = [
        ("pipeline", check.pipeline),
        ("chunks", check.chunks),
        ("data", check.data),
        ("microbatches", check.microbatches),
    ]
    line = ", ".join(f"{name} {value}" for name, value in sizes if value is not None)
    if check.idle_share is not None:
        line += f": idle share {percent(check.idle_share)} of {check.schedule} with even stages ({check.idle_evidence})"
    if line:
        yield line
    if check.engine is not None:
        yield f"engine: {check.engine}, as in show --engine {check.engine}"
    layout = check.layout
    if layout is not None:
        yield f"layout: {layout.layers} layers in {layout.chunks} chunks, {layout.vpp} a rank"
        yield f"layers of each rank: {' '.join(map(str, layout.per_rank_layers))}"
    elif len(set(check.split or ())) > 1:
        yield f"layers of each stage: {' '.join(map(str, check.split or ()))}"
