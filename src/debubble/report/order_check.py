"""What ``check`` says of a schedule: the verdict, every fault on a line, and which ways of sending cannot hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sections import Report, Section, Sentences

if TYPE_CHECKING:
    from ..core.order_check import OrderCheck

WAYS = {
    "async": "sends that wait for nobody",
    "blocking": "sends that keep the sender",
    "rendezvous": "sends and receives that wait for each other",
}


def report(found: OrderCheck, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a checked order."""
    sizes = f"{found.ranks} ranks, {found.stages} stages, {found.microbatches} micro-batches"
    title = f"{found.schedule}: {sizes}: {verdict(found.legal, len(found.faults))}"
    lines = list(map(str, found.faults))
    if not found.faults:
        order = "as it states them" if found.states_transfers else "placed for it"
        lines += [f"no deadlock with {WAYS[way]} (sends and receives {order})" for way in found.ways]
    lines += [f"warning: {sentence}" for sentence in found.warnings]
    sections: list[Section] = [Sentences("", [*lines, *found.waits], plain=True, whole=True)]
    return Report(title, (), sections)


def verdict(legal: bool | None, faults: int) -> str:
    """In a word or two."""
    if legal is None:
        return "cannot say"
    if not faults:
        return "legal"
    return "1 fault" if faults == 1 else f"{faults} faults"
