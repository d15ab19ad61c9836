"""What of a user's model no pipeline can train is named with its stage before any process starts."""

import sys
from pathlib import Path

import pytest

from debubble import InputError, Shape
from debubble.runner.task import Task
from debubble.schedules.catalog import build

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _findable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "real"))
    yield
    sys.modules.pop("user_models", None)


def refused(model: str, schedule: str = "1f1b", **options: object) -> str:
    """The one fault that the rehearsal finds."""
    from debubble.runner.model import rehearse

    with pytest.raises(InputError) as error:
        rehearse(Task(build(schedule, Shape(4, 4)), 8, "nowhere", model=f"user_models:{model}", **options))
    (fault,) = error.value.faults
    assert fault.remedy
    return f"{fault}"


@pytest.mark.parametrize("model", ["plain", "tied", "linear", "frozen_middle", "boom_later", "nan_later"])
def test_what_can_be_trained_is_not_refused(model):
    from debubble.runner.model import rehearse

    for schedule in ("1f1b", "zb-h1"):
        rehearse(Task(build(schedule, Shape(4, 4)), 8, "nowhere", model=f"user_models:{model}", check=True))


def test_a_frozen_first_stage_under_a_split_backward_is_refused_and_trains_under_a_whole_one():
    from debubble.runner.model import rehearse

    assert "loses the gradients of a split backward" in refused("frozen_first", "zb-h1")
    rehearse(Task(build("1f1b", Shape(4, 4)), 8, "nowhere", model="user_models:frozen_first", check=True))


def test_dropout_is_named_where_it_would_be_compared_and_trains_where_not():
    from debubble.runner.model import rehearse

    assert "Dropout(0.3) in stage 0" in refused("dropout", check=True)
    rehearse(Task(build("1f1b", Shape(4, 4)), 8, "nowhere", model="user_models:dropout"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("unseeded", "called again it makes other weights"),
        ("no_loss", "its loss is NoneType"),
        ("loss_of_each", "its loss is a tensor of shape [2, 6, 16]"),
        ("raises", "it fails for 4 stages: KeyError: 'no such corpus' ("),
        ("leaves", "it fails for 4 stages: SystemExit: 9 ("),
        ("cuts_at_once", "stage 3 fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("detached_at_once", "the output of stage 2 is cut off from the stages before it"),
        ("nan_at_once", "its loss is nan on the first micro-batch"),
        ("boom_at_once", "stage 2 fails: ValueError: boom"),
    ],
)
def test_what_fails_on_the_first_micro_batch_is_named(model, said):
    assert said in refused(model)
