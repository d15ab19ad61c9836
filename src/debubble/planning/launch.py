"""Launch: which shapes a schedule takes, which of them a framework runs, and what it must know of a model."""

from __future__ import annotations

from functools import lru_cache

from ..config.config import Config
from ..core.errors import InputError
from ..core.schedule import Shape
from ..estimate.model import Model
from ..frameworks.catalog import FRAMEWORKS
from ..schedules.catalog import CATALOG, build

LOOPED = frozenset({"interleaved", "interleaved-zb", "looped-bfs", "hanayo"})  # any number of chunks
_FREE = frozenset(
    {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-v", "looped-bfs"}
)  # any number of micro-batches


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
    )


@lru_cache(maxsize=1 << 16)
def unsuited(schedule: str, ranks: int, microbatches: int, chunks: int) -> str:
    """Why a schedule of the catalog does not take a shape, as its builder says; empty where it does.

    Most schedules are not built for that: a space has thousands of shapes.
    """
    if schedule in _FREE:
        return ""
    if schedule == "interleaved" and microbatches % ranks:
        return f"interleaved takes micro-batches in groups of {ranks}, which {microbatches} is not"
    if schedule == "dualpipe-v" and microbatches < 2 * ranks:
        return f"dualpipe-v needs {2 * ranks} micro-batches at {ranks} ranks"
    if schedule in ("interleaved", "dualpipe-v"):
        return ""
    rounds = max(1, microbatches // ranks)
    if schedule == "interleaved-zb":
        uneven = microbatches % rounds
        return f"interleaved-zb cannot run {microbatches} micro-batches in {rounds} equal rounds" if uneven else ""
    return _as_its_builder_says(schedule, ranks, microbatches, chunks)


def _as_its_builder_says(schedule: str, ranks: int, microbatches: int, chunks: int) -> str:
    try:
        build(schedule, Shape(ranks, microbatches, chunks))
    except InputError as error:
        return f"{schedule} at {error.faults[0].value}: {error.faults[0].rule}"
    return ""


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
    breaches = framework.broken(framework.with_schedule(config, schedule)).breaches
    return f"{framework.title}: {framework.worded(breaches[0][0].rule)}" if breaches else ""


def chunks_of(schedule: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Of the chunks that are wanted, those that a schedule has on each rank; its own number where none are named."""
    if schedule in LOOPED:
        return wanted
    own = CATALOG[schedule].chunks
    return (own,) if not wanted or own in wanted else ()
