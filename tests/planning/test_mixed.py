"""Mixed devices: the ranks of a pipeline lie on devices of several kinds, in the order in which these are listed."""

from dataclasses import replace

import pytest

import debubble
from debubble.config.config import Layout
from debubble.core.units import Hops
from debubble.estimate.hardware import cluster_of, mixed_cluster, read_hardware
from debubble.estimate.read_model import read_model
from debubble.planning.judge import Wiring, judge
from debubble.planning.splits import split_by_speed

MODEL = read_model("llama2-7b")
FREE = Wiring(hops=Hops())


def cluster(*names, each=8, per_node=8):
    parts = tuple(cluster_of(read_hardware(name), each, gpus_per_node=per_node, nic=25e9) for name in names)
    return mixed_cluster(parts)


def laid(**sizes):
    return Layout(**{"tensor": 8, "pipeline": 2, "microbatches": 4, "sequence": 4096, "zero": 1, **sizes})


def window(plan):
    """Nanoseconds of the pipeline alone: the step less what lies outside of it."""
    parts = plan.parts
    return plan.step - parts.data - parts.optimizer - parts.fixed


@pytest.mark.parametrize("layout", [laid(), laid(microbatches=16, layers=(20, 12)), laid(tensor=4, data=2)])
def test_two_kinds_that_are_one_are_an_ordinary_cluster(layout):
    whole = cluster_of(read_hardware("a100"), 16, gpus_per_node=8, nic=25e9)
    apart = judge(MODEL, cluster("a100", "a100"), layout)
    together = judge(MODEL, whole, layout)
    assert apart.step == together.step
    assert apart.parts == together.parts
    assert (apart.peak_bytes, apart.fits, apart.mfu) == (
        together.peak_bytes,
        together.fits,
        pytest.approx(together.mfu),
    )


def test_one_micro_batch_passes_each_stage_at_the_speed_of_its_own_device():
    """F0 F1 B1 B0 is the sum of two slots, so H100 then A100 and A100 then H100 together are both alone together."""
    layout = laid(microbatches=1, layers=(20, 12))
    alike = [window(judge(MODEL, cluster(name, name), layout, None, FREE)) for name in ("h100", "a100")]
    mixed = [
        window(judge(MODEL, cluster(*names), layout, None, FREE)) for names in (("h100", "a100"), ("a100", "h100"))
    ]
    assert sum(mixed) == pytest.approx(sum(alike), abs=4)  # to the rounding of each op
    assert mixed[0] < mixed[1]  # the longer stage is on the faster device
    assert alike[0] < min(mixed) < max(mixed) < alike[1]


def test_many_micro_batches_go_at_the_pace_of_the_slower_stage():
    """With even layers each further micro-batch adds the slot of the A100, as on A100 alone."""
    few, many = laid(microbatches=20, layers=(16, 16)), laid(microbatches=60, layers=(16, 16))

    def pace(devices):
        return window(judge(MODEL, devices, many, None, FREE)) - window(judge(MODEL, devices, few, None, FREE))

    assert pace(cluster("h100", "a100")) == pytest.approx(pace(cluster("a100", "a100")), rel=1e-9)


def test_each_rank_must_fit_into_its_own_device():
    heavy_first = laid(tensor=1, data=8, microbatches=2, layers=(31, 1), fused_attention=True)
    roomy, small = read_hardware("h200"), read_hardware("h100")
    small = replace(small, usable=60e9)
    parts = [cluster_of(device, 8, nic=25e9) for device in (roomy, small)]
    first = judge(MODEL, mixed_cluster(tuple(parts)), heavy_first)
    last = judge(MODEL, mixed_cluster(tuple(parts[::-1])), heavy_first)
    assert first.peak_bytes == last.peak_bytes
    assert 60e9 < first.peak_bytes[0] < roomy.usable
    assert first.peak_bytes[1] < 60e9
    assert (first.fits, last.fits) == (True, False)


@pytest.mark.parametrize(
    ("layers", "speeds", "head", "split"),
    [
        (32, (3, 3, 1, 1), 0.0, (12, 12, 4, 4)),
        (32, (1, 1, 1, 1), 0.0, (8, 8, 8, 8)),
        (30, (1, 1, 1, 1), 1.0, (7, 8, 8, 7)),
        (9, (2, 1), 0.0, (6, 3)),
        (4, (9, 1, 1, 1), 0.0, (1, 1, 1, 1)),
    ],
)
def test_layers_are_dealt_by_speed(layers, speeds, head, split):
    assert split_by_speed(layers, speeds, head) == split
    slowest = max((n + head * (s == len(split) - 1)) / speeds[s] for s, n in enumerate(split))
    for stage in range(len(split)):  # no layer can move from the slowest without making another as slow
        there = (split[stage] + 1 + head * (stage == len(split) - 1)) / speeds[stage]
        assert there >= slowest or max(split) == 1


def test_plan_gives_faster_devices_more_layers_and_says_what_was_not_validated():
    asked = {"model": "llama2-7b", "global_batch": 32, "tensor": 1, "pipeline": 4, "micro_batch": 1, "schedule": "1f1b"}
    found = debubble.plan(gpu="h100*4,a100*4", **asked)
    assert found.gpu == "4 x H100 + 4 x A100-80GB"
    best = found.best
    assert best.layers[0] == best.layers[1] > best.layers[2] == best.layers[3]
    even = next(one for one in found.candidates if len(set(one.layers)) == 1 and one.recompute == best.recompute)
    assert best.step_ms < 0.7 * even.step_ms
    assert found.error_band_share is None
    assert "nothing like it was validated" in found.error_of


def test_a_rank_on_two_kinds_is_refused():
    with pytest.raises(debubble.Refusal, match="pipeline 2 would lay one rank on devices of two kinds"):
        debubble.plan(model="llama2-7b", gpu="h100*4,a100*2", global_batch=30, pipeline=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": "h100*4,a100"}, "gpu = a100: several kinds are listed as a name times a number"),
        ({"gpu": "h100*0,a100*4"}, "gpu = h100"),
        ({"gpu": "h100*4,a100*4", "gpus": 16}, "gpus = 16: .* are 8"),
        ({"gpu": "h100*4,a1000*4"}, "a1000"),
    ],
)
def test_lists_that_cannot_be_are_told(given, said):
    with pytest.raises(debubble.InputError, match=said):
        debubble.plan(model="llama2-7b", global_batch=32, **given)
