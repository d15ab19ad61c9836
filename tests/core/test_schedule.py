"""Ops, shapes, schedules: one small grammar, sizes checked before memory is taken, activations as papers count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.schedule import (
    Kind,
    Op,
    Release,
    Schedule,
    Shape,
    from_rows,
    loop_placement,
    peak_activations,
    v_placement,
)
from debubble.schedules.catalog import build
from strategies import schedules

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


def test_every_size_below_one_is_named_at_once():
    with pytest.raises(InputError) as caught:
        Shape(ranks=0, microbatches=-1, chunks=0)
    assert [fault.value for fault in caught.value.faults] == ["ranks = 0", "microbatches = -1", "chunks = 0"]


def test_a_million_million_microbatches_are_refused_with_the_memory_they_would_need():
    with pytest.raises(InputError) as caught:
        Shape(ranks=4, microbatches=10**12)
    assert "GB of memory" in str(caught.value)
    assert "8,000,000,000,000 ops" in str(caught.value)


@pytest.mark.parametrize(("ranks", "turns"), [(64_000, "8,192,000,000 turns"), (1_000_000, "2,000,000,000,000 turns")])
def test_more_ranks_than_can_be_simulated_in_seconds_are_refused_with_the_turns_that_it_would_take(ranks, turns):
    with pytest.raises(InputError) as caught:
        Shape(ranks=ranks, microbatches=1)
    (fault,) = caught.value.faults
    assert turns in fault.rule
    assert fault.remedy == "stay at 16,384 ranks or fewer"


def test_the_largest_jobs_are_not_refused():
    assert Shape(ranks=1024, microbatches=8192).stages == 1024
    assert Shape(ranks=16_384, microbatches=1).stages == 16_384


def test_placements():
    assert loop_placement(2, 3).tolist() == [[0, 1, 0, 1, 0, 1]]
    assert v_placement(3).tolist() == [[0, 1, 2, 2, 1, 0]]


def test_a_schedule_cannot_be_changed():
    schedule = from_rows("one", [[Op(Kind.F, 0, 0), Op(Kind.B, 0, 0)]], [0], 1)
    with pytest.raises(ValueError, match="read-only"):
        schedule.kind[0] = 2
    with pytest.raises(AttributeError):
        schedule.name = "two"


def test_an_uneven_placement_counts_the_stages_of_each_rank():
    schedule = from_rows("uneven", [[], []], [0, 1, 0], 1)
    assert schedule.chunks_of().tolist() == [[2, 1]]
    assert schedule.stages == 3
    assert np.array_equal(schedule.offsets, [0, 0, 0])


@pytest.mark.parametrize("p", range(1, 17))
def test_1f1b_holds_min_of_m_and_p_minus_r_and_gpipe_holds_m(p):
    for m in range(1, 33):
        assert peak_activations(build("1f1b", Shape(p, m))).tolist() == [min(m, p - r) for r in range(p)]
        assert peak_activations(build("gpipe", Shape(p, m))).tolist() == [m] * p


@pytest.mark.parametrize(("v", "peak"), [(2, 11.5), (4, 9.75)])
def test_interleaved_at_p8_holds_11_5_and_9_75(v, peak):
    """((v+1)p - 1)/v for m > p: facts of the catalogue."""
    assert peak_activations(build("interleaved", Shape(8, 16, v)))[0] == peak


SPLIT = from_rows("split", [list(map(Op.parse, "0F0 0F1 0I0 0I1 0W0 0W1".split()))], [0], 2)  # noqa: SIM905


@pytest.mark.parametrize("release", list(Release))
def test_all_rules_agree_before_the_first_backward(release):
    assert peak_activations(SPLIT, release).tolist() == [2]


#  op        F F I F I W W I W
#  held, W   1 2 2 3 3 2 1 1 0
#  half      1 2 1.5 2.5 2 ..
#  I         1 2 1 2 1 ..
LATE = from_rows("late", [list(map(Op.parse, "0F0 0F1 0I0 0F2 0I1 0W0 0W1 0I2 0W2".split()))], [0], 3)  # noqa: SIM905


@pytest.mark.parametrize(("release", "held"), [(Release.W, 3), (Release.HALF, 2.5), (Release.I, 2)])
def test_when_a_split_backward_frees_decides_the_peak(release, held):
    assert peak_activations(LATE, release).tolist() == [held]


def test_inference_keeps_nothing():
    assert peak_activations(from_rows("f", [[Op.parse("0F0"), Op.parse("0F1")]], [0], 2)).tolist() == [0]


def counted(schedule: Schedule, rank: int) -> float:
    """The most chunks that were run forward and not yet freed (at W, or at a full backward)."""
    held, most = 0, 0
    for op in schedule.row(rank):
        held += {Kind.F: 1, Kind.I: 0, Kind.W: -1, Kind.B: -1}[op.kind]
        most = max(most, held)
    return most


@given(schedules(modes=("fused", "split", "mixed"), copies=False))
def test_the_peak_is_what_one_counts_on_the_fingers(schedule):
    peak = peak_activations(schedule)
    for rank, chunks in enumerate(schedule.chunks_of()[0]):
        assert peak[rank] == pytest.approx(counted(schedule, rank) / chunks / schedule.slices)
