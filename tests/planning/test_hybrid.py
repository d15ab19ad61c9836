"""Hybrid models: layers cost what they are, splits balance them, and frameworks are told them by their letters."""

from itertools import pairwise

import numpy as np
import pytest

import debubble
from debubble.estimate.model import Attention, Recurrent, core_flops, layer_flops
from debubble.estimate.read_model import read_model
from debubble.planning.runs import read_runs
from debubble.planning.splits import candidate_splits, head_in_layers
from debubble.planning.validate import as_they_fit, is_to_be_trusted, simulated_steps

NANO = "nemotron-3-nano-30b-a3b"


@pytest.fixture(scope="module")
def sixteen():
    return debubble.plan(model=NANO, gpu="h100", gpus=16, global_batch=64, emit="megatron", pipeline=4, tensor=1)


def test_nemotron_3_nano_fits_on_16_h100(sixteen):
    assert sixteen.best.peak_bytes < sixteen.device_bytes
    assert sixteen.parameters == pytest.approx(31.6e9, rel=0.02)
    assert sixteen.active_parameters == pytest.approx(3.6e9, rel=0.02)


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_what_is_emitted_for_a_hybrid_is_legal_there_and_cuts_its_letters(framework, tmp_path):
    found = debubble.plan(model=NANO, gpu="h100", gpus=16, global_batch=64, emit=framework, pipeline=4, tensor=1)
    letters = read_model(NANO).letters
    written = found.emit.split("'")
    pattern = next(word for word in written if "|" in word)
    assert pattern.replace("|", "") == letters
    file = tmp_path / ("train.sh" if framework == "megatron" else "train.py")
    # What is emitted says the layout; the model's own experts stand in the user's script.
    experts = {"megatron": " \\\n  --num-experts 128\n", "nemo": "\ncfg.model.num_moe_experts = 128\n"}[framework]
    file.write_text(found.emit.rstrip("\n") + experts)
    checked = debubble.check(str(file), framework=framework)
    assert not checked.faults, checked.faults


def test_measured_steps_of_nemotron_3_nano_on_16_h100_are_met_within_10_percent(published):
    """Megatron-Bridge's performance summary: 35.2 to 36.6 s; nothing was fitted on a hybrid."""
    runs = as_they_fit(read_runs(published / "megatron bridge.csv").runs)
    runs = [
        run for run in runs if run.model.name == NANO and run.cluster.device.name == "H100" and is_to_be_trusted(run)
    ]
    steps, peaks = simulated_steps(runs)
    assert len(runs) == 4
    assert np.abs(steps / [run.seconds for run in runs] - 1).max() < 0.10, runs[0].source
    assert peaks.max() < runs[0].cluster.device.usable


def test_a_split_of_a_hybrid_evens_out_work_where_as_many_layers_do_not():
    model = read_model("nemotron-h-8b")
    of_kind = [layer_flops(model, kind, 8192.0) for kind in model.kinds]
    weights = np.array([of_kind[place] for place in model.pattern])
    weights[-1] += 2.0 * model.hidden * model.vocab

    def heaviest(split):
        edges = np.cumsum([0, *split])
        return max(weights[a:b].sum() for a, b in pairwise(edges))

    found = candidate_splits(model, 4, 1, 8192)
    assert min(map(heaviest, found)) < heaviest(found[0])
    assert all(sum(split) == 52 for split in found)
    assert head_in_layers(model, 8192) > 0


@pytest.mark.parametrize(("sequence", "seen"), [(512, 256), (4096, 1024 - 1024**2 / 8192)])
def test_a_causal_token_sees_half_of_what_is_before_it_or_its_window(sequence, seen):
    model, mixer = read_model("gemma-3-27b"), Attention(32, 16, 128, window=1024)
    assert core_flops(model, mixer, float(sequence)) == pytest.approx(4 * 32 * 128 * seen)
    hand = np.mean([min(token + 0.5, 1024) for token in range(sequence)])
    assert seen == pytest.approx(hand, rel=1e-3)


def test_a_recurrence_costs_a_token_as_much_whatever_the_length():
    model, mixer = read_model(NANO), Recurrent(64, 64, 128, 8)
    assert core_flops(model, mixer, 1024.0) == core_flops(model, mixer, 1e6)
