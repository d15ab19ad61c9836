"""How fast schedules are made, lowered and simulated, beside what PyTorch needs to make the same orders.

Run by `make bench`.
"""

import pytest

from debubble import Rates, Shape, build, costs_of, lower, simulate
from debubble.schedules.catalog import CATALOG

USUAL = Shape(16, 128)
TORCH = {
    "interleaved": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
    "looped-bfs": "LoopedBFS",
}


def chunked(name: str) -> Shape:
    return Shape(USUAL.ranks, USUAL.microbatches, 2) if name in TORCH else USUAL


@pytest.mark.parametrize("name", CATALOG)
def test_build_16_ranks_128_microbatches(benchmark, name):
    benchmark.group = "build, 16 x 128"
    made = benchmark(build, name, chunked(name))
    assert len(made) >= 16 * 128
    told_by_op(benchmark, name, made)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("zb-auto", Shape(64, 256)),
        ("zb-v-auto", Shape(32, 128)),
        ("v-half", Shape(16, 1024)),
        ("v-half", Shape(256, 64)),
        ("v-min", Shape(256, 64)),
    ],
)
def test_build_what_is_placed_op_by_op(benchmark, name, shape):
    benchmark.group = "build, op by op"
    told_by_op(benchmark, f"{name} {shape.ranks} x {shape.microbatches}", benchmark.pedantic(build, (name, shape)))


def told_by_op(benchmark, name, made):
    """The median in nanoseconds an op, beside the table of pytest-benchmark (shown with ``-s``)."""
    if benchmark.stats is not None:  # None under --benchmark-disable
        each = 1e9 * benchmark.stats.stats.median / len(made)
        benchmark.extra_info["ns_an_op"] = each
        print(f"{name}: {each:,.0f} ns an op")


@pytest.mark.parametrize("name", CATALOG)
def test_build_lower_and_simulate_16_ranks_128_microbatches(benchmark, name):
    benchmark.group = "build, lower, simulate, 16 x 128"

    def whole() -> int:
        schedule = build(name, chunked(name))
        return simulate(lower(schedule), costs_of(Rates(), schedule)).makespan

    assert benchmark(whole) > 0


@pytest.mark.parametrize("name", TORCH)
def test_torch_makes_the_order_of_16_ranks_128_microbatches(benchmark, name):
    pytest.importorskip("torch")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    benchmark.group = "build, 16 x 128"
    rows = benchmark.pedantic(get_schedule_ops, (TORCH[name], 16, 128, 2), rounds=1)
    assert len(rows) == 16


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved"])
def test_build_1024_ranks_8192_microbatches(benchmark, name):
    benchmark.group = "build, 1,024 x 8,192"
    assert len(benchmark.pedantic(build, (name, Shape(1024, 8192)), rounds=1)) >= 16_777_216
