"""Instances as the published tables write them."""

import numpy as np

from debubble import Costs
from debubble.core.instance import Instance, no_limit
from debubble.core.schedule import KINDS, Kind, loop_placement, v_placement
from debubble.synthesis.problem import Problem


def instance_of_row(row):
    """The instance of one row of ``ilp_linear.csv`` or ``instances.csv``; without a cap where it has none."""
    p, m = int(row["ranks"]), int(row["microbatches"])
    spent = [[round(float(x) * 1e6) for x in row[key].split()] for key in ("forward_ms", "input_ms", "weight_ms")]
    hops = [round(float(x) * 1e6) for x in row["hop_ms"].split()]
    stages = len(spent[0])
    placement = v_placement(p)[0] if row.get("placement") == "v" else loop_placement(p, stages // p)[0]
    durations, transfers = np.zeros((2, KINDS, stages, 1), np.int64)
    durations[:3, :, 0] = spent
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    transfers[Kind.F, 1:, 0] = transfers[Kind.I, :-1, 0] = hops if len(hops) > 1 else hops * (stages - 1)
    transfers[Kind.B] = transfers[Kind.I]
    room = np.full(p, 2 * int(row["cap"]), np.int64) if "cap" in row else no_limit(placement, m)
    return Instance(placement, m, Costs(durations, transfers), room)


def random_problem(seed):
    """p 4 to 8, m 8 to 16, a cap of .5p to p, one stage in four instances heavy."""
    draw = np.random.default_rng(seed)
    ranks, microbatches = int(draw.integers(4, 9)), int(draw.integers(8, 17))
    spent = draw.uniform(8, 14, (3, 1)) * draw.uniform(0.8, 1.2, ranks)
    if seed % 4 == 0:
        spent[:, draw.integers(ranks)] *= 1.5
    durations, hops = np.zeros((KINDS, ranks, 1), np.int64), np.zeros((KINDS, ranks, 1), np.int64)
    durations[:3, :, 0] = np.rint(spent * 100) * 10_000
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    hop = int(draw.choice([0, 500_000, 2_000_000]))
    hops[Kind.F, 1:], hops[Kind.I, :-1] = hop, hop
    room = np.full(ranks, 2 * int(draw.integers(-(-ranks // 2), ranks + 1)), np.int64)
    return Problem(Instance(np.arange(ranks, dtype=np.int32), microbatches, Costs(durations, hops), room))
