"""Megatron-Core's and DeepSpeed's own schedules with a slow link, run here: the step is what their engine predicts."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ["Megatron-Core 1F1B", "Megatron-Core interleaved", "DeepSpeed 1F1B", "torch 1F1B", "torch interleaved"]


@pytest.fixture
def loops():
    spec = importlib.util.spec_from_file_location("real_engines", BENCHMARKS / "real_engines.py")
    module = sys.modules["real_engines"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.clock
@pytest.mark.frameworks
@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_a_slow_link_costs_what_the_engine_predicts_and_not_what_a_latency_would(loops, shared, name):
    """Figures of a quiet machine are within 5 % (docs); here only the order is held."""
    (loop,) = [each for each in loops.LOOPS if each.name == name]
    package = {"DeepSpeed": "deepspeed", "Megatron-Core": "megatron.core", "torch": "torch"}[name.split()[0]]
    pytest.importorskip(package, reason=f"{package} is not installed")
    none, some, much = loops.run(loop, shared / "clients", sys.executable, steps=6)
    assert none.measured_ms < some.measured_ms < much.measured_ms
    assert abs(much.predicted_ms - much.measured_ms) < abs(much.ideal_ms - much.measured_ms)
    assert much.measured_ms - none.measured_ms > much.ideal_ms - none.ideal_ms


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        # By hand: rank 2 and rank 3 hand over there and back for each of 8 micro-batches, in the steady phase 6 times.
        ("Megatron-Core 1F1B", [660, 750, 930]),
        ("DeepSpeed 1F1B", [660, 820, 1140]),
    ],
)
def test_predictions_without_a_message_of_its_own(loops, name, windows):
    (loop,) = [each for each in loops.LOOPS if each.name == name]
    assert [round(loops.predicted(loop, loop.engine, 0.0, delay)) for delay in (0, 10, 30)] == windows


def test_what_is_fitted_makes_the_run_without_delay_come_out(loops):
    for loop in loops.LOOPS:
        quiet = loops.predicted(loop, loop.engine, 1.5, 0.0)
        assert loops.fit(loop, loop.engine, quiet) == pytest.approx(1.5, abs=1e-3)
