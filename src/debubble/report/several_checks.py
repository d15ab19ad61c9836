"""What ``check`` says of a file that holds several configurations: each in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .configuration_check import sections as sections_of
from .configuration_check import title
from .sections import Report, Section, Sentences

if TYPE_CHECKING:
    from ..planning.check_result import SeveralChecks


def report(found: SeveralChecks, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of several configurations."""
    legal = sum(1 for each in found.verdicts if each.legal)
    sections: list[Section] = []
    for each in found.verdicts:
        sections.append(Sentences(f"{each.name}: {title(each)}", [], plain=True))
        sections += sections_of(each)
    return Report(f"{legal} of {len(found.verdicts)} configurations are legal", (), sections)
