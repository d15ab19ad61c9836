"""The order of a run: every schedule by its name, where a stranger departs, and idle times against simulation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble import (
    Op,
    Rates,
    Shape,
    account,
    build,
    costs_of,
    from_rows,
    lower,
    lower_bound,
    simulate,
    violations,
)
from debubble.config.config import Config
from debubble.core.errors import InputError
from debubble.core.schedule import Release
from debubble.diagnosis.order import halved, own, recognise
from debubble.schedules.catalog import CATALOG, GENERATED
from debubble.schedules.catalog import build as searched
from debubble.schedules.closed_form import Even, bubble_ratio


@pytest.mark.parametrize("name", [name for name in GENERATED if name != "forward-only"])
def test_every_schedule_is_recognised_whatever_it_is_called(name):
    for shape in (Shape(4, 8), Shape(4, 8, 2)):
        try:
            schedule = build(name, shape)
        except InputError:
            continue
        rows = [list(schedule.row(rank)) for rank in range(4)]
        joined = None if schedule.joined is None else _split(schedule.joined, schedule.offsets)
        seen = from_rows(
            "seen", rows, schedule.placement, 8, slices=schedule.slices, joined=joined, route=schedule.route
        )
        found = recognise(seen)
        assert found.name is not None
        assert seen.same_order(build(found.name, Shape(4, 8, seen.stages // 4, seen.slices)))


def _split(flags, offsets):
    return [flags[a:b].tolist() for a, b in pairwise(offsets)]


def test_a_stranger_names_the_nearest_and_the_place():
    schedule = build("1f1b", Shape(2, 4))
    rows = [list(schedule.row(rank)) for rank in range(2)]
    rows[1][2], rows[1][4] = rows[1][4], rows[1][2]  # 1F2 before 1F1
    found = recognise(from_rows("odd", rows, [0, 1], 4))
    assert (found.name, found.nearest, str(found)) == (None, "1f1b", "no known schedule")
    assert found.departure == "rank 1 position 2: 1F2 where 1f1b has 1F1"


@pytest.mark.parametrize(
    ("shape", "cap", "same_as"), [(Shape(2, 4), "1p", "zb-h1"), (Shape(4, 8), "1.5p", None)], ids=["same", "other"]
)
def test_a_searched_order_keeps_the_name_that_was_asked_for_and_says_what_it_is_the_same_as(shape, cap, same_as):
    found = recognise(searched("zb-auto", shape, Rates(transfer=2e5), cap=cap, release=Release.W))
    assert (str(found), found.name) == ("zb-auto", same_as)


def test_uneven_chunks_are_no_known_schedule():
    rows = [[Op.parse("0F0"), Op.parse("2F0")], [Op.parse("1F0")]]
    assert recognise(from_rows("uneven", rows, [0, 1, 0], 1)).nearest is None


SIZES = st.tuples(st.integers(2, 8), st.integers(1, 24))


@given(st.sampled_from(["gpipe", "1f1b", "eager-1f1b"]), SIZES, st.integers(1, 9), st.integers(1, 9))
def test_the_formula_is_what_simulation_finds(name, size, forward, backward):
    schedule = build(name, Shape(*size))
    costs = costs_of(Rates(forward=forward * 1000, backward=backward * 1000), schedule)
    idle = account(simulate(lower(schedule), costs)).idle_share
    assert own(Config(pipeline=size[0], microbatches=size[1], schedule=name)).most == pytest.approx(idle, abs=1e-9)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_the_interleaved_formula_is_what_simulation_finds(ranks, groups, chunks):
    shape = Shape(ranks, ranks * groups, chunks)
    schedule = build("interleaved", shape)
    found = account(simulate(lower(schedule), costs_of(Rates(forward=12_000, backward=24_000), schedule))).bubble_ratio
    pipeline = Even(shape.ranks, shape.microbatches, shape.chunks)
    assert bubble_ratio(CATALOG["interleaved"], pipeline) == pytest.approx(found, rel=1e-6)


@given(SIZES, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_best_with_a_barrier_is_the_lower_bound_of_a_split_backward(size, forward, first, weight):
    rates = {"forward": forward * 1000.0, "input": first * 1000.0, "weight": weight * 1000.0}
    schedule = build("1f1b", Shape(*size))
    costs = costs_of(Rates(**rates), schedule)
    window = simulate(lower(schedule), costs).makespan
    job = Config(pipeline=size[0], microbatches=size[1], **rates)
    assert own(job).barrier_ratio == pytest.approx(window / lower_bound(halved(schedule), costs))


def test_zb_h1_is_exact_and_no_order_of_its_placement_beats_it_at_p8_m64():
    found = own(Config(pipeline=8, microbatches=64, schedule="zb-h1"))
    assert (found.evidence, found.barrier_ratio) == ("exact", 1.0)


@pytest.mark.parametrize(
    ("schedule", "sizes", "idle"),
    [
        ("chimera", {"pipeline": 8, "microbatches": 32}, 30),  # its formula, of F = B, would say 9
        ("hanayo", {"pipeline": 8, "microbatches": 32}, 35),  # likewise 10.5
        ("zb-h1", {"pipeline": 8, "microbatches": 32, "forward": 1e6, "input": 1e6, "weight": 2e6}, 7),  # not 0: fill
    ],
)
def test_where_no_formula_holds_it_is_simulated(schedule, sizes, idle):
    found = own(Config(schedule=schedule, **sizes))
    busy = 32 * (4 if "weight" in sizes else 3)
    assert found.evidence == "simulated"
    assert found.most == pytest.approx(idle / (busy + idle))


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "interleaved", "VPP"])
def test_a_job_may_name_its_schedule_as_torch_does_and_leave_its_chunks_out(schedule):
    assert own(Config(pipeline=4, microbatches=8, schedule=schedule)).most == 3 / 19


def test_one_chunk_of_what_has_several_is_a_contradiction():
    with pytest.raises(InputError, match="chunks = 1: interleaved has several on each rank; give 2 or none"):
        own(Config(pipeline=4, microbatches=8, schedule="interleaved", chunks=1))


def test_without_microbatches_there_are_bounds():
    found = own(Config(pipeline=4))
    assert (found.least, found.most, found.fewest, found.known) == (0.0, 0.75, 1, False)
    assert own(Config(pipeline=4, chunks=2, schedule="interleaved")).fewest == 4


def test_one_rank_has_no_bubble_and_no_length_no_answer():
    assert own(Config(pipeline=1)).most == 0
    assert own(Config(microbatches=4)) is None


def test_a_schedule_that_does_not_take_these_sizes_names_the_job():
    with pytest.raises(InputError, match="eight: microbatches = 6"):
        own(Config(name="eight", pipeline=4, microbatches=6, chunks=2, schedule="interleaved"))


def test_halving_every_backward_keeps_a_schedule_legal():
    schedule = halved(build("1f1b", Shape(4, 8)))
    assert not violations(schedule)
    assert schedule.splits
