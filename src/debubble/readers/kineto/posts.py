"""Posts: the moments on the CPU at which a rank asks for a send or a receive, which is where runs of work are cut."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from .names import Role
from .pieces import marks
from .tables import CommArgs, Ints, Tables


class Sense(IntEnum):
    """What a call or kernel of communication does."""

    OTHER = 0
    RECEIVE = 1
    SEND = 2
    BATCH = 3  # several at once; only the calls before it say which
    EITHER = 4  # one of the two; which, only the other side can tell


EITHER = "send or receive"  # name of a collective whose kernel is all that a trace has of it
TRANSFERS = (Sense.SEND, Sense.RECEIVE, Sense.EITHER)


def sense_of(args: CommArgs) -> Sense:
    """The sense that ``Collective name`` tells."""
    name = (args.collective or "").lower()
    if name in ("send", "isend"):
        return Sense.SEND
    if name in ("recv", "irecv", "recvanysource"):
        return Sense.RECEIVE
    if name == EITHER:
        return Sense.EITHER
    return Sense.BATCH if "coalesced" in name else Sense.OTHER


def posts_of(tables: Tables) -> Ints:
    """When this rank posted sends and receives, int64[posts], ascending."""
    table = tables.columns["comms"]
    sense = np.array([sense_of(args) for args in tables.comm_args], np.int8)
    posted = (tables.roles[table["word"]] == Role.COMMS) & np.isin(sense, TRANSFERS)
    others = [marks(tables, role)[1] for role in (Role.SEND, Role.RECEIVE, Role.POST)]
    return np.unique(np.concatenate([table["start"][posted], *others]))
