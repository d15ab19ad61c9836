"""Calibration: factors are found again, what rows do not say stays with its prior, outliers count less."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.core.errors import InputError
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import GENERIC, PRIOR, Factor
from debubble.planning.calibrate import calibrate, predict
from debubble.planning.runs import Run

LAYOUTS = [
    Layout(tensor=8, data=8, microbatches=16),
    Layout(tensor=4, data=16, microbatches=8),
    Layout(tensor=2, pipeline=4, data=8, microbatches=16),
    Layout(tensor=1, pipeline=8, data=8, microbatches=16),
    Layout(tensor=8, pipeline=2, data=4, microbatches=2),
]


def rows_of(truth):
    model, cluster = read_model("llama3-8b"), cluster_of(read_hardware("H100"), 64)
    rows = [Run(model, cluster, layout, ("one",), "made") for layout in LAYOUTS]
    return [replace(row, seconds=s) for row, s in zip(rows, predict(rows, truth)[0], strict=True)]


def test_a_slower_machine_is_found_again():
    found = calibrate(rows_of(replace(GENERIC, kernels=Factor(1.3))))
    assert found.kernels.value == pytest.approx(1.3, rel=0.06)
    assert found.kernels.error / found.kernels.value < PRIOR["kernels"] / 2


def test_slow_links_are_told_from_slow_kernels():
    found = calibrate(rows_of(replace(GENERIC, tensor=Factor(2.0))))
    assert found.tensor.value - 1 > 3 * abs(found.kernels.value - 1)
    assert abs(found.tensor.value - 2) < 2 * found.tensor.error


def test_what_no_row_depends_on_stays_as_it_was():
    alone = [row for row in rows_of(GENERIC) if row.layout.pipeline == 1]
    found = calibrate(alone)
    assert found.transfer.value == pytest.approx(1.0, abs=1e-6)
    assert found.transfer.error == pytest.approx(PRIOR["transfer"], rel=1e-3)


def test_calibrated_predictions_are_nearer_than_generic_ones():
    truth = replace(GENERIC, kernels=Factor(1.2), tensor=Factor(1.6), data=Factor(2.0))
    rows = rows_of(truth)
    measured = np.array([row.seconds for row in rows])
    before, after = predict(rows)[0], predict(rows, calibrate(rows))[0]
    assert np.abs(after / measured - 1).mean() < np.abs(before / measured - 1).mean() / 3


def test_one_run_gone_wrong_does_not_bend_the_rest():
    rows = rows_of(GENERIC)
    rows[0] = replace(rows[0], seconds=3 * rows[0].seconds)
    assert calibrate(rows).kernels.value == pytest.approx(1.0, abs=0.1)


def test_memory_has_one_factor_of_its_own():
    rows = rows_of(GENERIC)
    peaks = predict(rows)[1]
    rows = [replace(row, memory=1.25 * peak) for row, peak in zip(rows, peaks, strict=True)]
    assert calibrate(rows).memory.value == pytest.approx(1.25)


def test_rows_without_a_step_time_are_refused():
    with pytest.raises(InputError, match="step time"):
        calibrate([replace(row, seconds=0.0) for row in rows_of(GENERIC)])


SMALL = {"sequence": 512, "microbatches": 16}
ACROSS = [
    Layout(tensor=8, pipeline=4, data=2, **SMALL),
    Layout(tensor=4, pipeline=4, data=4, **SMALL),
    Layout(tensor=8, data=8, **SMALL),
    Layout(tensor=4, data=16, **SMALL),
    Layout(pipeline=8, data=8, **SMALL),
]


def test_hosts_that_wait_where_a_pipeline_spans_nodes_are_told_from_slow_hosts(monkeypatch):
    monkeypatch.setattr(f"{__name__}.LAYOUTS", ACROSS)
    waits, slow = (calibrate(rows_of(replace(GENERIC, **{name: Factor(2.5)}))) for name in ("stall", "floor"))
    assert waits.stall.value == pytest.approx(2.5, rel=0.15)
    assert waits.floor.value == pytest.approx(1, abs=0.1)
    assert slow.floor.value > 1.8
    assert slow.stall.value == pytest.approx(1, abs=0.35)


def test_where_no_pipeline_spans_nodes_nothing_is_said_of_it():
    alone = [row for row in rows_of(GENERIC) if row.layout.pipeline == 1]
    found = calibrate(alone)
    assert (found.stall.value, found.stall.error) == (pytest.approx(1), pytest.approx(PRIOR["stall"], rel=1e-3))
