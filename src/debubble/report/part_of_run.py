"""What ``diagnose --distil`` says if the traces of one host are not all of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sections import Report, Sentences

if TYPE_CHECKING:
    from ..diagnosis.diagnosis import PartOfRun


def report(found: PartOfRun, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of what was distilled."""
    written = f"{found.folder}: {found.ranks} ranks, {found.bytes:,} bytes"
    return Report(written, (), [Sentences("", [found.reason], plain=True)])
