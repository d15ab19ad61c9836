"""Random legal schedules, and costs for them: what the laws of every verb are tested on.

A schedule is made by running it: all ops that could start are known, one of them (or an overlapped F and B of one
rank) is picked at random and put behind what its rank has done so far. Whatever was picked, the order cannot
deadlock; placement may be uneven, micro-batches come out of order, B stands beside I and W, sequences may be sliced
and two copies of the weights may run against each other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from debubble.core.costs import Costs
from debubble.core.schedule import KINDS, Kind, Op, Schedule, from_rows


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a random schedule is made of; ``seed`` decides placement, the mix of backwards and the order."""

    ranks: int
    stages: int
    microbatches: int
    slices: int
    copies: int
    mode: str  # "fused", "split", "mixed", "forward"
    pairs: bool
    seed: int


def sizes(
    *,
    most_ranks: int = 4,
    most_stages: int = 6,
    most_microbatches: int = 5,
    modes: tuple[str, ...] = ("fused", "split", "mixed", "forward"),
    slices: bool = True,
    copies: bool = True,
    pairs: bool = True,
) -> st.SearchStrategy[Sizes]:
    """Sizes of a random schedule; the flags say what may occur in it."""
    ranks = st.integers(1, most_ranks)
    return ranks.flatmap(
        lambda p: st.builds(
            Sizes,
            ranks=st.just(p),
            stages=st.integers(p, max(p, most_stages)),
            microbatches=st.integers(1, most_microbatches),
            slices=st.integers(1, 2) if slices else st.just(1),
            copies=st.integers(1, 2) if copies else st.just(1),
            mode=st.sampled_from(modes),
            pairs=st.booleans() if pairs else st.just(False),
            seed=st.integers(0, 2**32 - 1),
        )
    )


def schedules(**limits: object) -> st.SearchStrategy[Schedule]:
    """Random legal schedules; limits as for ``sizes``."""
    return sizes(**limits).map(random_schedule)  # type: ignore[arg-type]


def random_schedule(size: Sizes) -> Schedule:
    """Run the pipeline by picking, again and again, any op that could start."""
    dice = random.Random(size.seed)
    units = size.microbatches * size.slices
    placement = [_placement(dice, size) for _ in range(size.copies)]
    route = [dice.randrange(size.copies) for _ in range(size.microbatches)]
    route = [route[unit // size.slices] for unit in range(units)]
    needs = dependencies(size, dice)
    home = {op: placement[route[op.microbatch]][op.stage] for op in needs}
    rows: list[list[Op]] = [[] for _ in range(size.ranks)]
    joined: list[list[bool]] = [[] for _ in range(size.ranks)]
    done: set[Op] = set()
    left = list(needs)
    while left:
        ready = [op for op in left if needs[op] <= done]
        slot = [dice.choice(ready)]
        mates = [op for op in ready if home[op] == home[slot[0]] and {op.kind, slot[0].kind} == {Kind.F, Kind.B}]
        if size.pairs and mates and dice.random() < 0.5:
            slot.append(dice.choice(mates))
        rows[home[slot[0]]] += slot
        joined[home[slot[0]]] += [False, True][: len(slot)]
        done.update(slot)
        left = [op for op in left if op not in done]
    return from_rows(
        "random",
        rows,
        np.array(placement, np.int32),
        size.microbatches,
        slices=size.slices,
        joined=joined if any(map(any, joined)) else None,
        route=route if size.copies > 1 else None,
    )


def dependencies(size: Sizes, dice: random.Random) -> dict[Op, set[Op]]:
    """Every op of a step and the ops whose results it needs, written down from the definition."""
    last, units = size.stages - 1, size.microbatches * size.slices
    cells = [(stage, unit) for stage in range(size.stages) for unit in range(units)]
    first = dict.fromkeys(cells, Kind.B if size.mode == "fused" else Kind.I)
    if size.mode == "mixed":
        first = {cell: dice.choice([Kind.B, Kind.I]) for cell in cells}
    needs: dict[Op, set[Op]] = {}
    for stage, unit in cells:
        forward, backward = Op(Kind.F, stage, unit), Op(first[stage, unit], stage, unit)
        inner = unit % size.slices > 0
        needs[forward] = {Op(Kind.F, stage - 1, unit)} if stage else set()
        if inner:
            needs[forward].add(Op(Kind.F, stage, unit - 1))
        if size.mode == "forward":
            continue
        needs[backward] = {forward} | ({Op(first[stage + 1, unit], stage + 1, unit)} if stage < last else set())
        if unit % size.slices < size.slices - 1:
            needs[backward].add(Op(first[stage, unit + 1], stage, unit + 1))
        if backward.kind == Kind.I:
            needs[Op(Kind.W, stage, unit)] = {backward}
    return needs


def _placement(dice: random.Random, size: Sizes) -> list[int]:
    """A rank for every stage: each rank gets at least one, the rest fall anywhere."""
    homes = [*range(size.ranks), *(dice.randrange(size.ranks) for _ in range(size.stages - size.ranks))]
    dice.shuffle(homes)
    return homes


@st.composite
def costs(draw: st.DrawFn, schedule: Schedule, *, transfers: bool = True, links: bool = False) -> Costs:
    """Costs drawn freely per kind and stage, and now and then per micro-batch; zero and huge ones among them.

    ``links`` lets bytes take up links as well.
    """
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top = draw(st.sampled_from([1, 10, 10_000, 10**12]))
    units = draw(st.sampled_from([1, schedule.units]))
    shape = (KINDS, schedule.stages, units)
    hop = dice.integers(0, top + 1, shape) if transfers and draw(st.booleans()) else np.zeros((KINDS, 1, 1), np.int64)
    hop = np.broadcast_to(hop, (KINDS, schedule.stages, hop.shape[2])).astype(np.int64)
    occupancy = dice.integers(0, top + 1, hop.shape) if links and draw(st.booleans()) else None
    scale = draw(st.sampled_from([1.0, 0.75]))
    return Costs(dice.integers(0, top + 1, shape), hop, pair_scale=scale, occupancy=occupancy)
