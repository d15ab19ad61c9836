"""Primus timings: order instead of labels, a clock for every rank and iteration, and files that are not whole."""

import gzip
import json

import numpy as np
import pytest

from debubble.core.errors import InputError
from debubble.core.schedule import Kind
from debubble.readers.primus import is_primus, read_primus
from debubble.readers.source import Ask, read
from debubble.reconstruct.device_ops import Clock
from debubble.reconstruct.observe import observe
from debubble.reconstruct.positions import Said
from devices import devices, simulated


@pytest.fixture
def files(tmp_path):
    """A simulated 1F1B in Primus' form, and its timeline; each rank and iteration begins at its own zero."""
    timeline = simulated("1f1b", 3, 5)
    for device in devices(timeline):
        (tmp_path / f"pp_rank_{device.rank}.json").write_text(json.dumps(document(device)))
    return sorted(tmp_path.iterdir()), timeline


def document(device):
    iterations = {}
    for step in np.unique(device.step).tolist():
        rows = device.step == step
        zero = device.start[rows].min() - 1000 * (1 + device.rank)
        row = {"total": 1.0, "memory": 2.0}
        for name, kind in (("fwd", Kind.F), ("bwd", Kind.B)):
            mine = rows & (device.kind == kind)
            row[f"{name}_start"] = ((device.start[mine] - zero) / 1e6).tolist()
            row[f"{name}_end"] = ((device.end[mine] - zero) / 1e6).tolist()
        iterations[str(step)] = row
    return iterations


def edited(path, edit):
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found))


def test_the_order_and_every_duration_come_back(files):
    paths, timeline = files
    observation = observe(read_primus(paths, "run"))
    assert len(observation.windows) == 3
    for window in observation.windows:
        got = window.timeline
        assert got.program.schedule.same_order(timeline.program.schedule)
        assert np.abs((got.end - got.start) - (timeline.end - timeline.start)).max() <= 1
        assert np.abs((got.start - got.start.min()) - timeline.start).max() <= 3  # hops take as long both ways


def test_no_rank_shares_a_clock(files):
    assert {device.clock for device in read_primus(files[0], "run").devices} == {Clock.STEP}


def test_it_is_known_by_its_content_packed_or_not(files):
    assert is_primus(files[0][0].read_bytes()[:4096])
    assert not is_primus(b'{"traceEvents": [{"ph": "X"}]}')
    assert not is_primus(b'{"world_size": 8}')


def test_a_packed_file_is_read(files):
    files[0][1].write_bytes(gzip.compress(files[0][1].read_bytes()))
    assert len(observe(read_primus(files[0], "run")).windows) == 3


@pytest.mark.parametrize(
    "edit",
    [
        lambda found: found["11"]["fwd_end"].pop(),
        lambda found: found["11"].pop("bwd_start"),
        lambda found: found["11"]["bwd_end"].__setitem__(2, None),
        lambda found: found["11"]["bwd_end"].__setitem__(2, float("nan")),
        lambda found: found["11"]["bwd_end"].__setitem__(2, -5.0),
        lambda found: found["11"]["bwd_end"].__setitem__(2, 1e300),
    ],
)
def test_an_iteration_that_is_not_whole_costs_itself(files, edit):
    edited(files[0][1], edit)
    observation = observe(read_primus(files[0], "run"))
    assert [window.step for window in observation.windows] == [10, 12]
    assert any("pp_rank_1.json: iteration 11 was left out" in remark for remark in observation.remarks)


def test_a_file_that_is_cut_off_costs_its_last_iteration(files):
    text = files[0][1].read_text()
    files[0][1].write_text(text[: int(0.9 * len(text))])
    observation = observe(read_primus(files[0], "run"))
    assert [window.step for window in observation.windows] == [10, 11]
    assert any("cut off behind iteration 11" in remark for remark in observation.remarks)


def test_a_file_that_is_none_costs_its_rank_and_is_named(files):
    files[0][2].write_text("nothing")
    reading = read_primus(files[0], "run")
    assert [device.rank for device in reading.devices] == [0, 1]
    assert "pp_rank_2.json" in reading.remarks[0]


def test_two_files_of_one_rank_do_not_overwrite_each_other(files, tmp_path):
    (tmp_path / "pp_rank_1_again.json").write_text(files[0][2].read_text())
    reading = read_primus(sorted(tmp_path.iterdir()), "run")
    assert [device.rank for device in reading.devices] == [0, 1, 2]
    assert "pp_rank_1_again.json" in reading.remarks[0]
    assert "already" in reading.remarks[0]


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '{"1": 5}', '{"1": {"fwd_start": "x"}}', '{"one": {}}'])
def test_nothing_that_can_be_used_is_refused(tmp_path, content):
    (tmp_path / "pp_rank_0.json").write_text(content)
    with pytest.raises(InputError):
        read_primus([tmp_path / "pp_rank_0.json"], "run")


@pytest.fixture
def interleaved(tmp_path):
    """An interleaved run of two chunks in Primus' form, in a folder, and its timeline."""
    timeline = simulated("interleaved", 4, 8, 2)
    for device in devices(timeline):
        (tmp_path / f"pp_rank_{device.rank}.json").write_text(json.dumps(document(device)))
    return tmp_path, timeline


def test_the_configuration_beside_the_files_says_how_many_chunks_a_rank_has(interleaved):
    folder, timeline = interleaved
    (folder / "config.json").write_text('{"world_size": 4, "pp_size": 4, "vp_size": 2, "num_mbs": 8, "train_iters": 3}')
    observation = read([folder])
    for window in observation.windows:
        assert window.timeline.program.schedule.same_order(timeline.program.schedule)
    assert len(observation.windows) == 3
    assert not any("config.json" in remark for remark in observation.remarks)


def test_a_configuration_that_does_not_fit_what_ran_is_not_used_and_that_is_said(interleaved):
    folder, _ = interleaved
    for text, said in (('{"vp_size": 3, "num_mbs": 8}', "do not fit 16 forwards"), ("{", "cannot be read")):
        (folder / "config.json").write_text(text)
        assert any("config.json" in remark and said in remark for remark in read([folder]).remarks)


def test_chunks_that_the_user_says_count_more_than_the_configuration(interleaved):
    folder, timeline = interleaved
    (folder / "config.json").write_text('{"vp_size": 1, "num_mbs": 16}')
    windows = read([folder], Ask(Said(chunks=2))).windows
    assert windows[0].timeline.program.schedule.same_order(timeline.program.schedule)


@pytest.mark.parametrize("chunks", [2**64, 2**31, 0])
def test_chunks_that_cannot_be_are_not_used(tmp_path, chunks):
    iteration = {"fwd_start": [0, 2], "fwd_end": [1, 3], "bwd_start": [4, 6], "bwd_end": [5, 7]}
    for rank in range(2):
        (tmp_path / f"pp_rank_{rank}.json").write_text(json.dumps({"1": iteration}))
    (tmp_path / "config.json").write_text(json.dumps({"pp_size": 2, "vp_size": chunks}))
    run = read([tmp_path])
    assert run.windows[0].timeline.program.schedule.stages == 2
    assert any("config.json" in remark or "chunks a rank cannot be" in remark for remark in run.remarks)
