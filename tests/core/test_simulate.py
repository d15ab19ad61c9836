"""Simulation against closed forms of the literature, and small grids whose times were worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core import kernels
from debubble.core import simulate as simulation
from debubble.core.account import account
from debubble.core.bounds import lower_bound
from debubble.core.costs import Costs, Rates, costs_of
from debubble.core.engine import BLOCKING, IDEAL, LINK, RENDEZVOUS, SENDS
from debubble.core.lower import apart, lower
from debubble.core.schedule import KINDS, Kind, Op, Shape, from_rows
from debubble.core.simulate import simulate, simulate_many
from debubble.core.units import MILLISECOND
from debubble.schedules.catalog import build
from debubble.schedules.loops import interleaved

# Costs on purpose not 1 and 2: a formula that mixes them up is found.
F, B = 3, 7
EVEN = Rates(forward=F, backward=B)


def run(schedule, rates=EVEN, sends=IDEAL):
    return simulate(lower(schedule, sends), costs_of(rates, schedule))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p", range(1, 17))
def test_even_gpipe_and_1f1b_take_m_plus_p_minus_1_slots_for_all_m_to_32(name, p):
    for m in range(1, 33):
        timeline = run(build(name, Shape(p, m)))
        spent = account(timeline)
        assert timeline.makespan == (m + p - 1) * (F + B)
        assert spent.idle_share == pytest.approx((p - 1) / (m + p - 1))
        assert spent.bubble_ratio == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("p", range(1, 17))
def test_even_1f1b_and_gpipe_attain_the_lower_bound(p):
    for m in (1, p, 32):
        schedule = build("1f1b", Shape(p, m))
        assert lower_bound(schedule, costs_of(EVEN, schedule)) == (m + p - 1) * (F + B)


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_even_interleaved_has_a_bubble_ratio_of_p_minus_1_over_v_m(p, v):
    for m in range(p, 33, p):
        spent = account(run(interleaved(Shape(p, m, v)), Rates(forward=F * v, backward=B * v)))
        assert spent.bubble_ratio == pytest.approx((p - 1) / (v * m))


def test_founding_case_of_four_and_eight_gpus_has_idle_shares_of_11_1_and_42_9_percent():
    shares = [account(run(build("1f1b", Shape(p, m)))).idle_share for p, m in ((2, 8), (4, 4))]
    assert shares == [pytest.approx(1 / 9), pytest.approx(3 / 7)]


def two_ranks(*rows, placement=(0, 1), m=2, joined=None):
    return from_rows("hand", [[Op.parse(cell) for cell in row.split()] for row in rows], placement, m, joined=joined)


def spans(timeline):
    schedule = timeline.program.schedule
    return {str(schedule.op(i)): (int(timeline.start[i]), int(timeline.end[i])) for i in range(len(schedule))}


def sent(timeline):
    """Start and end of each transfer, by the op whose output it carries."""
    program, ops = timeline.program, len(timeline.program.schedule)
    names = [str(program.schedule.op(op)) for op in program.producer]
    return dict(zip(names, zip(timeline.start[ops:].tolist(), timeline.end[ops:].tolist(), strict=True), strict=True))


#            0    2    4    6    8    10   12
#   rank 0   0F0  0F1
#   rank 1             1F0  1F1                   a hop of 3 delays the input and occupies nobody
FORWARDS = two_ranks("0F0 0F1", "1F0 1F1")


def test_an_asynchronous_transfer_delays_the_input_and_occupies_nobody():
    assert spans(run(FORWARDS, Rates(forward=2, transfer=3))) == {
        "0F0": (0, 2), "0F1": (2, 4), "1F0": (5, 7), "1F1": (7, 9),
    }  # fmt: skip


#   link 0->1      [S 0F0: 2..7][S 0F1: 7..12]     5 of bytes each, one at a time, then a latency of 1
def test_a_link_carries_one_transfer_at_a_time_in_the_order_of_the_sender():
    timeline = run(FORWARDS, Rates(forward=2, transfer=1, payload=50, link=10), LINK)
    assert sent(timeline) == {"0F0": (2, 7), "0F1": (7, 12)}
    assert spans(timeline) == {"0F0": (0, 2), "0F1": (2, 4), "1F0": (8, 10), "1F1": (13, 15)}


#   rank 0   0F0  S S S  0F1  S S S
#   rank 1               1F0         1F1
def test_a_blocking_send_keeps_the_sender_and_not_the_receiver():
    timeline = run(FORWARDS, Rates(forward=2, transfer=3), BLOCKING)
    assert sent(timeline) == {"0F0": (2, 5), "0F1": (7, 10)}
    assert spans(timeline) == {"0F0": (0, 2), "0F1": (5, 7), "1F0": (5, 7), "1F1": (10, 12)}


#   rank 0   0F0  S S S  0F1  S S S
#   rank 1        R R R  1F0  R R R  1F1           rank 1 could not compute while it receives
def test_a_rendezvous_keeps_both_sides():
    rates = Rates(forward=2, transfer=3, stage_scale=(1, 3))
    timeline = run(FORWARDS, rates, RENDEZVOUS)
    assert sent(timeline) == {"0F0": (2, 5), "0F1": (11, 14)}
    assert spans(timeline) == {"0F0": (0, 2), "0F1": (5, 7), "1F0": (5, 11), "1F1": (14, 20)}


def test_both_directions_of_a_link_carry_at_the_same_time():
    schedule = two_ranks("0F0 0B0", "1F0 1B0", m=1)
    timeline = run(schedule, Rates(forward=1, backward=1, payload=10, link=1), LINK)
    assert sent(timeline) == {"0F0": (1, 11), "1B0": (13, 23)}


def test_without_a_link_program_bytes_take_their_time_as_a_delay():
    timeline = run(FORWARDS, Rates(forward=2, transfer=1, payload=50, link=10))
    assert spans(timeline)["1F1"] == (10, 12)


PAIR = two_ranks(
    "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", joined=([False] * 4, [False, False, True, False])
)  # rank 1 runs 1F1 and 1B0 together


def test_an_overlapped_pair_starts_with_the_later_input_and_sends_when_both_ends_are_reached():
    rates = Rates(forward=10, backward=20)
    assert spans(run(PAIR, rates))["1F1"] == spans(run(PAIR, rates))["1B0"] == (20, 50)
    assert spans(run(PAIR, rates))["0B0"] == (50, 70)


def test_a_pair_that_is_taken_apart_sends_each_half_at_once():
    times = spans(run(apart(PAIR), Rates(forward=10, backward=20)))
    assert (times["1F1"], times["1B0"]) == ((20, 30), (30, 50))


def test_an_overlapped_pair_has_a_duration_of_its_own():
    assert spans(run(PAIR, Rates(forward=10, backward=20, pair=24)))["1F1"] == (20, 44)


def test_costs_of_one_micro_batch_and_transfers_of_one_stage_are_looked_up_where_they_belong():
    times = spans(run(FORWARDS, Rates(forward=2, microbatch_scale=(1, 5)), BLOCKING))
    assert times == {"0F0": (0, 2), "0F1": (2, 12), "1F0": (2, 4), "1F1": (12, 22)}


@pytest.mark.parametrize("sends", list(SENDS.values()))
def test_free_transfers_cost_nothing_however_they_are_sent(sends):
    schedule = build("interleaved", Shape(4, 8, 2))
    timeline = run(schedule, EVEN, sends)
    assert timeline.makespan >= run(schedule).makespan
    assert sends is RENDEZVOUS or timeline.makespan == run(schedule).makespan


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("c", [1, 2, 5])
def test_a_hop_of_c_stretches_the_steady_period_of_1f1b_by_2c_p_minus_1_over_p(p, c):
    """The period that the table of comm_steady_state_1f1b prints: p more micro-batches take p T + 2c(p-1) more."""
    rates = Rates(forward=10, backward=20, transfer=c)
    longer, shorter = (run(build("1f1b", Shape(p, m)), rates).makespan for m in (9 * p, 8 * p))
    assert longer - shorter == 30 * p + 2 * c * (p - 1)


@given(scale=st.integers(1, 10**9))
def test_time_scales_with_the_unit_of_time(scale):
    schedule = build("1f1b", Shape(3, 5))
    assert run(schedule, Rates(forward=2 * scale, backward=3 * scale)).makespan == scale * 7 * 5


def test_milliseconds_are_whole_nanoseconds():
    assert run(build("gpipe", Shape(2, 1)), Rates(forward=1.5 * MILLISECOND, backward=1)).makespan == 3_000_002


def test_the_kinds_of_a_split_backward_have_their_own_costs():
    schedule = two_ranks("0F0 0I0 0W0", placement=(0,), m=1)
    timeline = run(schedule, Rates(forward=1, input=10, weight=100))
    assert (timeline.end - timeline.start).tolist() == [1, 10, 100]
    assert [Kind(k).name for k in schedule.kind] == ["F", "I", "W"]


def test_a_timeline_cannot_be_changed():
    timeline = run(build("1f1b", Shape(2, 2)))
    for column in (timeline.start, timeline.end):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


SHAPES = [("1f1b", 4, 6, 1), ("interleaved", 3, 6, 2), ("zb-h1", 4, 8, 1), ("zb-v", 3, 6, 2), ("dualpipe-v", 2, 6, 2)]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), sets=st.integers(1, 5))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s[0])
def test_a_sweep_of_many_costs_gives_the_windows_of_each_alone(shape, seed, sets):
    name, ranks, microbatches, chunks = shape
    program = lower(build(name, Shape(ranks, microbatches, chunks)))
    random = np.random.default_rng(seed)
    durations, transfers = random.integers(0, 100, (2, sets, KINDS, ranks * chunks))
    costs = [Costs(d[:, :, None], t[:, :, None]) for d, t in zip(durations, transfers, strict=True)]
    assert simulate_many(program, costs).tolist() == [simulate(program, each).makespan for each in costs]


def test_no_costs_have_no_windows():
    assert simulate_many(lower(build("1f1b", Shape(2, 2))), []).tolist() == []


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("c", [0, 5])
def test_the_loops_that_are_compiled_give_the_closed_form_when_python_runs_them(monkeypatch, compiled, c):
    """(m + p - 1)(F + B) without hops; 2 c (p - 1) for each p more micro-batches with them."""
    if compiled:
        monkeypatch.setattr(kernels, "worth_compiling", lambda rows: True)
        monkeypatch.setattr(kernels, "compiled", lambda loop: loop)
        monkeypatch.setattr(simulation, "has_numba", lambda: True)
        monkeypatch.setattr(simulation, "_WORTH", 0)
        monkeypatch.setattr(simulation, "compiled", lambda loop: loop)
    p, m = 3, 9
    programs = [lower(build("1f1b", Shape(p, many))) for many in (m, m + p)]
    rates = Rates(forward=10, backward=20, transfer=c)
    short, long = (simulate(program, costs_of(rates, program.schedule)).makespan for program in programs)
    assert long - short == 30 * p + 2 * c * (p - 1)
    assert c or short == 30 * (m + p - 1)
    twice = [costs_of(Rates(forward=10 * k, backward=20 * k, transfer=c * k), programs[0].schedule) for k in (1, 2)]
    assert simulate_many(programs[0], twice).tolist() == [short, 2 * short]
