"""A production run as timelines, read with nothing but the standard library."""

import gzip
import json

import numpy as np
import pytest

from debubble import Kind, Shape, Timeline, build, lower

KINDS = {"forward-compute": Kind.F, "backward-compute": Kind.B}


@pytest.fixture(scope="session")
def st_windows(shared) -> list[Timeline]:
    """The 64 windows (32 steps, 2 replicas) of ByteDance's ST: PP 4, 1F1B, 4 micro-batches, a long last stage."""
    with gzip.open(shared / "traces/bytedance-st/timeline.json.gz") as stream:
        events = [event for event in json.load(stream) if event.get("cat") in KINDS]
    windows: dict[tuple[int, int], dict[tuple[int, int, int], tuple[float, float]]] = {}
    for event in events:
        stage, replica = divmod(event["tid"] // 5, 2)  # five threads a rank, rank = 2 x stage + replica
        op = (KINDS[event["cat"]], stage, event["args"]["mb_id"])
        windows.setdefault((event["args"]["step"], replica), {})[op] = (event["ts"], event["ts"] + event["dur"])
    return [_timeline(window) for _, window in sorted(windows.items())]


def _timeline(window) -> Timeline:
    program = lower(build("1f1b", Shape(4, 4)))
    schedule = program.schedule
    ops = zip(schedule.kind, schedule.stage, schedule.unit, strict=True)
    start, end = np.rint(1000 * np.array([window[op] for op in ops])).astype(np.int64).T
    return Timeline(program, start.copy(), end.copy(), "measured")
