"""Many costs in one sweep: the windows that simulation gives, one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.costs import Costs
from debubble.core.lower import lower
from debubble.core.op import KINDS
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.core.simulate_many import simulate_many
from debubble.schedules.catalog import build

SHAPES = [("1f1b", 4, 6, 1), ("interleaved", 3, 6, 2), ("zb-h1", 4, 8, 1), ("zb-v", 3, 6, 2), ("dualpipe-v", 2, 6, 2)]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), sets=st.integers(1, 5))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s[0])
def test_a_sweep_of_many_costs_gives_the_windows_of_each_alone(shape, seed, sets):
    name, ranks, microbatches, chunks = shape
    program = lower(build(name, Shape(ranks, microbatches, chunks)))
    random = np.random.default_rng(seed)
    durations, transfers = random.integers(0, 100, (2, sets, KINDS, ranks * chunks))
    costs = [Costs(d[:, :, None], t[:, :, None]) for d, t in zip(durations, transfers, strict=True)]
    assert simulate_many(program, costs).tolist() == [simulate(program, each).makespan for each in costs]
