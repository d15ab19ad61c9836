"""Ops: one small grammar, read back as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.schedule import Kind, Op

small = st.integers(0, 10_000)


@given(st.sampled_from(Kind), small, small, st.integers(1, 9))
def test_text_reads_back_as_the_same_op(kind, stage, unit, slices):
    op = Op(kind, stage, unit)
    assert Op.parse(op.text(slices), slices) == op


def test_pytorchs_own_parser_reads_our_text():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    action = schedules._Action.from_str(str(Op(Kind.W, 2, 7)))
    assert (action.stage_index, action.computation_type.name[0], action.microbatch_index) == (2, "B", 7)
    assert str(action) == "2W7"


@pytest.mark.parametrize("text", ["xF0", "1F0garbage", "1G0", "F0", "1F", "-1F0", "1F0.2", " 1F0", "1F0\n", ""])
def test_anything_else_is_refused_with_its_text(text):
    with pytest.raises(InputError) as caught:
        Op.parse(text)
    assert repr(text) in str(caught.value)


def test_a_slice_beyond_the_last_is_refused():
    with pytest.raises(InputError):
        Op.parse("1F0.4", slices=4)
