"""What ``synth`` finds runs on torch.distributed.pipelining, and its gradients are those of one process."""

import json
import subprocess
import sys

import pytest

import debubble
from debubble import Rates, Release, Shape, build, costs_of, lower, simulate
from debubble.core.units import read_hops
from debubble.verbs.arguments import duration

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")
TEN = {"forward": "10ms", "input": "10ms", "weight": "10ms"}
FOUND = {
    "uneven": {"forward": "9,13,10,12", "input": "12,15,11,14", "weight": "6,9,7,8"},
    "hop": {"transfer": "3ms"},
    "low cap": {"cap": 2},
    "two chunks": {"chunks": 2, "placement": "v", "cap": 1.5},
    "jitter": {"jitter": "5%", "cap": 3},
    "slow link": {"transfer": "1-2=20ms", "engine": "torch"},
}


@pytest.mark.parametrize("name", FOUND)
def test_loss_and_gradients_equal_one_process(name, tmp_path):
    found = debubble.synth(ranks=4, microbatches=8, evaluations=3_000, **{**TEN, **FOUND[name]})
    path = tmp_path / "found.csv"
    found.write("torch-csv", path)
    words = ["run", "--schedule", str(path), "--check", "--json", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "debubble", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["gradient_error"] < 1e-6
    assert made["microbatches"] == 8


@pytest.mark.clock
@pytest.mark.parametrize(
    ("given", "gain"), [({"cap": 3}, 740 / 620), ({"cap": 4, "transfer": "1-2=40ms"}, 780 / 700)], ids=["cap", "link"]
)
def test_a_found_order_is_faster_on_the_clock_than_the_best_of_the_catalog(given, gain, tmp_path):
    """F = I = W = 20 ms on four processes, runs of both orders in turn.

    Their shortest steps are compared: what else a machine does can only lengthen a step whose ops are stretched.
    """
    found = debubble.synth(ranks=4, microbatches=8, evaluations=5_000, **dict.fromkeys(TEN, "20ms"), **given)
    assert found.gain_ratio == pytest.approx(gain)
    hop = read_hops(given.get("transfer", "0ms"), "transfer", duration)
    speed = Rates(2e7, input=2e7, weight=2e7, transfer=hop)
    known = build(found.best_known, Shape(4, 8), speed, cap=given["cap"], release=Release.W)
    assert simulate(lower(known), costs_of(speed, known)).makespan == round(found.best_known_ms * 1e6)
    steps = {"found": [], "known": []}
    for turn in range(3):
        for name, order in (("found", found.order), ("known", known)):
            folder = tmp_path / f"{name}{turn}"
            debubble.run(
                schedule=order, pace="F=20ms,I=20ms,W=20ms", transfer=given.get("transfer", 0), steps=3, out=folder
            )
            steps[name] += [window.timeline.makespan for window in debubble.read(folder).windows]
    measured = {name: min(taken) / 1e6 for name, taken in steps.items()}
    print(f"predicted {found.makespan_ms:.0f} and {found.best_known_ms:.0f} ms, least {measured}, all {steps}")
    assert measured["found"] < measured["known"]
    assert measured["found"] >= 0.98 * found.makespan_ms  # ops are stretched, never cut
