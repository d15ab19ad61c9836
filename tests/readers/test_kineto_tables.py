"""What is kept of a trace: narrow columns, the engine's calls beside a device, and nothing that says nothing."""

import json

import numpy as np
import pytest

from debubble.readers.chrome import Words, read_events
from debubble.readers.kineto_tables import Collector
from debubble.readers.op_names import SKIPPED, Role, Way

ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def event(cat, name, ts, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 5, "tid": tid, "ts": ts, "dur": 2.0, "args": args}


def tables(*parts):
    """The tables of a trace whose events come in these chunks."""
    words = Words()
    collector = Collector(words)
    texts = [json.dumps(part)[1:-1].encode() for part in parts]
    read_events([b"[", *(text + b"," for text in texts), b"{}]"], collector.take, words, worth=collector.worth)
    return collector.tables()


def step(i):
    """A call on the CPU, what the engine does, a launch, its kernel: events of one piece of work."""
    cpu = [event("cpu_op", "aten::mm", 10 * i), event("cpu_op", ENGINE, 10 * i + 3)]
    launch = event("cuda_runtime", "cudaLaunchKernel", 10 * i + 4, correlation=i)
    return [*cpu, launch, event("kernel", "gemm_bwd", 10 * i + 7, 7, correlation=i)]


STEPS = [step(i) for i in range(1, 9)]
ORDERS = {
    "as it happens": STEPS,
    "the CPU first, as Kineto writes": [[e for s in STEPS for e in s[:2]], [e for s in STEPS for e in s[2:]]],
    "the device first": [[e for s in STEPS for e in s[2:]], [e for s in STEPS for e in s[:2]]],
}


@pytest.mark.parametrize("chunks", ORDERS.values(), ids=ORDERS)
def test_beside_a_device_the_cpu_keeps_what_the_engine_does_and_no_other_call(chunks):
    kept = tables(*chunks)
    calls = kept.columns["calls"]
    assert sorted(calls["start"].tolist()) == [10_000 * i + 3_000 for i in range(1, 9)]
    assert {kept.roles[word] for word in calls["word"]} == {Role.ENGINE}
    assert [len(kept.columns[name]["start"]) for name in ("kernels", "launches")] == [8, 8]
    assert set(kept.columns["kernels"]["way"].tolist()) == {Way.BACKWARD}


def test_without_a_device_every_outermost_call_is_kept():
    inner = event("cpu_op", "aten::addmm", 20.5) | {"dur": 1.0}
    outer = [event("cpu_op", "aten::linear", ts) for ts in (10, 20, 30)]
    assert tables([*outer[:2], inner, outer[2]]).columns["calls"]["start"].tolist() == [10_000, 20_000, 30_000]


def test_a_kernel_takes_23_bytes_and_a_launch_14():
    kept = tables(*STEPS).columns
    sizes = {name: sum(column.itemsize for column in kept[name].values()) for name in ("kernels", "launches")}
    assert sizes == {"kernels": 23, "launches": 14}


def test_a_column_widens_where_lanes_are_more_than_it_can_count():
    count = (1 << 15) + 5
    kept = tables(*STEPS, [event("kernel", "k", i, tid=100 + i) for i in range(count)])
    lane = kept.columns["kernels"]["lane"]
    assert len(np.unique(lane)) == count + 1
    assert [kept.lanes[i][1] for i in lane[[0, -1]]] == [7, 99 + count]


def test_events_of_no_role_and_of_skipped_categories_are_counted_and_not_kept():
    words = Words()
    collector = Collector(words)
    rows = [event("cuda_profiler_range", "x", 1), event("python_function", "f.py(3): g", 2), *STEPS[0]]
    seen = []
    take = lambda events: (seen.append(len(events.word)), collector.take(events))  # noqa: E731
    told = read_events([json.dumps(rows).encode()], take, words, skip=SKIPPED, worth=collector.worth)
    assert (told.rows, sum(seen)) == (6, 4)
    assert "f.py(3): g" not in {name for _, name in words.known}
