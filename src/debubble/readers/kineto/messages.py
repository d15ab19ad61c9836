"""Messages of one file: when sends and receives were posted, and the kernels that wait and transfer.

On CUDA a p2p kernel says what it is; on ROCm, and in batches (``nccl:coalesced``), only the calls on the CPU do: one
that shares its External id, or those posted since the batch before. ``SendRecv`` in a kernel's name tells nothing: an
all-to-all has it too.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN, Collectives, Ints, Transfers
from .names import Role
from .tables import CommArgs, Tables, linked
from .work import Steps, launches_of, marks

_MOST_RANKS = 1 << 31  # peers beyond are no ranks
_COLLECTIVE = re.compile(r"reduce|gather|broadcast|barrier", re.IGNORECASE)


class Sense(IntEnum):
    """What a call or kernel of communication does."""

    OTHER = 0
    RECEIVE = 1
    SEND = 2
    BATCH = 3  # several at once; only the calls before it say which
    EITHER = 4  # one of the two; which, only the other side can tell


EITHER = "send or receive"  # name of a collective whose kernel is all that a trace has of it
_TRANSFERS = (Sense.SEND, Sense.RECEIVE, Sense.EITHER)


@dataclass(frozen=True, slots=True, eq=False)
class Posts:
    """When a rank asked for sends and receives, which is where runs of work are cut.

    Args:
        moment: int64[posts], nanoseconds, ascending.
        sense: a ``Sense`` each, int8[posts].
    """

    moment: Ints
    sense: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.moment)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The p2p kernels of one file, in the order of their launch, without directions.

    Args:
        transfers: their columns.
        launched: when each was launched, int64[transfers], nanoseconds.
    """

    transfers: Transfers
    launched: Ints


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


def posts_of(tables: Tables) -> Posts:
    """When this rank posted sends and receives."""
    table = tables.columns["comms"]
    sense = np.array([sense_of(args) for args in tables.comm_args], np.int8)
    posted = (tables.roles[table["word"]] == Role.COMMS) & np.isin(sense, _TRANSFERS)
    moments, senses = [table["start"][posted]], [sense[posted]]
    for role, meaning in ((Role.SEND, Sense.SEND), (Role.RECEIVE, Sense.RECEIVE), (Role.POST, None)):
        word, start, _ = marks(tables, role)
        moments.append(start)
        if meaning is None:
            sends = np.array(["send" in tables.names[w] for w in word.tolist()], np.bool_)
            senses.append(np.where(sends, Sense.SEND, Sense.RECEIVE).astype(np.int8))
        else:
            senses.append(np.full(len(start), meaning, np.int8))
    moment = np.concatenate(moments)
    order = np.argsort(moment, kind="stable")
    return Posts(moment[order], np.concatenate(senses)[order])


def messages_of(tables: Tables, steps: Steps) -> tuple[Moves | None, Collectives | None]:
    """The p2p kernels of one file, and those of collectives; None if there are none that can be told.

    A transfer that may be a send or a receive is called a send, and its stream is known.
    """
    table = tables.columns["comms"]
    kernels = np.flatnonzero(tables.roles[table["word"]] == Role.COMM_KERNEL)
    if not len(kernels):
        return None, None
    launched, _ = launches_of(tables, linked([tables.comm_args[row].correlation for row in kernels]))
    launched = np.where(launched >= 0, launched, table["start"][kernels])
    order = np.argsort(launched, kind="stable")
    kernels, launched = kernels[order], launched[order]
    return _moves(tables, steps, kernels, launched), _collectives(tables, steps, kernels, launched)


def _moves(tables: Tables, steps: Steps, kernels: Ints, launched: Ints) -> Moves | None:
    """The kernels that send or receive."""
    table = tables.columns["comms"]
    told = _told(tables, kernels, launched)
    if not told:
        return None
    row, moment, sense, peer, group = (np.array(column) for column in zip(*told, strict=True))
    either = sense == Sense.EITHER
    transfers = Transfers(
        step=steps.of(moment),
        send=sense != Sense.RECEIVE,
        forward=np.full(len(row), UNKNOWN, np.int8),
        peer=peer.astype(np.int32),
        start=table["start"][row],
        end=table["end"][row],
        group=group.astype(np.int64),
        stream=np.where(either, table["lane"][row], UNKNOWN).astype(np.int64) if either.any() else None,
    )
    return Moves(transfers, moment)


def _collectives(tables: Tables, steps: Steps, kernels: Ints, launched: Ints) -> Collectives | None:
    """The kernels of collectives in which several ranks take part."""
    table = tables.columns["comms"]
    by_id = _calls_by_id(tables)
    found = []
    for row, moment in zip(kernels.tolist(), launched.tolist(), strict=True):
        args = _own_or_of_call(tables.comm_args[row], by_id)
        size = _size(args)
        if size > 1 and _COLLECTIVE.search(args.collective or ""):
            found.append((row, moment, size, _members(args)))
    if not found:
        return None
    rows, moments, sizes, members = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return Collectives(
        step=steps.of(moments),
        members=members,
        size=sizes.astype(np.int32),
        start=table["start"][rows],
        end=table["end"][rows],
    )


def _calls(tables: Tables) -> Ints:
    """Rows of calls of communication on the CPU, in order."""
    table = tables.columns["comms"]
    calls = np.flatnonzero(tables.roles[table["word"]] == Role.COMMS)
    return calls[np.argsort(table["start"][calls], kind="stable")]


def _calls_by_id(tables: Tables) -> dict[int, CommArgs]:
    args = tables.comm_args
    return {args[row].external: args[row] for row in _calls(tables).tolist() if args[row].external >= 0}


def _own_or_of_call(args: CommArgs, by_id: dict[int, CommArgs]) -> CommArgs:
    """What a kernel says itself, else what the call with its id says."""
    return args if args.collective else by_id.get(args.external, args)


def _told(tables: Tables, kernels: Ints, launched: Ints) -> list[tuple[int, int, int, int, int]]:
    """Row, launch, sense, peer and group of every p2p kernel by launch; a batch comes once for each of its calls."""
    table, args = tables.columns["comms"], tables.comm_args
    by_id = _calls_by_id(tables)
    own = {args[row].external for row in kernels.tolist()}
    alone = [row for row in _calls(tables).tolist() if args[row].external not in own and _is_move(args[row])]
    posted = deque(zip(table["start"][alone].tolist(), alone, strict=True))
    told: list[tuple[int, int, int, int, int]] = []
    for row, moment in zip(kernels.tolist(), launched.tolist(), strict=True):
        mine = _own_or_of_call(args[row], by_id)
        if sense_of(mine) == Sense.BATCH:
            while posted and posted[0][0] <= moment:
                call = args[posted.popleft()[1]]
                told.append((row, moment, sense_of(call), _peer(call), _group(call)))
        elif _is_move(mine):
            told.append((row, moment, sense_of(mine), _peer(mine), _group(mine)))
    return told


def _is_move(args: CommArgs) -> bool:
    return sense_of(args) in _TRANSFERS


def _peer(args: CommArgs) -> int:
    peer = args.target if sense_of(args) == Sense.SEND else args.source
    return peer if peer is not None and 0 <= peer < _MOST_RANKS else UNKNOWN


def _group(args: CommArgs) -> int:
    """A number for the communicator's name, the same on all ranks."""
    return zlib.crc32(bytes(args.group)) if args.group else UNKNOWN


def _members(args: CommArgs) -> int:
    """A number for the ranks of a group, the same on all of them; -1 if they are not named, or not all of them."""
    ranks = re.findall(rb"\d+", bytes(args.members))
    return zlib.crc32(b" ".join(ranks)) if len(ranks) == _size(args) else UNKNOWN


def _size(args: CommArgs) -> int:
    """How many ranks a group has, 0 if it does not say."""
    text = bytes(args.size).strip(b'"')
    return int(text) if text.isdigit() and len(text) < 10 else 0
