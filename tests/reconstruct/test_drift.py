"""Clocks that run apart: rates that were poured in are found within their doubt and taken out; none are invented.

Kineto 1082 and 991: clocks of devices drift over long traces.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pour
from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.schedule import Shape
from debubble.core.units import MILLISECOND
from debubble.readers.kineto import read_traces
from debubble.reconstruct.clocks import rate_of
from debubble.reconstruct.observe import observe
from debubble.schedules.catalog import build
from devices import devices, reading, simulated

RATES = Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND, transfer=0.3 * MILLISECOND)
LABELLED, SILENT = pour.Style(kernels=2), pour.Style(kernels=2, labels=False)
UNTOLD = pour.Style(kernels=3, labels=False)  # and without the engine's calls: only transfers tell directions


def drifting(folder, ppm, *, name="1f1b", microbatches=6, steps=8, apart=10, style=LABELLED):
    """Traces of steps some seconds apart, each rank's clock faster by its millionths; and one simulated window."""
    schedule = build(name, Shape(len(ppm), microbatches, 1 + (name == "interleaved")))
    runs = pour.run_of(schedule, costs_of(RATES, schedule), steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pour, "GAP", apart * 1_000 * MILLISECOND)
        events = pour.pour(runs, style)
    for rank, rows in events.items():
        if style is UNTOLD:
            rows[:] = pour.untold(rows)
        for event in rows:
            event["ts"] += (event["ts"] - pour.EPOCH / 1000) * ppm[rank] / 1e6
            event["dur"] = event.get("dur", 0) * (1 + ppm[rank] / 1e6)
    return pour.write(folder, events, packed=False), runs[0]


rates = st.builds(lambda size, sign: sign * size, st.floats(20, 200), st.sampled_from([-1, 1]))


@given(
    st.sampled_from(["1f1b", "gpipe"]),
    st.lists(rates, min_size=2, max_size=4),
    st.sampled_from([LABELLED, SILENT, UNTOLD]),
)
@example("gpipe", [-199.0, -24.9, -45.0, -22.7], SILENT)  # receives of even stages end one hop behind each other
@settings(max_examples=18, deadline=None)
def test_the_bubble_of_clocks_that_drift_by_20_to_200_ppm_is_the_simulated_one(tmp_path_factory, name, ppm, style):
    paths, run = drifting(tmp_path_factory.mktemp("drift"), ppm, name=name, style=style)
    found = observe(read_traces(paths))
    assert len(found.windows) == 8
    assert found.matched_share == 1
    for window in found.windows:
        assert window.timeline.program.schedule.same_order(run.program.schedule)
        assert account(window.timeline).idle_share == pytest.approx(account(run).idle_share, abs=0.005)


def test_what_drifted_and_by_how_much_is_said(tmp_path):
    paths, _ = drifting(tmp_path, [0, 0, 120, -80])
    (said,) = [remark for remark in observe(read_traces(paths)).remarks if "clocks drift" in remark]
    assert "rank 2 +120.0 +- 0.0, rank 3 -80.0 +- 0.0;" in said


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved"])
def test_clocks_that_agree_are_left_alone(tmp_path, name):
    paths, _ = drifting(tmp_path, [0, 0, 0, 0], name=name, microbatches=8)
    straight = observe(read_traces(paths))
    assert straight.matched_share == 1
    assert not any("clock" in remark for remark in straight.remarks)


@given(st.floats(-300, 300), st.integers(16, 200), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_a_rate_is_found_through_noise_and_a_fifth_of_wrong_pairs_or_said_to_be_none(ppm, pairs, seed):
    """Noise as in production (.1 ms), a minute long: a rate beyond what noise explains is told, within its doubt."""
    noise = np.random.default_rng(seed)
    mine = np.sort(noise.integers(0, 60 * 10**9, 2 * pairs))
    lag = ppm / 1e6 * mine + noise.normal(0, 50_000, 2 * pairs) + np.where(noise.random(2 * pairs) < 0.2, 10**8, 0)
    way = np.tile([0, 1], pairs)
    found = rate_of(mine, (mine + lag + 20_000 * way).astype(np.int64), way)
    assert found.rate == 0 or abs(found.rate - ppm / 1e6) < 6 * found.doubt + 1e-6
    assert found.rate != 0 or abs(ppm / 1e6) < 12 * found.doubt + 5e-6


def test_times_that_begin_anew_in_each_step_show_no_drift(tmp_path):
    """As in tables whose clock is the step's: what ends late in a step is no clock that runs slow."""
    paths, _ = drifting(tmp_path, [0, 150, 0, 0], steps=3)
    found = read_traces(paths)
    apart = int(found.devices[0].start[found.devices[0].step == 11].min() - found.devices[0].start.min())
    anew = [_each_step_anew(device, apart) for device in found.devices]
    assert any("clocks drift" in remark for remark in observe(found).remarks)
    assert not any("clocks drift" in remark for remark in observe(replace(found, devices=tuple(anew))).remarks)


def _each_step_anew(device, apart):
    moves = device.transfers
    back, later = ((step - 10) * apart for step in (device.step, moves.step))
    moved = replace(moves, start=moves.start - later, end=moves.end - later)
    return replace(device, start=device.start - back, end=device.end - back, transfers=moved)


def test_without_transfers_clocks_that_run_apart_are_aligned_step_by_step():
    timeline = simulated("1f1b", 4, 6)
    found = [_slowed(device, 500 * (device.rank - 1)) for device in devices(timeline, steps=6, apart=0)]
    observation = observe(reading(found))
    assert any("each step was aligned on its own" in remark for remark in observation.remarks)
    for window in observation.windows:
        assert account(window.timeline).idle_share == pytest.approx(account(timeline).idle_share, abs=0.005)


def _slowed(device, ppm):
    """A clock that runs faster, over steps that lie seconds apart."""
    shift = (device.step - 10) * 5_000 * MILLISECOND
    zero = int(device.start.min())
    times = {name: getattr(device, name) + shift for name in ("start", "end")}
    return replace(device, **{k: t + np.rint((t - zero) * ppm / 1e6).astype(np.int64) for k, t in times.items()})
