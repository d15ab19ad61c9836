"""A job: what a user states of a run, and the sizes that follow from what was stated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..core.errors import Fault, InputError

FULL_RECOMPUTE = 0.75  # a second forward in each backward: 3 of 4 parts of the work are counted, where B = 2 F


@dataclass(frozen=True, slots=True)
class Measured:
    """What a user saw of a run; every figure may be absent.

    Args:
        utilisation: busy share of the GPUs, 0 to 1.
        tokens_per_second: of the whole run.
        samples_per_second: of the whole run.
        tflops_per_gpu: model TFLOP/s a GPU.
        mfu: model FLOP utilisation, 0 to 1.
        step: duration of one step, nanoseconds.
        peak_memory: most that a device held, bytes.
        evidence: ``stated`` by the user, or ``measured``, where the run's own log says it.
    """

    utilisation: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    step: float | None = None
    peak_memory: int | None = None
    evidence: str = "stated"


@dataclass(frozen=True, slots=True)
class Job:
    """A run as stated; what is absent is None.

    Args:
        name: what reports call it.
        gpus: devices of the whole run.
        pipeline: ranks of one pipeline, p.
        tensor: devices that share each layer.
        context: devices that share each sequence.
        data: data-parallel replicas.
        microbatches: per pipeline and step, m.
        micro_batch: samples in a micro-batch.
        global_batch: samples of all replicas in a step.
        sequence: tokens in a sample.
        chunks: stages per rank.
        schedule: a name of the catalog.
        forward: F of one micro-batch on one rank, nanoseconds; likewise ``backward`` (twice the forward where only
            that is given), ``input``, ``weight``.
        transfer: one hop between ranks, nanoseconds.
        stage_scale: a factor for each stage, or empty.
        recompute: ``none``, ``selective`` or ``full``.
        measured: what was seen.
    """

    name: str = "job"
    gpus: int | None = None
    pipeline: int | None = None
    tensor: int | None = None
    context: int | None = None
    data: int | None = None
    microbatches: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    chunks: int = 1
    schedule: str = "1f1b"
    forward: float | None = None
    backward: float | None = None
    input: float | None = None
    weight: float | None = None
    transfer: float | None = None
    stage_scale: tuple[float, ...] = ()
    recompute: str = "none"
    measured: Measured = Measured()

    @property
    def counted_share(self) -> float:
        """Share of the work that model FLOPs count: less than 1 where forwards are computed twice."""
        return FULL_RECOMPUTE if self.recompute == "full" else 1.0


def settled(job: Job) -> Job:
    """The same job with the sizes filled in that follow from others.

    gpus = tensor x context x pipeline x data (tensor and context are 1 unless something says otherwise), and
    global_batch = microbatches x micro_batch x data.

    Raises:
        InputError: sizes contradict each other; every contradiction.
    """
    faults: list[Fault] = []
    job = _devices(job, faults)
    job = _batch(job, faults)
    if faults:
        raise InputError(*faults)
    return job


def _devices(job: Job, faults: list[Fault]) -> Job:
    job = replace(job, context=job.context or 1)
    if job.tensor is None and not (job.gpus and job.pipeline and job.data):
        job = replace(job, tensor=1)
    return job if job.pipeline is None else _solve(job, "gpus", ("tensor", "context", "pipeline", "data"), faults)


def _batch(job: Job, faults: list[Fault]) -> Job:
    return job if job.data is None else _solve(job, "global_batch", ("microbatches", "micro_batch", "data"), faults)


def _solve(job: Job, whole: str, parts: tuple[str, ...], faults: list[Fault]) -> Job:
    """Fill in the one size that is missing from ``whole = product of parts``, or check it where none is."""
    known = [name for name in parts if getattr(job, name) is not None]
    unknown = [name for name in parts if name not in known]
    product = prod(getattr(job, name) for name in known)
    total = getattr(job, whole)
    if len(unknown) > 1 or (unknown and total is None):
        return job
    if total is None:
        return replace(job, **{whole: product})
    if (not unknown and total != product) or total % product:
        faults.append(_contradiction(job, whole, known, product))
        return job
    return replace(job, **{unknown[0]: total // product}) if unknown else job


def _contradiction(job: Job, whole: str, parts: list[str], product: int) -> Fault:
    total: int = getattr(job, whole)
    near = sorted({max(total // product, 1) * product, (total // product + 1) * product})
    stated = " x ".join(f"{name} {getattr(job, name)}" for name in parts if getattr(job, name) > 1)
    return Fault(
        f"{job.name}: {whole} = {total}",
        f"{stated} = {product} does not fit into it",
        f"give {whole} {' or '.join(map(str, near))}, or change one of the others",
    )
