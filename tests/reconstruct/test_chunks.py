"""Numbers of chunks: stages of a rank, or micro-batches that a tool calls chunks."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.core.schedule import Kind
from debubble.reconstruct.device_ops import RankOps, Reading
from debubble.reconstruct.observe import observe
from devices import devices, simulated


def chunked(found: list[RankOps], numbers: str) -> Reading:
    """Devices whose ops have no label but a chunk: the number of their micro-batch, or of their stage on the rank."""
    ranks = len(found)
    told = []
    for device in found:
        chunk = device.unit if numbers == "unit" else device.stage // ranks
        told.append(replace(device, stage=None, unit=None, chunk=chunk))
    return Reading("chunks", tuple(told))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_chunks_that_count_micro_batches_are_those(schedule):
    """GPipe and torch split a batch into chunks: "forward chunk 3" is micro-batch 3 of the only stage of its rank."""
    timeline = simulated(schedule, ranks=3, microbatches=4)
    window = observe(chunked(devices(timeline), "unit")).windows[0].timeline
    assert (window.program.schedule.stages, window.program.schedule.microbatches) == (3, 4)
    assert np.array_equal(window.program.schedule.unit, timeline.program.schedule.unit)
    assert np.array_equal(window.program.schedule.kind, timeline.program.schedule.kind)


def test_one_micro_batch_may_pass_several_chunks():
    """Its gradient comes back through the last chunk first, after all forwards."""
    ops = [(Kind.F, 0), (Kind.F, 1), (Kind.B, 1), (Kind.B, 0)]
    alone = RankOps(
        rank=0,
        source="rank0",
        step=np.zeros(4, np.int64),
        kind=np.array([kind for kind, _ in ops], np.uint8),
        start=np.arange(4) * 10,
        end=np.arange(4) * 10 + 10,
        chunk=np.array([chunk for _, chunk in ops], np.int32),
    )
    schedule = observe(Reading("chunks", (alone,))).windows[0].timeline.program.schedule
    assert (schedule.stages, schedule.microbatches) == (2, 1)


def test_chunks_that_several_micro_batches_pass_are_stages():
    timeline = simulated("interleaved", ranks=2, microbatches=4, chunks=2)
    schedule = observe(chunked(devices(timeline), "stage")).windows[0].timeline.program.schedule
    assert (schedule.stages, schedule.microbatches) == (4, 4)
    assert np.array_equal(schedule.stage, timeline.program.schedule.stage)
