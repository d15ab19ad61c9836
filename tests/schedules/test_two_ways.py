"""DualPipe, DualPipeV, Chimera: two pipelines that run against each other, and pairs that overlap."""

import numpy as np
import pytest

from debubble import InputError, Kind, Shape, build
from evenly import run


@pytest.mark.parametrize(
    ("name", "shape", "backward"),
    [("dualpipe", Shape(4, 8), 2), ("dualpipe-v", Shape(2, 4), 2), ("chimera", Shape(4, 4), 1)],
)
def test_the_drawing_in_the_file_is_the_schedule(drawings, name, shape, backward):
    drawn, is_ = drawings(name, shape, backward)
    assert drawn == is_


@pytest.mark.parametrize(("name", "m"), [("dualpipe", 8), ("chimera", 8)])
def test_the_second_copy_runs_the_other_way(name, m):
    schedule = build(name, Shape(4, m))
    assert schedule.placement.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert np.bincount(schedule.route).tolist() == [m // 2, m // 2]


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_a_pair_is_a_forward_and_a_full_backward(name):
    schedule = build(name, Shape(4, 16))
    second = np.flatnonzero(schedule.joined)
    assert len(second) > 0
    assert set(schedule.kind[second]) == {Kind.B}
    assert set(schedule.kind[second - 1]) == {Kind.F}


def test_mirrored_ranks_of_dualpipe_do_the_same_with_the_copies_exchanged():
    schedule = build("dualpipe", Shape(6, 14))
    for r in range(3):
        mine, other = list(schedule.row(r)), list(schedule.row(5 - r))
        assert [(op.kind, op.stage) for op in mine] == [(op.kind, op.stage) for op in other]
        assert [(op.microbatch + 7) % 14 for op in mine] == [op.microbatch for op in other]


def test_dualpipe_v_is_half_of_a_dualpipe_of_twice_the_ranks():
    whole, half = build("dualpipe", Shape(8, 20)), build("dualpipe-v", Shape(4, 10, 2))
    for r in range(4):
        kinds = [[op.kind for op in schedule.row(r)] for schedule in (whole, half)]
        assert kinds[0] == kinds[1]


def test_pairs_must_overlap_to_pay():
    for p in (2, 4, 8):
        schedule = build("dualpipe-v", Shape(p, 4 * p))
        alone, together = (run(schedule, 2, 2, 2, pair=pair) for pair in (6, 4))
        assert alone.idle.max() == (p - 1) * (3 + 2 - 3)  # of a chunk: F&B + B - 3W
        assert together.makespan < alone.makespan


def refused(name, *shape):
    with pytest.raises(InputError) as caught:
        build(name, Shape(*shape))
    return [str(fault) for fault in caught.value.faults]


def test_dualpipe_names_all_that_is_odd_or_too_few():
    assert refused("dualpipe", 5, 7) == [
        "ranks = 5: dualpipe joins ranks in pairs, one for each direction; nearest: 4 or 6",
        "microbatches = 7: dualpipe sends half of them each way, 5 or more; nearest: 10",
    ]
    assert "nearest: 8 or 10" in refused("dualpipe", 4, 9)[0]


def test_dualpipe_v_needs_two_micro_batches_a_rank():
    assert refused("dualpipe-v", 4, 7) == ["microbatches = 7: dualpipe-v needs two for each of its 4 ranks; nearest: 8"]


def test_chimera_halves_the_bubble_of_1f1b_where_b_is_f():
    for p in (4, 8, 16):
        for m in (p, 2 * p, 4 * p):
            ours = run(build("chimera", Shape(p, m)), 10, 10, 0)
            assert ours.makespan == 20 * m + (p / 2 - 1) * 20
            assert ours.idle.mean() / ours.makespan == pytest.approx((p - 2) / (2 * m + p - 2))


def test_chimera_idles_12_instead_of_9_forwards_at_p_8_m_8_where_b_is_twice_f():
    assert run(build("chimera", Shape(8, 8)), 1, 1, 1).makespan == 24 + 12


def test_chimera_holds_between_half_of_p_and_p_micro_batches():
    for p in (4, 8, 16):
        peak = run(build("chimera", Shape(p, 2 * p)), 1, 1, 1).peak
        assert peak.min() >= p / 2
        assert peak.max() <= p


def test_chimera_takes_any_number_of_micro_batches_and_only_even_ranks():
    assert np.bincount(build("chimera", Shape(4, 7)).route).tolist() == [4, 3]
    assert build("chimera", Shape(4, 1)).route.tolist() == [0]
    assert "nearest: 2 or 4" in refused("chimera", 3, 6)[0]
    assert "nearest: 2" in refused("chimera", 1, 6)[0]
