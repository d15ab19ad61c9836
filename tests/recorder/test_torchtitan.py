"""torchtitan's own trainer recorded on two CPU ranks: order, axes, optimizer, and a model that learns meanwhile."""

import re
from importlib.util import find_spec

import pytest

from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording, read_tracks
from debubble.schedules.catalog import build

from .jobs import CLIENTS, recorded
from .test_engines import is_row

pytestmark = [pytest.mark.engines, pytest.mark.real, pytest.mark.slow]


@pytest.mark.parametrize(("schedule", "order"), [("1F1B", ("1f1b", 1)), ("Interleaved1F1B", ("interleaved", 2))])
def test_its_trainer_is_recorded_as_it_is(schedule, order, tmp_path):
    if not find_spec("torchtitan"):
        pytest.skip("torchtitan is not installed: make engines")
    name, chunks = order
    ran = recorded(2, tmp_path / "run", CLIENTS / "torchtitan_trainer.py", schedule, tmp_path / "made")
    assert ran.returncode == 0, ran.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"loss:\s+(\d+\.\d+)", ran.stdout + ran.stderr)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 1  # of a text of one sentence
    tracks, remarks = read_tracks(tmp_path / "run")
    assert remarks == []
    for track in tracks:
        (part,) = track.parts.values()
        assert is_row(part, build(name, Shape(2, 8, chunks)), track.process.rank)
        assert part.axes["pipeline"] == [track.process.rank, 2] or part.axes["pipeline"] == (track.process.rank, 2)
        assert part.axes["data"][1] == 1
        assert [step.number for step in track.steps] == [1, 2, 3]
        assert all(step.optimizer > 0 for step in track.steps)
    assert len(read_recording(tmp_path / "run").windows) == 3
