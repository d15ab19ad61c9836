"""ZB-1p, ZB-2p and the automatic ZB-V against the published tool, the paper's rates, and what GPUs did."""

import csv

import pytest

from debubble import Rates, Release, Schedule, Shape, account, build, costs_of, lower, peak_activations, simulate
from debubble.schedules.zb_auto import zb_auto, zb_v_auto

UNIT = 1_000_000  # a unit of the published tables, in nanoseconds
SEARCH = {"ZB-1p": (zb_auto, 1), "ZB-2p": (zb_auto, 1), "ZB-V (auto)": (zb_v_auto, 2)}


def table(shared, name):
    with (shared / "data" / "schedules" / name).open() as file:
        return list(csv.DictReader(file))


def rates(row, columns):
    forward, first, weight, transfer = (float(row[column]) * UNIT for column in columns)
    return Rates(forward, input=first, weight=weight, transfer=transfer)


def accounted(schedule: Schedule, speed: Rates):
    return account(simulate(lower(schedule), costs_of(speed, schedule)))


def span(its):
    return int((its.window - its.warm_up - its.cool_down).max()) / UNIT


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCH)
def test_makespan_span_and_peak_of_uniform_costs(shared, name):
    rows = [row for row in table(shared, "uniform_costs.csv") if row["schedule"] == name]
    assert len(rows) == 48
    search, chunks = SEARCH[name]
    for row in rows:
        speed = rates(row, ("F", "B", "W", "comm"))
        schedule = search(Shape(int(row["p"]), int(row["m"]), chunks), speed, cap=float(row["mem_cap"]))
        its = accounted(schedule, speed)
        got = its.window / UNIT, span(its), peak_activations(schedule, Release.HALF).max()
        published = [float(row[column]) for column in ("makespan", "max_span", "peak_mem_mb_equiv")]
        assert got == pytest.approx(published, abs=1e-4), row


PROFILE = ("T_F", "T_B", "T_W", "T_comm")


@pytest.mark.parametrize(("name", "cap"), [("ZB-1p", "1p"), ("ZB-2p", "2p")])
def test_zero_bubble_table_5_to_four_decimals(shared, name, cap):
    rows = [row for row in table(shared, "zb_table5_reproduction.csv") if row["schedule"] == name]
    assert len(rows) == 6
    for row in rows:
        speed = rates(row, PROFILE)
        its = accounted(zb_auto(Shape(int(row["p"]), int(row["m"])), speed, cap=cap), speed)
        rate = round(its.span_idle_share, 4)
        assert rate == float(row["reproduced"]) == float(row["paper_bubble_rate"]), row


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cap", "within"), [("ZB-1p", "1p", 0.03), ("ZB-2p", "2p", 0.06)])
def test_speed_up_over_1f1b_is_what_zero_bubble_table_4_measured_on_gpus(shared, name, cap, within):
    throughput = {
        (row["model"], row["m"], row["schedule"]): float(row["measured_samples_per_gpu_s"])
        for row in table(shared, "zb_sim_vs_measured_throughput.csv")
    }
    profiles = table(shared, "zb_iclr2024_table5_6_bubble_from_profile.csv")
    rows = [row for row in profiles if row["schedule"] == name]
    assert len(rows) == 12
    for row in rows:
        shape, speed = Shape(int(row["p"]), int(row["m"])), rates(row, PROFILE)
        predicted = span(accounted(build("1f1b", shape), speed)) / span(
            accounted(zb_auto(shape, speed, cap=cap), speed)
        )
        here = row["model"], row["m"]
        measured = throughput[*here, name] / throughput[*here, "1F1B"]
        assert predicted == pytest.approx(measured, rel=within), row
