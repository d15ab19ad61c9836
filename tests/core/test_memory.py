"""Activations in flight, against the counts of the papers."""

import pytest
from hypothesis import given

from debubble.core.schedule import Kind, Op, Release, Schedule, Shape, from_rows, peak_activations
from debubble.schedules.catalog import build
from strategies import schedules


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
