"""Sends and receives on a device: kernels that wait and transfer, told by the calls that launched them.

On CUDA a p2p kernel says what it is; on ROCm, and in batches (``nccl:coalesced``), only the calls on the CPU do: one
that shares its External id, or those posted since the batch before. ``SendRecv`` in a kernel's name tells nothing: an
all-to-all has it too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..rank_ops import Transfers
from .names import UNKNOWN, Role, Way
from .pieces import Pieces, launches_of
from .posts import Sense, sense_of
from .steps import Steps
from .tables import CommArgs, Ints, Tables


def transfers_of(tables: Tables, pieces: Pieces, steps: Steps) -> Transfers | None:
    """The p2p kernels of one file; None where it has none that can be told."""
    table = tables.columns["comms"]
    kernel = tables.roles[table["word"]] == Role.COMM_KERNEL
    said = _spoken(tables, kernel)
    rows = np.array([row for row, _, _ in said], np.int64)
    if not len(rows):
        return None
    send = np.array([sense == Sense.SEND for _, sense, _ in said])
    launched, _ = launches_of(tables, np.array([tables.comm_args[row].correlation for row in rows], np.int64))
    start, end = (table[name][rows] for name in ("start", "end"))
    launched = np.where(launched >= 0, launched, start)
    return Transfers(
        step=steps.of(launched),
        send=send,
        forward=_ways(pieces, launched, send),
        peer=np.array([peer for _, _, peer in said], np.int32),
        start=start,
        end=end,
    )


def _spoken(tables: Tables, kernel: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Row, sense and peer of every p2p kernel; one row twice where a batch both sends and receives."""
    table, args = tables.columns["comms"], tables.comm_args
    calls = sorted(np.flatnonzero(~kernel).tolist(), key=table["start"].__getitem__)
    by_id = {args[row].external: args[row] for row in calls if args[row].external >= 0}
    linked = {args[row].external for row in np.flatnonzero(kernel).tolist()}
    pending = [
        row for row in calls if args[row].external not in linked and sense_of(args[row]) in (Sense.SEND, Sense.RECEIVE)
    ]
    said: list[tuple[int, int, int]] = []
    for row in sorted(np.flatnonzero(kernel).tolist(), key=table["start"].__getitem__):
        mine = args[row] if args[row].collective else by_id.get(args[row].external, args[row])
        sense = sense_of(mine)
        if sense == Sense.BATCH:
            while pending and table["start"][pending[0]] <= table["start"][row]:
                call = args[pending.pop(0)]
                said.append((row, sense_of(call), _peer(call)))
        elif sense:
            said.append((row, sense, _peer(mine)))
    return said


def _peer(args: CommArgs) -> int:
    peer = args.target if sense_of(args) == Sense.SEND else args.source
    return UNKNOWN if peer is None else peer


def _ways(pieces: Pieces, launched: Ints, send: NDArray[np.bool_]) -> NDArray[np.int8]:
    """A send carries what the work before it made, a receive what the work behind it needs, int8[transfers]."""
    work = (pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)
    if not work.any():
        return np.full(len(launched), UNKNOWN, np.int8)
    moments, way = pieces.launched[work], pieces.way[work]
    behind = np.searchsorted(moments, launched, side="right")
    before, after = way[np.maximum(behind - 1, 0)], way[np.minimum(behind, len(way) - 1)]
    known = np.where(send, behind > 0, behind < len(way))
    return np.where(known, np.where(send, before, after), UNKNOWN).astype(np.int8)
