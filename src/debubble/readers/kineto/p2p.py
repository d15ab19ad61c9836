"""Sends and receives on a device: kernels that wait and transfer, told by the calls that launched them.

On CUDA a p2p kernel says what it is; on ROCm, and in batches (``nccl:coalesced``), only the calls on the CPU do: one
that shares its External id, or those posted since the batch before. ``SendRecv`` in a kernel's name tells nothing: an
all-to-all has it too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN, Transfers
from .names import Role, Way
from .pieces import Pieces, launches_of
from .posts import TRANSFERS, Sense, sense_of
from .steps import Steps
from .tables import CommArgs, Ints, Tables, linked


def transfers_of(tables: Tables, pieces: Pieces, steps: Steps) -> Transfers | None:
    """The p2p kernels of one file; None where it has none that can be told."""
    found = moves_of(tables, steps)
    if found is None:
        return None
    transfers, moment, _ = found
    return replace(transfers, forward=_ways(pieces, moment, transfers.send))


def moves_of(tables: Tables, steps: Steps) -> tuple[Transfers, Ints, Ints] | None:
    """The p2p kernels of one file without directions, when each was launched, and its stream if that is all it tells.

    Streams are lanes of the file, int64[transfers]; -1 where a transfer is known to be a send or to be a receive. One
    that may be either is called a send. None where there are no transfers.
    """
    table = tables.columns["comms"]
    kernels = np.flatnonzero(tables.roles[table["word"]] == Role.COMM_KERNEL)
    launched, _ = launches_of(tables, linked([tables.comm_args[row].correlation for row in kernels]))
    launched = np.where(launched >= 0, launched, table["start"][kernels])
    order = np.argsort(launched, kind="stable")
    said = _spoken(tables, kernels[order], launched[order])
    if not said:
        return None
    row, moment, sense, peer = (np.array(column) for column in zip(*said, strict=True))
    transfers = Transfers(
        step=steps.of(moment),
        send=sense != Sense.RECEIVE,
        forward=np.full(len(row), UNKNOWN, np.int8),
        peer=peer.astype(np.int32),
        start=table["start"][row],
        end=table["end"][row],
    )
    return transfers, moment, np.where(sense == Sense.EITHER, table["lane"][row], UNKNOWN).astype(np.int64)


def _spoken(tables: Tables, kernels: Ints, launched: Ints) -> list[tuple[int, int, int, int]]:
    """Row, launch, sense and peer of every p2p kernel by launch; a batch comes once for each of its calls."""
    table, args = tables.columns["comms"], tables.comm_args
    calls = np.flatnonzero(tables.roles[table["word"]] == Role.COMMS)
    calls = calls[np.argsort(table["start"][calls], kind="stable")]
    by_id = {args[row].external: args[row] for row in calls.tolist() if args[row].external >= 0}
    own = {args[row].external for row in kernels.tolist()}
    alone = [row for row in calls.tolist() if args[row].external not in own and _moves(args[row])]
    posted = deque(zip(table["start"][alone].tolist(), alone, strict=True))
    said: list[tuple[int, int, int, int]] = []
    for row, moment in zip(kernels.tolist(), launched.tolist(), strict=True):
        mine = args[row] if args[row].collective else by_id.get(args[row].external, args[row])
        if sense_of(mine) == Sense.BATCH:
            while posted and posted[0][0] <= moment:
                call = args[posted.popleft()[1]]
                said.append((row, moment, sense_of(call), _peer(call)))
        elif _moves(mine):
            said.append((row, moment, sense_of(mine), _peer(mine)))
    return said


def _moves(args: CommArgs) -> bool:
    return sense_of(args) in TRANSFERS


def _peer(args: CommArgs) -> int:
    peer = args.target if sense_of(args) == Sense.SEND else args.source
    return UNKNOWN if peer is None else peer


def _ways(pieces: Pieces, launched: Ints, send: NDArray[np.bool_]) -> NDArray[np.int8]:
    """A send carries what the work before it made, a receive what the work behind it needs, int8[transfers]."""
    work = (pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)
    if not work.any():
        return np.full(len(launched), UNKNOWN, np.int8)
    way, done = pieces.way[work], np.append(np.int32(0), np.cumsum(work, dtype=np.int32))
    behind = done[np.searchsorted(pieces.launched, launched, side="right")]
    before, after = way[np.maximum(behind - 1, 0)], way[np.minimum(behind, len(way) - 1)]
    known = np.where(send, behind > 0, behind < len(way))
    return np.where(known, np.where(send, before, after), UNKNOWN).astype(np.int8)
