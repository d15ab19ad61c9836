"""The noun Config: known, open and absent are three things, and nothing rests on an open field unseen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import NUMBERS, SAYABLE, Absent, Config, Open, StillOpen, Unknown
from debubble.config.derive import settled

PP = Open("pipeline", "${PP}", "train.sh:12")


@pytest.mark.parametrize("field", NUMBERS)
def test_an_open_field_has_no_value_and_asks_for_itself_by_name_and_place(field):
    config = Config(open=(Open(field, "${X}", "train.sh:3"),))
    with pytest.raises(StillOpen) as error:
        getattr(config, field)
    assert f"{field} = ${{X}} (train.sh:3)" in str(error.value)
    assert f"give --{field.replace('_', '-')}" in str(error.value)


def test_absent_is_none_and_becomes_a_fault_only_where_a_number_is_needed():
    config = Config(name="eight", tensor=2)
    assert config.pipeline is None
    with pytest.raises(Absent, match="eight: pipeline: it is not said; give --pipeline"):
        config.number("pipeline")


def test_what_is_open_and_what_is_absent_are_asked_for_at_once():
    with pytest.raises(Unknown) as error:
        Config(open=(PP,)).need("pipeline", "data", "tensor")
    assert len(error.value.faults) == 3


def test_a_value_closes_an_open_field():
    config = Config(open=(PP,)).changed(pipeline=4)
    assert (config.pipeline, config.open) == (4, ())


def test_defaults_fill_what_is_absent_and_leave_what_is_known_or_open():
    config = Config(tensor=2, open=(PP,)).filled(tensor=1, pipeline=1, context=1)
    assert (config.tensor, config.context, config.opened()) == (2, 1, {"pipeline"})
    assert config.said("tensor", "pipeline", "context") == ("tensor", "pipeline")


def test_what_follows_from_an_open_field_is_open_and_from_an_absent_one_absent():
    def chunks(config):
        return config.number("layers") // config.ranks // config.number("chunk_layers")

    assert Config(layers=32, pipeline=4, chunk_layers=2).derived("chunks", chunks).chunks == 4
    assert Config(pipeline=4, chunk_layers=2).derived("chunks", chunks).chunks is None
    with pytest.raises(StillOpen, match=r"pipeline = \$\{PP\}"):
        _ = Config(layers=32, chunk_layers=2, open=(PP,)).derived("chunks", chunks).chunks


def test_two_configurations_are_equal_where_they_say_the_same_wherever_they_say_it():
    assert Config(tensor=2, places={"tensor": "a.sh:1"}) == Config(tensor=2)
    assert Config(open=(PP,)) != Config()
    assert Config(open=(PP,)) == Config(open=(Open("pipeline", "${PP}"),))
    assert Config(own={"bf16": True}) != Config()


@pytest.mark.parametrize(("value", "on"), [(True, True), ("true", True), ("1", True), ("False", False), (None, False)])
def test_a_switch_with_a_value_is_on_where_its_value_says_so(value, on):
    assert Config(own={"sequence_parallel": value}).on("sequence_parallel") is on


def test_every_field_is_written_down_with_what_it_holds():
    words = Config.__doc__
    assert [name for name in SAYABLE if f"``{name}``" not in words and f"{name}:" not in words] == []


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_ranks_that_are_open_leave_devices_and_batch_alone(tensor, data, micro_batch):
    config = settled(Config(gpus=64, tensor=tensor, data=data, micro_batch=micro_batch, open=(PP,)))
    assert config.known().get("global_batch") is None
    assert (config.gpus, config.opened()) == (64, {"pipeline"})
