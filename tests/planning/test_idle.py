"""Idle time of even stages, of one shape and of many layouts at once: formulas, and what stands in for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import InputError, Rates, Shape, account, build, costs_of, lower, peak_activations, simulate
from debubble.config.config import Layout
from debubble.planning.idle import SCHEDULES, bubbles, columns, enough, exact, idle_share, in_flight
from debubble.schedules.catalog import CATALOG, GENERATED


def layouts(*names, ranks=8, microbatches=32):
    return columns(
        [Layout(schedule=n, pipeline=ranks, microbatches=microbatches, chunks=CATALOG[n].chunks) for n in names], 64
    )


def idle_of(name, ranks, microbatches, forward, backward, weight):
    """The idlest rank, simulated; None where there is no such schedule."""
    try:
        schedule = build(name, Shape(ranks, microbatches))
    except InputError:
        return None
    rates = Rates(forward * 1e6, backward=backward * 1e6, weight=weight * 1e6)
    spent = account(simulate(lower(schedule), costs_of(rates, schedule)))
    return float((spent.window - spent.compute).max()) / 1e6


def bubble(names, shape=(8, 32), forward=1.0, backward=2.0, weight=1.0):
    found = layouts(*names, ranks=shape[0], microbatches=shape[1])
    one = np.ones(len(found))
    return bubbles(found, forward * one, backward * one, weight * one).tolist()


def test_the_bubbles_of_many_layouts_are_those_of_each_schedule():
    """p = 8, m = 32, F = I = W = 1, as the tools of the papers have them."""
    names = ["1f1b", "v-half", "zb-auto", "v-min", "interleaved", "1f1b", "zb-v", "zb-h2"]
    assert bubble(names) == [21, 8.5, 7, 13.5, 10.5, 21, 3.5, 7]


@pytest.mark.parametrize(("name", "least", "simulated"), [("chimera", 9, 30), ("hanayo", 10.5, 35)])
def test_where_no_formula_holds_the_screen_takes_the_least_that_any_order_idles(name, least, simulated):
    assert bubble([name]) == [least]
    assert idle_of(name, 8, 32, 1, 2, 1) == simulated
    assert not exact(name, 8, 32)
    assert idle_share(name, 8, 32) == pytest.approx(simulated / (96 + simulated))


@given(
    st.sampled_from([name for name in GENERATED if CATALOG[name].trains]),
    st.integers(1, 6),
    st.integers(1, 20),
    st.tuples(*[st.integers(1, 9)] * 3),
)
@settings(max_examples=200, deadline=None)
def test_the_screen_never_turns_a_schedule_down_that_simulation_would_keep(name, ranks, microbatches, times):
    f, i, w = (float(time) for time in times)
    simulated = idle_of(name, ranks, microbatches, f, i + w, w)
    if simulated is not None:
        assert bubble([name], (ranks, microbatches), f, i + w, w)[0] <= simulated + 1e-5


def test_activations_of_the_first_and_the_last_rank():
    """1F1B holds p - r; interleaved 11.5 on its first rank at p = 8 and two chunks, 4.5 on its last."""
    first, last = in_flight(layouts("1f1b", "interleaved", "gpipe", "zb-h1", "dualpipe-v"))
    assert first.tolist() == [8, 11.5, 32, 8, 8.5]
    assert last.tolist() == [1, 4.5, 32, 8, 8.5]


@pytest.mark.parametrize("name", GENERATED)
def test_no_end_of_a_pipeline_holds_more_than_is_reckoned(name):
    if name not in SCHEDULES:
        return
    held = peak_activations(build(name, Shape(8, 32)))
    first, last = in_flight(layouts(name))
    assert held[0] <= first[0]
    assert held[-1] <= last[0]
    assert held.max() <= max(first[0], last[0])


def test_interleaved_in_groups_is_exact_for_any_number_of_micro_batches():
    """(p-1)/(v m + p-1) with a group of 5, the smallest that Megatron-LM takes at p = 4, m = 10."""
    assert exact("interleaved", 4, 10, 2)
    assert idle_share("interleaved", 4, 10, 2) == 3 / 23
    assert idle_share("interleaved", 4, 3, 2) is None


def test_names_of_torch_are_schedules_too():
    assert idle_share("ScheduleZBVZeroBubble", 4, 8) == idle_share("zb-v", 4, 8) == 1.5 / 25.5
    assert enough("Interleaved1F1B", 4, 0.1) == 16
