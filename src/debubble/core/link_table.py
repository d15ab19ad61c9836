"""Links as a table: the hop by which the input of each op comes, from what was said of links.

Apart from how hops are written (``hops``), because the command line reads those before it needs arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import Fault, InputError
from .hops import Hops
from .op import KINDS, Kind
from .schedule import Schedule


def link_table(given: Hops, schedule: Schedule, name: str = "transfer") -> NDArray[np.float64]:
    """The value of the link by which the input of each op comes, float64[kinds, stages, 1 or units].

    Raises:
        InputError: a list that is not one value for each boundary, or two ranks between which no output goes.
    """
    if not given.pairs and not given.boundaries:
        return np.full((KINDS, schedule.stages, 1), given.default)
    _check(given, schedule, name)
    copies = np.stack([_by_boundary(given, home) for home in schedule.placement])
    table = np.zeros((KINDS, schedule.stages, len(copies)))
    table[Kind.F, 1:] = copies.T
    table[[Kind.I, Kind.B], :-1] = copies.T
    if len(copies) > 1:
        table = table[:, :, schedule.copy_of(np.arange(schedule.units, dtype=np.int32))]
    return table


def _by_boundary(given: Hops, home: NDArray[np.int32]) -> NDArray[np.float64]:
    """The value between each stage and the next, where these live on the given ranks."""
    if given.boundaries:
        return np.array(given.boundaries)
    found = np.full(len(home) - 1, given.default)
    for one, other, value in given.pairs:
        here = (home[:-1] == one) & (home[1:] == other) | (home[:-1] == other) & (home[1:] == one)
        found[here] = value
    return found


def _check(given: Hops, schedule: Schedule, name: str) -> None:
    if given.boundaries:
        needed = schedule.stages - 1
        if len(given.boundaries) != needed:
            rule = f"{schedule.name} with {schedule.stages} stages has {needed} boundaries"
            raise InputError(
                Fault(f"{name} has {len(given.boundaries)} values", rule, "give one for each, or one for all")
            )
        return
    homes = schedule.placement
    ends = np.sort(np.stack([homes[:, :-1].ravel(), homes[:, 1:].ravel()]), axis=0)
    there = set(map(tuple, ends.T.tolist()))
    faults = []
    for one, other, _ in given.pairs:
        if (min(one, other), max(one, other)) not in there:
            near = sorted(pair for pair in there if pair[0] != pair[1] and {*pair} & {one, other})
            links = ", ".join(f"{a}-{b}" for a, b in (near or sorted(there))[:4])
            rule = f"{schedule.name} hands nothing from rank {one} to rank {other}"
            faults.append(Fault(f"{name} {one}-{other}", rule, f"links of it: {links}"))
    if faults:
        raise InputError(*faults)
