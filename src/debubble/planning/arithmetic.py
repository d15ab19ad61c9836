"""Batch arithmetic: what devices, degrees and batch alone say of micro-batches and bubbles, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..config.layout import Layout
from ..core.errors import Fault, InputError, nearest
from ..schedules.catalog import CATALOG
from .idle import enough, exact, idle_share
from .rejected import Rejected

MOST_ROWS = 20_000
MOST_RANKS = 256  # of a pipeline that is not asked for by number


@dataclass(frozen=True, slots=True)
class Wish:
    """What is fixed, and what may be chosen.

    Args:
        gpus: devices of the whole job.
        tensor: devices that share each layer; likewise ``context``.
        pipeline: ranks to try; empty for every divisor.
        data: data-parallel replicas; None for what the devices leave.
        chunks: stages per rank to try.
        micro_batch: samples in a micro-batch, to try.
        global_batch: samples of a step, to try; empty where ``microbatches`` says it.
        microbatches: per pipeline and step, to try.
        schedule: a name of the catalog; None for 1F1B, interleaved where a rank has several chunks.
    """

    gpus: int | None = None
    tensor: int = 1
    context: int = 1
    pipeline: tuple[int, ...] = ()
    data: int | None = None
    chunks: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = (1,)
    global_batch: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()
    schedule: str | None = None


@dataclass(frozen=True, slots=True)
class Bubbled:
    """A layout and its bubble, even stages, B = 2 F, free transfers.

    Args:
        layout: degrees, micro-batches and schedule.
        idle_share: 0 to 1.
        evidence: ``exact`` (closed form) or ``simulated``.
    """

    layout: Layout
    idle_share: float
    evidence: str

    @property
    def busy_share(self) -> float:
        """What is not idle."""
        return 1 - self.idle_share

    @property
    def bubble_ratio(self) -> float:
        """Idle over busy."""
        return self.idle_share / self.busy_share

    @property
    def effective_gpus(self) -> float:
        """How many devices without a bubble would do the same work."""
        return self.layout.gpus * self.busy_share

    @property
    def full_batch(self) -> int:
        """Samples of a step from which on every rank is busy at the same moment: m >= p."""
        return self.layout.pipeline * self.layout.micro_batch * self.layout.data

    @property
    def slots(self) -> float:
        """Duration of a step, in times of one micro-batch on a rank: m + p - 1 for 1F1B."""
        return self.layout.microbatches / self.busy_share

    def enough(self, share: float) -> int | None:
        """Micro-batches that keep the idle share of this schedule at ``share`` or below; None where none is known."""
        return enough(self.layout.schedule, self.layout.pipeline, share, self.layout.chunks)


def batch_table(wish: Wish) -> tuple[list[Bubbled], list[Rejected]]:
    """Every combination of what may be chosen that comes out whole, in the order asked; and what does not, and why.

    Raises:
        InputError: nothing says how many micro-batches there are, or how many devices; no schedule has this name.
    """
    _enough_said(wish)
    if wish.schedule is not None and wish.schedule not in CATALOG:
        raise nearest(wish.schedule, CATALOG, "schedule")
    found: list[Bubbled] = []
    refused: list[Rejected] = []
    for pipeline in wish.pipeline or _divisors(wish):
        for chunks, size, amount in product(wish.chunks, wish.micro_batch, wish.global_batch or wish.microbatches):
            one = _combined(wish, pipeline, chunks, size, amount)
            if isinstance(one, Bubbled):
                found.append(one)
            else:
                refused.append(one)
    return found, refused


def _enough_said(wish: Wish) -> None:
    faults = []
    if not wish.global_batch and not wish.microbatches:
        faults.append(
            Fault("batch", "it says how many micro-batches there are", "give --global-batch or --microbatches")
        )
    if wish.gpus is None and (wish.data is None or not wish.pipeline):
        faults.append(Fault("gpus", "devices are missing", "give --gpus, or both --data and --pipeline"))
    amounts = len(wish.global_batch or wish.microbatches)
    rows = (len(wish.pipeline) or MOST_RANKS) * len(wish.chunks) * len(wish.micro_batch) * amounts
    if rows > MOST_ROWS:
        faults.append(
            Fault("plan", f"this asks for {rows:,} rows", f"shorten the lists: at most {MOST_ROWS:,} come out")
        )
    if wish.global_batch and wish.microbatches:
        both = f"global-batch = {wish.global_batch[0]}, microbatches = {wish.microbatches[0]}"
        faults.append(Fault(both, "one follows from the other", "give one of them"))
    if faults:
        raise InputError(*faults)


def _divisors(wish: Wish) -> Iterator[int]:
    """Ranks that the devices leave room for."""
    whole = (wish.gpus or 0) // (wish.tensor * wish.context)
    return (p for p in range(1, min(whole, MOST_RANKS) + 1) if whole % p == 0)


def _combined(wish: Wish, pipeline: int, chunks: int, size: int, amount: int) -> Bubbled | Rejected:
    sizes = {"pipeline": pipeline, "chunks": chunks, "micro_batch": size}
    replica = wish.tensor * wish.context * pipeline
    data = wish.data or (wish.gpus or 0) // replica
    if wish.gpus is not None and data * replica != wish.gpus:
        near = _near(wish.gpus, replica * (wish.data or 1))
        rule = f"{replica} devices a replica do not divide {wish.gpus} GPUs; nearest {near} GPUs"
        return Rejected("devices", rule + _other_ranks(wish, pipeline), sizes)
    if wish.global_batch and amount % (size * data):
        near = _near(amount, size * data)
        rule = f"micro-batch {size} x data {data} does not divide a global batch of {amount}; nearest {near}"
        return Rejected("batch", rule, sizes | {"data": data, "global_batch": amount})
    many = amount // (size * data) if wish.global_batch else amount
    if chunks > 1 and pipeline == 1:
        return Rejected("chunks", "a pipeline of one rank has nothing to interleave", sizes)
    name = wish.schedule or ("interleaved" if chunks > 1 else "1f1b")
    chunks = CATALOG[name].chunks if chunks == 1 and pipeline > 1 else chunks
    share = idle_share(name, pipeline, many, chunks)
    if share is None:
        rule = f"{name} does not suit p={pipeline}, m={many}, v={chunks}"
        return Rejected("schedule", rule, sizes | {"data": data, "microbatches": many})
    layout = Layout(
        tensor=wish.tensor,
        context=wish.context,
        pipeline=pipeline,
        data=data,
        chunks=chunks,
        micro_batch=size,
        microbatches=many,
        schedule=name,
    )
    return Bubbled(layout, share, "exact" if exact(name, pipeline, many, chunks) else "simulated")


def _other_ranks(wish: Wish, pipeline: int) -> str:
    """The ranks next to those asked for that the devices leave room for."""
    group = wish.tensor * wish.context
    able = [p for p in range(1, min(wish.gpus or 0, MOST_RANKS) + 1) if (wish.gpus or 0) % (group * p) == 0]
    near = sorted({*[p for p in able if p < pipeline][-1:], *[p for p in able if p > pipeline][:1]})
    return f", or pipeline {' or '.join(map(str, near))}" if near else ""


def _near(value: int, unit: int) -> str:
    below = value // unit * unit
    return " or ".join(str(n) for n in (below, below + unit) if n)


@dataclass(frozen=True, slots=True)
class Growth:
    """One size of a batch that grows.

    Args:
        bubbled: the layout at this size, or None where it does not come out whole.
        global_batch: samples of a step.
        samples: how many are trained at this size.
        reason: why it does not come out whole, or an empty string.
    """

    bubbled: Bubbled | None
    global_batch: int
    samples: float
    reason: str = ""


def growth_table(wish: Wish, start: int, increment: int, samples: int) -> list[Growth]:
    """A batch that grows evenly from ``start`` to the global batch over so many samples (``--rampup-batch-size``).

    Raises:
        InputError: it does not arrive at the global batch, or there are more than a thousand sizes.
    """
    (end,) = wish.global_batch or (0,)
    steps, rest = divmod(end - start, increment)
    if rest or not 0 <= steps <= 1000:
        near = start + max(round((end - start) / increment), 0) * increment
        rule = f"{end} is not reached from {start} in at most 1000 steps of {increment}"
        raise InputError(Fault(f"rampup = {start},{increment},{samples}", rule, f"nearest global batch: {near}"))
    rows = []
    for number in range(steps + 1):
        batch = start + number * increment
        one = _combined(wish, wish.pipeline[0], wish.chunks[0], wish.micro_batch[0], batch)
        share = samples / steps if steps and number < steps else 0.0
        rows.append(Growth(None, batch, share, one.reason) if isinstance(one, Rejected) else Growth(one, batch, share))
    return rows
