"""Saved calibrations: what is written reads back, whatever its source is called, and what is no calibration is told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.estimate.setting import GENERIC, Factor
from debubble.planning.calibrate import read_calibration, written


def read(path):
    return read_calibration(path)


def saved(folder, text):
    path = folder / "factors.toml"
    path.write_text(text)
    return path


@given(st.floats(1e-3, 1e3), st.floats(0, 10), st.text(max_size=60))
def test_what_is_written_reads_back(tmp_path_factory, value, error, source):
    made = replace(GENERIC, kernels=Factor(value, error), rows=3, band=0.07, source=source)
    found = read(saved(tmp_path_factory.mktemp("saved"), written(made)))
    assert found.kernels.value == pytest.approx(value, rel=1e-9)
    assert found.kernels.error == pytest.approx(error, rel=1e-5)
    assert (found.rows, found.band, found.source.split()) == (3, 0.07, source.split())


def test_the_bytes_of_a_file_name_that_are_no_text_are_written(tmp_path):
    made = replace(GENERIC, source=b"rows\xff\n\x7f.csv".decode("utf-8", "surrogateescape"))
    assert read(saved(tmp_path, written(made))).source == "rows? \x7f.csv"


@pytest.mark.parametrize(
    "text",
    [
        "kernels = 1.2",
        "kernels = { value = 0, error = 0.1 }",
        "kernels = { value = -1 }",
        "kernels = { value = nan }",
        "kernels = { value = true }",
        "floor = { value = 1, error = 'much' }",
        "band = { value = 0.1 }",
        "rows = -1",
        "a = " + "[" * 20_000,
        "no toml",
    ],
)
def test_what_is_no_calibration_is_one_clear_line(tmp_path, text):
    path = saved(tmp_path, text)
    with pytest.raises(InputError) as error:
        read(path)
    assert [str(path) in fault.value for fault in error.value.faults] == [True]
