"""V-Half and V-Min against the published tool, row by row, and against the memory that their paper promises."""

import csv

import numpy as np
import pytest

from debubble import InputError, Shape, build
from evenly import run

NAMES = {"V-half": "v-half", "V-min": "v-min"}


def rows(shared, name):
    with (shared / "data" / "schedules" / "uniform_costs.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["schedule"] == name]


def compared(row):
    """Makespan, span and peak by our order, and as published."""
    shape = Shape(int(row["p"]), int(row["m"]), 2)
    ours = run(build(NAMES[row["schedule"]], shape), *(float(row[c]) for c in ("F", "B", "W", "comm")))
    published = [float(row[c]) for c in ("makespan", "max_span", "peak_mem_mb_equiv")]
    return [ours.makespan, ours.span, ours.peak.max()], published


@pytest.mark.parametrize("name", NAMES)
def test_makespan_span_and_peak_of_uniform_costs(shared, name):
    seen = [compared(row) for row in rows(shared, name)]
    assert len(seen) == 48
    for ours, published in seen:
        assert ours == pytest.approx(published, abs=1e-4)


@pytest.mark.parametrize(("name", "peaks"), [("v-half", {4: 3, 8: 5, 16: 9}), ("v-min", {4: 2, 8: 4, 16: 6})])
def test_controllable_memory_v_half_holds_p_over_2_plus_1_and_v_min_p_plus_4_over_3(name, peaks):
    for p, peak in peaks.items():
        assert run(build(name, Shape(p, 3 * p, 2)), 2, 2, 2).peak.max() == peak
        assert peak == {"v-half": (p + 2) // 2, "v-min": (p + 4) // 3}[name]


@pytest.mark.parametrize(("name", "excess"), [("v-half", {4: 5, 8: 17, 16: 41}), ("v-min", {4: 11, 8: 27, 16: 59})])
def test_excess_over_the_work_is_1_5p_minus_3_5_and_2p_minus_2_5_forwards(name, excess):
    for p, halves in excess.items():
        ours = run(build(name, Shape(p, 2 * p, 2)), 2, 2, 2)
        assert ours.makespan - 6 * 2 * p == halves  # of a forward of a rank
        assert halves == {"v-half": 3 * p - 7, "v-min": 4 * p - 5}[name]


def test_v_half_keeps_its_period_where_f_i_and_w_differ_little_and_v_min_does_not():
    """The steady state of V-Half stays full as long as W + 2I >= 2F and W + 2F >= 2I."""
    periods = {}
    for name in ("v-half", "v-min"):
        short, long = (run(build(name, Shape(8, m, 2)), 10, 12, 6).makespan for m in (64, 128))
        periods[name] = (long - short) / 64
    assert periods["v-half"] == 28
    assert periods["v-min"] > 32


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_no_rank_exceeds_the_peak_of_the_building_block(name):
    """Also for shapes that no table has."""
    for p in (1, 2, 3, 5, 6, 7, 9, 12):
        for m in (1, 2, p, 3 * p):
            peak = run(build(name, Shape(p, m, 2)), 2, 2, 2).peak
            assert np.all(peak <= min(m, p // 2 + 1 if name == "v-half" else (p + 4) // 3))


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_what_would_take_minutes_is_refused(name):
    with pytest.raises(InputError, match="give 256 or less"):
        build(name, Shape(1024, 8192, 2))
