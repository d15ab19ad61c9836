"""The sizes of a layout, with which every row of a plan begins, and what was ruled out."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config.layout import Layout
from ..core.results import SPARSE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """A layout.

    Args:
        gpus: devices of the whole job.
        tensor: devices that share each layer.
        pipeline: ranks.
        data: replicas.
        context: devices that share each sequence.
        expert: devices over which experts are spread.
        chunks: stages on a rank.
        micro_batch: samples in a micro-batch.
        microbatches: per pipeline and step.
        global_batch: samples of all replicas in a step.
        schedule: by name.
    """

    gpus: int
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    chunks: int
    micro_batch: int
    microbatches: int
    global_batch: int
    schedule: str


SIZES = tuple(LayoutRow.__dataclass_fields__)


def sizes_of_layout(layout: Layout) -> dict[str, int | str]:
    """The fields of a ``LayoutRow``."""
    return {name: getattr(layout, name) for name in SIZES}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """Layouts that were ruled out.

    Args:
        gpus: devices of the job; None if it is no matter of them.
        cause: in a word.
        reason: as a clause.
        count: how many.
        tensor: what they have in common, if that is one value; so too the other degrees.
    """

    cause: str
    reason: str
    count: int
    gpus: int | None = field(default=None, metadata=SPARSE)
    tensor: int | None = field(default=None, metadata=SPARSE)
    pipeline: int | None = field(default=None, metadata=SPARSE)
    data: int | None = field(default=None, metadata=SPARSE)
    context: int | None = field(default=None, metadata=SPARSE)
    expert: int | None = field(default=None, metadata=SPARSE)
    chunks: int | None = field(default=None, metadata=SPARSE)
    micro_batch: int | None = field(default=None, metadata=SPARSE)
    microbatches: int | None = field(default=None, metadata=SPARSE)
    global_batch: int | None = field(default=None, metadata=SPARSE)
    schedule: str | None = field(default=None, metadata=SPARSE)
