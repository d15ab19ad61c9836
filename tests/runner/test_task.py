"""A task names every fault before a process starts, and refuses what torch has no words for."""

import numpy as np
import pytest

from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Op, Shape, from_rows
from debubble.runner.task import Task
from debubble.schedules.catalog import build

ONE_F_ONE_B = build("1f1b", Shape(2, 4))


def test_processes_and_share_count_replicas():
    task = Task(ONE_F_ONE_B, 24, "out", replicas=3)
    assert (task.processes, task.share) == (6, 8)


def test_a_batch_that_micro_batches_do_not_divide_names_the_nearest():
    with pytest.raises(InputError, match=r"batch = 9: .*multiple of 8; nearest: 8 or 16"):
        Task(ONE_F_ONE_B, 9, "out", replicas=2)


def test_a_batch_that_is_too_small_names_the_least():
    with pytest.raises(InputError, match=r"nearest: 8$"):
        Task(ONE_F_ONE_B, 3, "out", replicas=2)


def test_all_sizes_below_one_are_named_at_once():
    with pytest.raises(InputError) as caught:
        Task(ONE_F_ONE_B, 0, "out", replicas=0, steps=0)
    assert [fault.value for fault in caught.value.faults] == ["data = 0", "steps = 0", "batch = 0"]


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("dualpipe", Shape(4, 8), "two copies of the weights"),
        ("chimera", Shape(4, 4), "two copies of the weights"),
        ("seq1f1b", Shape(4, 8, slices=2), "cuts sequences into slices"),
    ],
)
def test_what_torch_cannot_is_refused_with_the_reason(name, shape, why):
    with pytest.raises(Refusal, match=why):
        Task(build(name, shape), 8, "out")


def test_a_rank_without_a_stage_is_refused():
    rows = [[Op.parse("0F0"), Op.parse("0B0")], []]
    with pytest.raises(Refusal, match="leaves rank 1 without a stage"):
        Task(from_rows("lonely", rows, np.array([0], np.int32), 1), 1, "out")
