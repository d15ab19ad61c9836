"""Intervals: the error that is printed is the error of published runs of the nearest kind, tested on others."""

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.planning.runs import read_runs
from debubble.planning.validate import as_they_fit, coverage, is_to_be_trusted, kind_of, simulated_steps, steps_measured
from debubble.planning.verdict import LEAST, NOTHING_LIKE_IT, intervals, nearest, published, traits, written
from debubble.planning.verdict import published as published_intervals


def kind(gpu="H100", framework="nemo", model="llama3-8b", **layout):
    return traits(read_model(model), cluster_of(read_hardware(gpu), 8), Layout(**layout), framework)


def test_68_of_100_runs_of_a_kind_lie_in_its_interval():
    ratios = 1 / (1 + np.arange(1, 101) / 1000)  # measured 0.1 to 10 % above predicted
    found = intervals([kind()] * 100, ratios)
    assert found[0].band == pytest.approx(0.0683, abs=1e-3)
    assert found[0].bias == pytest.approx(1 / 1.0505, rel=1e-3)


def test_a_kind_that_few_runs_vouch_for_is_held_against_a_wider_one():
    runs = [kind()] * LEAST + [kind(precision="fp8")] * 3
    ratios = np.array([1.1] * LEAST + [1.3] * 3)
    found = nearest(kind(precision="fp8"), intervals(runs, ratios))
    assert found.kind == {"device": "H100", "framework": "nemo", "experts": "dense"}
    assert found.rows == LEAST + 3


def test_a_framework_that_nobody_ran_on_a_device_gets_the_error_of_all_on_it():
    found = nearest(kind(framework="somebody's"), published())
    assert "framework" not in found.kind
    assert found.kind["device"] == "H100"


@pytest.mark.parametrize("gpu", ["MI300X", "MI355X"])
def test_nothing_like_a_device_that_no_published_run_is_on_was_validated(gpu):
    assert nearest(kind(gpu), published()) is NOTHING_LIKE_IT
    assert "nothing like it was validated" in NOTHING_LIKE_IT.said


def test_the_file_reads_as_it_was_written():
    text = written(published(), "here")
    assert text.count("[[kind]]") == len(published())
    assert min(one.rows for one in published()) >= LEAST


def trusted(published_folder, name):
    runs = as_they_fit(read_runs(published_folder / f"{name}.csv").runs)
    return [run for run in runs if is_to_be_trusted(run)]


@pytest.mark.parametrize(
    "name",
    [
        *("bigscience", "vtrain multi", "misc", "megatron bridge", "dgxc", "llm foundry"),
        pytest.param("ultrascale clean", marks=pytest.mark.slow),
        pytest.param("vtrain single", marks=pytest.mark.slow),
    ],
)
def test_the_68_percent_interval_holds_60_to_76_percent_of_rows_that_were_not_used(published, name):
    runs = trusted(published, name)
    assert 0.60 <= coverage(runs, simulated_steps(runs)[0]) <= 0.76, runs[0].source


def kinds_and_ratios(published_folder, names):
    kinds, ratios = [], []
    for name in names:
        runs = trusted(published_folder, name)
        kinds += [kind_of(run) for run in runs]
        ratios += (simulated_steps(runs)[0] / steps_measured(runs)).tolist()
    return kinds, np.array(ratios)


def of_the_file(found):
    """The same kinds as ``validated.toml`` has them; the file prints 4 digits."""
    kept = {tuple(sorted(one.kind.items())): one for one in published_intervals()}
    return [kept[tuple(sorted(one.kind.items()))] for one in found]


SMALL = ("dgxc", "llm foundry", "megatron bridge", "misc")


@pytest.mark.parametrize("large", [(), pytest.param(("bigscience", "ultrascale clean"), marks=pytest.mark.slow)])
def test_the_intervals_that_are_printed_are_the_errors_of_this_estimate(published, large):
    """Else ``data/validated.toml`` is stale: run benchmarks/planner/intervals.py."""
    tables = (*SMALL, *large, *(("vtrain multi", "vtrain single") if large else ()))
    found = intervals(*kinds_and_ratios(published, tables))
    if not large:  # runs on A100 and H100 are in the other tables too
        found = [one for one in found if one.kind["device"][:4] not in ("A100", "H100")]
    assert len(found) >= 8
    for now, said in zip(found, of_the_file(found), strict=True):
        assert now.rows == said.rows, now.kind
        assert (now.band, now.bias) == (pytest.approx(said.band, abs=6e-5), pytest.approx(said.bias, abs=6e-5)), (
            now.kind
        )
