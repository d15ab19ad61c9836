"""Launch: which shapes a schedule takes and a framework runs; the sizes with which every row of a plan begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..config.config import Config, Layout
from ..core.errors import InputError
from ..core.results import SPARSE
from ..core.schedule import Shape
from ..estimate.model import Model
from ..frameworks.catalog import FRAMEWORKS
from ..schedules.catalog import CATALOG, build
from ..schedules.closed_form import Even, takes

LEGAL = ("memory", "behind", "twin")  # causes that rule legal layouts out; others say what is not legal


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout, or many alike, that cannot be launched.

    Args:
        cause: in a word: devices, batch, layers, heads, experts, sequence, schedule, framework; or, of legal layouts,
            memory, behind (slower by the closed form), twin.
        reason: as a clause.
        sizes: what they have in common.
        count: how many there are.
    """

    cause: str
    reason: str
    sizes: dict[str, Any] = field(default_factory=dict)
    count: int = 1


def sizes_of(model: Model, sequence: int) -> Config:
    """What a framework must know of a model."""
    return Config(
        layers=model.layers,
        sequence=sequence,
        experts=model.experts.count if model.experts else None,
        next_layers=model.next_heads or None,
        heads=model.heads,
        kv_heads=model.kv_heads,
        hidden=model.hidden,
        ffn=model.ffn,
        vocab=model.vocab,
        pattern=model.letters or None,
    )


# A space asks for the same few thousand shapes under every choice of tensor, context and micro-batch.
@lru_cache(maxsize=1 << 16)
def unsuited(schedule: str, ranks: int, microbatches: int, chunks: int) -> str:
    """Why a schedule of the catalog does not take a shape; empty where it does.

    Nothing is built for the answer yes: a space has thousands of shapes.
    """
    entry = CATALOG[schedule]
    shape = entry.shape(Shape(ranks, microbatches, chunks))
    if takes(entry, Even(ranks, microbatches, shape.chunks)):
        return ""
    try:
        build(schedule, shape)
    except InputError as error:
        return f"{error.faults[0].rule} ({error.faults[0].value})"
    return f"{schedule} needs {entry.needs}"


@lru_cache(maxsize=1 << 16)
def unlaunchable(backend: str, schedule: str, ranks: int, microbatches: int, chunks: int, *, zero: int) -> str:
    """Why a framework refuses a schedule of this shape; empty where it runs it.

    Args:
        backend: name of the framework.
        schedule: a name of the catalog that it has.
        ranks: p.
        microbatches: m.
        chunks: v.
        zero: what replicas share out, 0 to 3.
    """
    framework = FRAMEWORKS[backend]
    config = Config(pipeline=ranks, microbatches=microbatches, chunks=chunks if chunks > 1 else None, zero=zero)
    # Asked without model and devices: rules that need what is not said here are left for the whole layout.
    breaches = framework.broken(framework.with_schedule(config, schedule)).breaches
    return f"{framework.title}: {framework.worded(breaches[0][0].rule)}" if breaches else ""


def chunks_of(schedule: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Of the chunks that are wanted, those that a schedule has on each rank; its own number where none are named."""
    if CATALOG[schedule].any_chunks:
        return wanted
    own = CATALOG[schedule].chunks
    return (own,) if not wanted or own in wanted else ()


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
