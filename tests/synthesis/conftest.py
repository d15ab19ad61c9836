"""Problems with even stages."""

import pytest

from debubble.core.schedule import Release
from debubble.synthesis.problem import Problem
from instances import instance_of_row


@pytest.fixture
def even():
    """A problem with even stages: F, I, W and a hop in ms, a cap of micro-batches, an engine."""

    def make(ranks, microbatches, spent=(10, 10, 10), *, hop=0.0, cap=None, release=Release.W, **given):
        row = {
            "ranks": ranks,
            "microbatches": microbatches,
            "hop_ms": str(hop),
            **{
                key: " ".join([str(each)] * ranks)
                for key, each in zip(("forward_ms", "input_ms", "weight_ms"), spent, strict=True)
            },
        }
        instance = instance_of_row(row | ({} if cap is None else {"cap": cap}))
        return Problem(instance.but(release=release, **given))

    return make
