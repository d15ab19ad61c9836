"""What ``synth`` finds runs on torch.distributed.pipelining, and its gradients are those of one process."""

import json
import subprocess
import sys

import pytest

import debubble

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
