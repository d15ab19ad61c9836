"""The validated path is the user's path: ``plan`` with a row's options predicts the same as ``validate`` does."""

import pytest

import debubble
from debubble.config.config import RECIPE
from debubble.estimate.read_model import read_model
from debubble.planning.runs import read_runs
from debubble.planning.validate import as_they_fit, is_to_be_trusted, simulated_steps

DEGREES = ("tensor", "pipeline", "data", "context", "chunks", "micro_batch", "schedule", "zero", "sequence")
FIXED = ("tensor", "pipeline", "context", "expert", "chunks", "micro_batch")


def planned(run, model):
    """What ``plan`` says of the layout of a row: its step and its bytes."""
    layout, cluster = run.layout, run.cluster
    said = {name: getattr(layout, name) for name in (*DEGREES, *RECIPE)}
    if layout.chunks == 1 or layout.pipeline == 1:
        del said["chunks"]
    if run.model.experts:
        said |= {"expert": layout.expert, "expert_tensor": layout.expert_shards}
    # An empty precision of gradients is that of the framework; an option has no empty word.
    said = {name: value for name, value in said.items() if value not in ("", ())}
    found = debubble.plan(
        model=str(model),
        gpu=cluster.device.name,
        gpus=layout.gpus,
        nic=cluster.nic,
        global_batch=layout.global_batch,
        top=400,
        **said,
    )
    split = layout.layers or layout.split(run.model.layers)
    wanted = (split, layout.recompute_layers)
    return next(one for one in found.candidates if (one.layers or split, one.recompute_layers) == wanted)


@pytest.mark.parametrize("name", ["dgxc", "megatron bridge", "misc"])
def test_plan_predicts_of_a_row_what_validate_predicts(published, name):
    runs = as_they_fit(read_runs(published / f"{name}.csv").runs)
    runs = [run for run in runs if is_to_be_trusted(run) and run.layout.gpus <= 256 and is_usual(run.cluster)]
    runs = [run for run in runs if is_known(run.model)]
    chosen = runs[:: max(len(runs) // 4, 1)]
    steps, peaks = simulated_steps(chosen)
    assert len(chosen) >= 3
    for run, seconds, peak in zip(chosen, steps, peaks, strict=True):
        found = planned(run, run.model.name)
        assert found.step_ms == pytest.approx(1e3 * seconds, rel=1e-6), run.source
        assert found.peak_bytes == pytest.approx(peak, rel=1e-6), run.source


def is_usual(cluster):
    """Whether its nodes are those that its vendor sells, so that no option need say them."""
    return cluster.gpus_per_node == cluster.device.domain


def is_known(model):
    try:
        return read_model(model.name) == model
    except debubble.InputError:
        return False
