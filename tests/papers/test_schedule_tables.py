"""Tables of published tools and papers, row by row: our generators give the same times and the same memory."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from debubble import Shape, build
from evenly import run

REFERENCE = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "Interleaved 1F1B": "interleaved",
    "Looped BFS": "looped-bfs",
    "ZB-V (handcrafted)": "zb-v",
}
TORCH = {
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved-zb",
    "LoopedBFS": "looped-bfs",  # its backwards take the micro-batches in reverse, which changes no time
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}


def table(shared, name):
    with (shared / "data" / "schedules" / name).open() as file:
        return list(csv.DictReader(file))


def numbers(row, *columns):
    return [float(row[column]) for column in columns]


def shape(row, chunks):
    return Shape(int(row["p"]), int(row["m"]), chunks)


@pytest.mark.parametrize("name", REFERENCE)
def test_makespan_span_and_peak_of_uniform_costs(shared, name):
    rows = [row for row in table(shared, "uniform_costs.csv") if row["schedule"] == name]
    assert len(rows) >= 48
    for row in rows:
        ours = run(build(REFERENCE[name], shape(row, int(row["chunks"]))), *numbers(row, "F", "B", "W", "comm"))
        got = ours.makespan, ours.span, ours.peak.max()
        assert got == pytest.approx(numbers(row, "makespan", "max_span", "peak_mem_mb_equiv"), abs=1e-4), row


@pytest.mark.parametrize("name", TORCH)
def test_makespan_span_and_peak_of_the_orders_of_torch(shared, name):
    rows = [r for r in table(shared, "pytorch_schedules.csv") if r["schedule"] == name and r["makespan"]]
    assert len(rows) >= 42
    for row in rows:
        schedule = replace(build(TORCH[name], shape(row, int(row["chunks"]))), joined=None)  # the table ran F, then B
        ours = run(schedule, *numbers(row, "F", "B", "W", "comm"))
        got = ours.makespan, ours.span, ours.peak.max()
        assert got == pytest.approx(numbers(row, "makespan", "max_span", "peak_mem_mb_equiv"), abs=1e-4), row


def replayed(row):
    """A row of dualpipe.csv by our order; its times are of a chunk, a pair takes FB_overlapped."""
    v = 1 if row["schedule"] == "DualPipe" else 2
    times = [v * number for number in numbers(row, "F", "B_input", "W")]
    schedule = build("dualpipe" if v == 1 else "dualpipe-v", Shape(int(row["ranks"]), int(row["M_total"]), v))
    return run(schedule, *times, pair=v * float(row["FB_overlapped"])), v


def test_all_108_replays_of_dualpipe_and_dualpipe_v(shared):
    rows = table(shared, "dualpipe.csv")
    assert len(rows) == 108
    for row in rows:
        ours, v = replayed(row)
        got = ours.makespan, ours.idle.min(), ours.idle.max(), ours.peak.max() * v
        assert got == pytest.approx(numbers(row, "makespan", "min_idle", "max_idle", "peak_chunks"), abs=1e-4), row


def test_dualpipe_readme_formula_is_exact_where_i_equals_f_and_corrected_where_i_is_below(shared):
    seen = {"exact": 0, "corrected": 0, "too low": 0}
    for row in table(shared, "dualpipe.csv"):
        f, i, w, pair = numbers(row, "F", "B_input", "W", "FB_overlapped")
        n = int(row["PP"]) / 2 - 1
        idle = replayed(row)[0].idle.max()
        readme, corrected = n * (pair + i + w - 3 * w), n * (pair + f - 2 * w)
        if i == f:
            assert idle == pytest.approx(readme, abs=1e-4)
            seen["exact"] += 1
        assert idle == pytest.approx(corrected, abs=1e-4)  # i <= f, and 10/12/6 too
        seen["corrected"] += 1
    assert seen["exact"] == 72
    assert seen["corrected"] == 108


@pytest.mark.parametrize(
    ("paper", "name", "chunks"),
    [("1F1B", "1f1b", 1), ("ZB-H1", "zb-h1", 1), ("ZB-H2", "zb-h2", 1), ("1F1B-I", "interleaved", 3)],
)
def test_zero_bubble_table_5_to_four_decimals(shared, paper, name, chunks):
    rows = [row for row in table(shared, "zb_table5_reproduction.csv") if row["schedule"] == paper]
    assert len(rows) == 6
    for row in rows:
        ours = run(build(name, shape(row, chunks)), *numbers(row, "T_F", "T_B", "T_W", "T_comm"))
        assert round(ours.span_idle_share, 4) == float(row["reproduced"]), row
        if paper != "1F1B-I":  # where the paper evidently counts p hops fewer
            assert round(ours.span_idle_share, 4) == float(row["paper_bubble_rate"]), row


PERIOD = "measured_period (F+B+W=30)"


@pytest.mark.parametrize(("variant", "name"), [("1F1B", "1f1b"), ("eager 1F1B (2(p-r)-1 in flight)", "eager-1f1b")])
def test_steady_period_under_latency_is_t_plus_2c_p_minus_1_over_p_or_t_where_eager(shared, variant, name):
    rows = [row for row in table(shared, "comm_steady_state_1f1b.csv") if row["schedule"] == variant]
    assert len(rows) == 15
    for row in rows:
        p, c = int(row["p"]), float(row["comm"])
        short, long = (run(build(name, Shape(p, m)), 10, 10, 10, c) for m in (64, 128))
        period = (long.makespan - short.makespan) / 64
        assert period == pytest.approx(float(row[PERIOD]), abs=1e-6)
        assert period == pytest.approx(30 if name == "eager-1f1b" else 30 + 2 * c * (p - 1) / p, abs=1e-6)
        assert long.peak.max() == float(row["peak_mem"])


def test_zero_bubble_table_2_zb_h1_and_h2_hold_p_and_2p_minus_1_micro_batches():
    for p in (4, 8, 16):
        assert np.all(run(build("zb-h1", Shape(p, 3 * p)), 1, 1, 1).peak == p)
        assert run(build("zb-h2", Shape(p, 3 * p)), 1, 1, 1).peak.max() == 2 * p - 1


@pytest.mark.parametrize(
    ("name", "shape_", "makespan"),
    [("1f1b", Shape(4, 8), 33), ("zb-h1", Shape(4, 8), 27), ("interleaved", Shape(4, 8, 2), 28.5)],
)
def test_minpp_victarry_elf_zbpp_light_and_heteropipe_agree_at_p_4_m_8(name, shape_, makespan):
    assert run(build(name, shape_), 1, 1, 1).makespan == makespan


def test_deepseek_v3_figure_5_dualpipe_on_8_ranks_with_20_micro_batches():
    ours = run(build("dualpipe", Shape(8, 20)), 1, 1, 1, pair=3)
    assert ours.makespan == 66
    assert ours.idle.max() == 6
    assert ours.peak.max() == 9


def test_olmo_table_10_1f1b_v_holds_6_chunks_where_interleaved_holds_11_9_7_5_and_idles_23_8_for_15_8_percent():
    v, loop = (run(build(name, Shape(4, 8, 2)), 2, 2, 2) for name in ("1f1b-v", "interleaved"))
    assert list(v.peak * 2) == [6, 6, 6, 6]
    assert list(loop.peak * 2) == [11, 9, 7, 5]
    assert round(v.idle.mean() / v.makespan, 3) == 0.238
    assert round(loop.idle.mean() / loop.makespan, 3) == 0.158
