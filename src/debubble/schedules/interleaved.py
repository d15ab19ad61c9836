"""Interleaved 1F1B: several chunks a rank shorten fill and drain by their number, for as many times the transfers.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
https://arxiv.org/abs/2104.04473, section 2.2 and figure 4; the group size as in Megatron-LM's
``microbatch_group_size_per_vp_stage``.

Stage = chunk x p + rank. Steps, on rank r of p with v chunks, m micro-batches in groups of N:
    (1) k-th forward: group g = k div (N v), chunk (k mod N v) div N, micro-batch g N + (k mod N);
        k-th backward: the same with the chunk mirrored, v-1-chunk
    (2) warm-up: w = 2(p-1-r) + (v-1)N forwards, or all
    (3) steady: one forward, one backward
    (4) cool-down: the backwards that are left
"""

from __future__ import annotations

import numpy as np

from ..errors import Fault, InputError
from ..schedule import Schedule, Shape, loop_placement
from .alternate import alternate


def interleaved(shape: Shape) -> Schedule:
    """Interleaved 1F1B in Megatron's order with groups of p.

    Raises:
        InputError: m is not a multiple of p.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    if m % p:
        near = [f"{n}" for n in (m // p * p, (m // p + 1) * p) if n]
        raise InputError(
            Fault(
                f"microbatches = {m}",
                f"interleaved takes them in groups of {p}, one for each rank",
                f"give a multiple of {p}; nearest: {' or '.join(near)}",
            )
        )
    turns = np.arange(m * v, dtype=np.int32)
    chunk = turns % (p * v) // p
    microbatch = turns // (p * v) * p + turns % p
    ranks = np.arange(p, dtype=np.int32)[:, None]
    warm_up = np.minimum(2 * (p - 1 - ranks[:, 0]) + (v - 1) * p, m * v)
    kind, turn = alternate(warm_up, m * v)
    from_first = np.where(kind == 0, chunk[turn], v - 1 - chunk[turn])
    return Schedule(
        name="interleaved",
        source="generated",
        microbatches=m,
        placement=loop_placement(p, v),
        offsets=np.arange(p + 1, dtype=np.int64) * (2 * m * v),
        kind=kind.ravel(),
        stage=(from_first * p + ranks).ravel(),
        unit=microbatch[turn].ravel(),
    )
