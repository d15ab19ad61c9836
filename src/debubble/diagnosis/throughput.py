"""Speeds: the throughput of a run in every unit that what is known of it allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..config.config import Config

SECOND = 1e9  # nanoseconds

# Units in which two runs can be compared, the most telling first.
TOKENS, SAMPLES = "tokens per second", "samples per second"
TOKENS_OF_A_GPU = "tokens per second of a GPU"
TFLOPS, MFU = "model TFLOP/s", "model FLOP utilisation"
MICROBATCHES, STEPS = "micro-batches per second", "steps per second"
UNITS = (TOKENS, SAMPLES, TOKENS_OF_A_GPU, TFLOPS, MFU, MICROBATCHES, STEPS)
PER_GPU = (TOKENS_OF_A_GPU, TFLOPS, MFU)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from."""

    value: float
    evidence: str


def stated_speeds(job: Config) -> dict[str, Figure]:
    """Throughput as stated or logged, and what follows: of the whole run, or per GPU for the units in ``PER_GPU``."""
    return {unit: Figure(value, job.evidence) for unit, value in _stated(job)}


def speeds_of_step(job: Config, step_ns: float, evidence: str, tokens: float | None = None) -> dict[str, Figure]:
    """Throughput that follows from the length of a step.

    Args:
        job: sizes of the batch, where known.
        step_ns: nanoseconds.
        evidence: of the length.
        tokens: in a step; None for samples x sequence.
    """
    return {unit: Figure(value, evidence) for unit, value in _of_step(job, step_ns / SECOND, tokens)}


def _stated(job: Config) -> Iterator[tuple[str, float]]:
    if job.step:
        yield from _of_step(job, job.step / SECOND, None)
    samples = job.samples_per_second
    if samples is None and job.tokens_per_second is not None and job.sequence is not None:
        samples = job.tokens_per_second / job.sequence
    if samples is not None:
        yield SAMPLES, samples
        if job.micro_batch is not None:
            yield MICROBATCHES, samples / job.micro_batch
        if job.sequence is not None:
            yield TOKENS, samples * job.sequence
    as_said = (
        (TOKENS, job.tokens_per_second),
        (TOKENS_OF_A_GPU, job.tokens_per_second_per_gpu),
        (TFLOPS, job.tflops_per_gpu),
        (MFU, job.mfu),
    )
    for unit, value in as_said:
        if value is not None:
            yield unit, value


def _of_step(job: Config, seconds: float, tokens: float | None) -> Iterator[tuple[str, float]]:
    yield STEPS, 1 / seconds
    if job.microbatches is not None and job.data is not None:
        yield MICROBATCHES, job.microbatches * job.data / seconds
    if job.global_batch is not None:
        yield SAMPLES, job.global_batch / seconds
        if tokens is None and job.sequence is not None:
            tokens = job.global_batch * job.sequence
    if tokens is not None:
        yield TOKENS, tokens / seconds
