"""Instances as the published tables write them."""

import numpy as np

import debubble
from debubble import Costs
from debubble.core.bounds import Instance, no_limit
from debubble.core.schedule import KINDS, Kind, Release, loop_placement, v_placement
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


def instance(spent, hop=0, *, m, room=None, placement=None, split=True, release=Release.W):
    """F, I and W of each stage in units, one hop for all links, room in half activations of each rank."""
    stages = len(spent[0])
    placement = np.arange(stages, dtype=np.int32) if placement is None else np.array(placement, np.int32)
    durations = np.zeros((KINDS, stages, 1), np.int64)
    durations[: len(spent), :, 0] = spent
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    costs = Costs(durations, np.full((KINDS, stages, 1), hop, np.int64))
    room = no_limit(placement, m) if room is None else np.array(room, np.int64)
    return Instance(placement, m, costs, room, split=split, release=release)


def shortest(inst):
    """The makespan of the best order, by trying every one: each op is appended when it is next in its kind and stage.

    Written for itself, on lists and without a clock of rounds: what is appended starts as soon as it can.
    """
    kinds, stages, m = len(inst.kinds), inst.stages, inst.microbatches
    home, spent, hop, frees = inst.placement.tolist(), inst.spent, inst.hop, inst.frees.tolist()
    best = [10**9]

    def input_of(kind, stage, i, end):
        if kind == 2:
            return end.get((1, stage, i))
        if kind == 0:
            return (
                0 if stage == 0 else None if (0, stage - 1, i) not in end else end[0, stage - 1, i] + hop[0, stage, i]
            )
        if stage == stages - 1:
            return end.get((0, stage, i))
        return None if (1, stage + 1, i) not in end else end[1, stage + 1, i] + hop[1, stage, i]

    def go(done, now, held, end):
        if sum(done.values()) == kinds * stages * m:
            best[0] = min(best[0], max(now))
            return
        for (kind, stage), i in done.items():
            rank = home[stage]
            if i == m or max(now) >= best[0]:
                continue
            ready = input_of(kind, stage, i, end)
            if ready is None or held[rank] + frees[kind] > inst.room[rank]:
                continue
            start = max(now[rank], ready)
            # Orders are enumerated once: what is appended must not end before what other ranks have begun already.
            if start < max(end.get("last", 0), 0):
                continue
            later = dict(end)
            later[kind, stage, i] = start + int(spent[kind, stage, i])
            later["last"] = start
            clock, kept = list(now), list(held)
            clock[rank], kept[rank] = later[kind, stage, i], held[rank] + frees[kind]
            go({**done, (kind, stage): i + 1}, clock, kept, later)

    go({(k, s): 0 for k in range(kinds) for s in range(stages)}, [0] * inst.ranks, [0] * inst.ranks, {})
    return best[0]


def drawn(seed):
    """A tiny instance: 2 ranks, 2 or 3 micro-batches, random times, hops, room and release."""
    draw = np.random.default_rng(seed)
    chunks = int(draw.integers(1, 3))
    m = 2 if chunks == 2 else int(draw.integers(2, 4))
    placement = [0, 1] if chunks == 1 else [[0, 1, 1, 0], [0, 1, 0, 1]][int(draw.integers(2))]
    spent = draw.integers(1, 9, (3, 2 * chunks))
    release = [Release.W, Release.HALF, Release.I][int(draw.integers(3))]
    room = [int(draw.integers(2 * chunks, 2 * chunks * m + 1)) for _ in range(2)]
    if m == 3:
        spent[2] = 0  # else there are too many orders to try
    split = chunks == 1  # two chunks with full backwards, for the same reason
    return instance(spent, int(draw.integers(0, 6)), m=m, room=room, placement=placement, split=split, release=release)


def found_beside(row, evaluations):
    """What is found under the peak, the placement and the rule of release of a row of ``uniform_costs.csv``."""
    chunks = int(row["chunks"])
    placement = "linear"
    if chunks > 1:
        placement = "v" if row["schedule"].startswith(("ZB-V", "V-")) else "loop"
    return debubble.synth(
        ranks=int(row["p"]),
        microbatches=int(row["m"]),
        chunks=chunks,
        placement=placement,
        **{"forward": row["F"], "input": row["B"], "weight": row["W"], "transfer": row["comm"]},
        cap=row["peak_mem_mb_equiv"],
        release="half" if "auto_schedule" in row["tool"] else "w",
        evaluations=evaluations,
    )
