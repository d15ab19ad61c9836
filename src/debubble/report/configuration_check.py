"""What ``check`` says of a configuration: every fault by the framework's own key, what is open, and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import percent
from .order_check import verdict
from .sections import Report, Section, Sentences

if TYPE_CHECKING:
    from ..planning.check_result import Judgement


def report(found: Judgement, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of one configuration."""
    return Report(title(found), (), list(sections(found)))


def title(found: Judgement) -> str:
    """Whose rules, and the verdict."""
    return f"{found.title} (rules of {found.rules_of}): {verdict(found.legal, len(found.faults))}"


def sections(found: Judgement) -> Iterator[Section]:
    """Faults and what is open, then the sizes that follow and warnings."""
    faults = list(_faults(found))
    if faults:
        yield Sentences("", faults, plain=True, whole=True)  # each stays on its line, to be searched for
    facts = [line for line in _facts(found) if line]
    facts += [f"warning: {sentence}" for sentence in found.warnings]
    if facts:
        yield Sentences("", facts, plain=True)


def _faults(found: Judgement) -> Iterator[str]:
    for fault in found.faults:
        where = f" ({fault.place})" if fault.place and fault.place != "command line" else ""
        yield f"{fault.key} = {fault.value}{where}: {fault.rule}"
        yield from (f"    {way}" for way in fault.remedy.split("; or ") if way)
    for one in found.open:
        where = f" ({one.place})" if one.place else ""
        yield f"{one.key} is open, {one.value}{where}: {one.remedy}"


def _facts(found: Judgement) -> Iterator[str]:
    sizes = {
        "pipeline": found.pipeline,
        "chunks": found.chunks,
        "data": found.data,
        "microbatches": found.microbatches,
    }
    line = ", ".join(f"{name} {value}" for name, value in sizes.items() if value is not None)
    if found.idle_share is not None:
        evidence = f"with even stages ({found.idle_evidence})"
        line += f": idle share {percent(found.idle_share)} of {found.schedule} {evidence}"
    yield line
    if found.layout is not None:
        laid = found.layout
        yield f"layout: {laid.layers} layers in {laid.chunks} chunks, {laid.vpp} a rank"
        yield f"layers of each rank: {' '.join(map(str, laid.per_rank_layers))}"
    elif found.split and len(set(found.split)) > 1:
        yield f"layers of each stage: {' '.join(map(str, found.split))}"
