"""What our program trains on torch.distributed.pipelining equals what one process trains without a pipeline."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from debubble.core.account import account
from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording, read_tracks
from debubble.readers.recording_file import unpacked
from debubble.schedules.catalog import CATALOG, build

from . import many_runs

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")
TRAINED = [name for name in many_runs.schedules() if name not in ("losses by order", "without reduce")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, dict]:
    """All runs of ``many_runs``, in one group of processes."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, many_runs.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("name", TRAINED)
def test_loss_and_every_gradient_equal_one_process(runs, name):
    made = runs[1][name]
    assert made["loss_error"] < 1e-6
    if "forward" not in name:
        assert made["gradient_error"] < 1e-6


@pytest.mark.parametrize("name", TRAINED)
def test_the_recording_shows_the_order_that_was_asked_for(runs, name):
    (window, *others) = read_recording(runs[0] / name).windows
    schedule = many_runs.schedules()[name]
    assert window.timeline.program.schedule.same_order(schedule)
    assert len(others) + 1 == many_runs.PROCESSES // schedule.ranks


def test_the_catalog_lacks_only_two_copies_and_slices():
    names = {name.partition(" p=")[0] for name in TRAINED}
    assert set(CATALOG) - names == many_runs.TWO_COPIES_OR_SLICES


@pytest.mark.parametrize("name", many_runs.MODELS)
def test_a_users_model_trains_as_its_function_builds_it_in_one_process(runs, name):
    assert runs[1][name]["gradient_error"] < 1e-12
    assert runs[1][name]["loss_error"] < 1e-12


def test_twenty_steps_of_adamw_are_those_of_a_plain_loop(runs):
    import torch

    from debubble.runner.model import read_text, transformer

    parts = transformer(1, read_text(""))
    model = parts.stages[0]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    losses = []
    for step in range(many_runs.CURVE_STEPS + 1):
        inputs, targets = parts.batch(step, 4)
        loss = parts.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    tracks, _ = read_tracks(runs[0] / "curve")
    recorded = [step.loss for step in tracks[-1].steps]  # the last stage knows it
    assert recorded == pytest.approx(losses[1:], rel=1e-4)  # the first step is not recorded
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_in_32_bits_too(runs, name):
    made = runs[1][f"32 bits {name}"]
    assert made["gradient_error"] < 1e-6
    assert made["loss_error"] < 1e-6


def test_losses_kept_by_order_give_wrong_gradients_without_an_error(runs):
    assert runs[1]["losses by order"]["gradient_error"] > 0.1


def test_gradients_stay_m_times_too_large_without_our_reductions(runs):
    assert runs[1]["without reduce"]["gradient_error"] > 6.5  # 8 g - g = 7 g in the first step


def test_paced_1f1b_p4_m8_f20_b40_takes_660_ms(runs):
    observation = read_recording(runs[0] / "paced 1f1b")
    assert observation.predicted_ns == 660_000_000
    assert observation.paced
    best = min(window.timeline.makespan for window in observation.windows)
    assert 0.99 <= best / observation.predicted_ns < 1.5  # 1.003 when quiet


def test_hops_delay_arrivals_and_occupy_no_rank(runs):
    observation = read_recording(runs[0] / "paced hop")
    assert observation.hop_ns == 25_000_000
    window = min((w.timeline for w in observation.windows), key=lambda timeline: timeline.makespan)
    assert 0.99 <= window.makespan / observation.predicted_ns < 1.5
    spent = account(window)
    assert spent.compute.max() < 4 * 30e6 * 1.3
    assert spent.transfer.sum() > 0


def test_a_slow_link_delays_what_passes_it_and_nothing_else(runs):
    observation = read_recording(runs[0] / "paced slow link")
    window = min((w.timeline for w in observation.windows), key=lambda timeline: timeline.makespan)
    assert 0.99 <= window.makespan / observation.predicted_ns < 1.5
    spent = account(window).transfer.tolist()
    assert min(spent[2:]) > max(20e6, *spent[:2])  # 25 ms a hop on one link; nothing but messages on the others


def test_ops_of_a_rank_wait_where_the_schedule_makes_them(runs):
    tracks, _ = read_tracks(runs[0] / "paced 1f1b")
    kinds = bytes(tracks[0].parts[0].kind)
    waited = [np.stack([times.waits[0] for times in unpacked(track.steps, len(kinds))]) for track in tracks]
    assert waited[0][:, kinds.index(3)].min() > 100e6  # rank 0 stands idle until its first gradient
    assert (waited[3][:, 1] == 0).all()  # the last rank's B follows its own F


def test_a_step_is_told_once_and_the_first_is_not_recorded(runs):
    assert runs[1]["paced 1f1b"]["told"] == 3
    assert [window.step for window in read_recording(runs[0] / "paced 1f1b").windows] == [1, 2, 3]


def test_replicas_share_the_program_and_not_the_times(runs):
    first, second = read_recording(runs[0] / "1f1b p=2 m=3").windows
    assert first.timeline.program is second.timeline.program
    assert (first.replica, second.replica) == (0, 1)
    assert first.timeline.window != second.timeline.window
    assert first.step_ns > first.timeline.makespan


def test_interleaved_stages_live_where_the_schedule_says(runs):
    schedule = read_recording(runs[0] / "interleaved p=4 m=8").windows[0].timeline.program.schedule
    assert schedule.placement.tolist() == build("interleaved", Shape(4, 8, 2)).placement.tolist()
