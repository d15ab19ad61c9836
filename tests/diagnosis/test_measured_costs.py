"""Stage costs: given costs come back from a simulated window, a hiccup does not count, real runs' busy time adds up."""

import json
from dataclasses import replace

import numpy as np
import pytest

from debubble.core.costs import Costs
from debubble.core.lower import lower
from debubble.core.observation import Observation, Window
from debubble.core.schedule import Kind, Shape
from debubble.core.simulate import simulate
from debubble.diagnosis.causes import stage_costs, summarise
from debubble.readers.source import read
from debubble.schedules.catalog import build

MS = 1_000_000


def observed(name, shape, durations, hop=0, windows=3, hiccup=0):
    """Windows of a schedule with durations int64[kinds, stages], nanoseconds; the last has one slow first forward."""
    program = lower(build(name, shape))
    stages, units = program.schedule.stages, program.schedule.units
    table = np.repeat(durations[:, :, None], units, axis=2)
    transfers = np.full((4, stages, 1), hop, np.int64)
    slow = table.copy()
    slow[Kind.F, 0, 0] += hiccup
    timelines = [simulate(program, Costs(table, transfers))] * (windows - 1) + [
        simulate(program, Costs(slow, transfers))
    ]
    made = [Window(n, 0, replace(timeline, evidence="measured")) for n, timeline in enumerate(timelines)]
    return summarise(Observation("made", tuple(made)))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_given_durations_of_each_stage_come_back_and_so_do_hops(name):
    durations = np.arange(16, dtype=np.int64).reshape(4, 4) * MS + MS
    found = stage_costs(observed(name, Shape(4, 8), durations, hop=MS // 2))
    there = found.durations[:, :, 0] > 0
    assert (found.durations[:, :, 0][there] == durations[there]).all()
    assert there[Kind.F].all()
    assert found.transfers[Kind.F, 1:, 0].max() == MS // 2
    assert found.evidence == "measured"


def test_a_hiccup_of_one_op_does_not_count():
    durations = np.full((4, 4), 2 * MS, np.int64)
    found = stage_costs(observed("1f1b", Shape(4, 8), durations, hiccup=50 * MS))
    assert found.durations[Kind.F, 0, 0] == 2 * MS


@pytest.mark.parametrize(("name", "shape"), [("dualpipe", Shape(4, 8)), ("dualpipe-v", Shape(4, 8, 2))])
def test_of_ops_that_ran_in_pairs_all_work_is_there_and_nearly_where_it_was(name, shape):
    durations = np.repeat(np.array([[2], [3], [1], [4]], np.int64) * MS, shape.ranks * (shape.chunks or 1), axis=1)
    found = stage_costs(observed(name, shape, durations)).durations[:, :, 0]
    assert (found[Kind.F] == found[Kind.B]).all()
    assert found.sum(axis=0).mean() == pytest.approx(6 * MS)
    assert found.sum(axis=0) == pytest.approx(6 * MS, rel=0.07)


def test_slices_of_a_sequence_add_up_to_their_micro_batch():
    durations = np.full((4, 4), MS, np.int64)
    found = stage_costs(observed("seq1f1b", Shape(4, 8, slices=2), durations))
    assert found.durations[Kind.F].ravel().tolist() == [2 * MS] * 4


REAL = {"bytedance-st/st-kineto": 1e9, "primus-pp8": 1e6, "megatronapp-pp": 1e3}  # what their truth is counted in, ns


@pytest.mark.parametrize("folder", REAL)
def test_on_real_runs_the_stages_add_up_to_the_busy_time_that_is_known(shared, folder):
    known = json.loads((shared / "traces/ground_truth.json").read_text())[folder.split("/")[0]]
    summary = summarise(read([shared / "traces" / folder]))
    slots = stage_costs(summary).durations.sum() / REAL[folder]
    assert slots * known["M"] / known["P"] == pytest.approx(known["first"]["busy_mean"], rel=0.1)
