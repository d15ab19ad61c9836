"""Where each device stands: its rank in the pipeline and its replica, by what the user or labels say, else by messages.

The first micro-batch of a step passes every rank first. So the first activation that a rank receives comes from the
rank before it, and the rank that begins by sending is the first one, whatever the clocks, chunks and directions:

    rank 4   s . s r ..                begins by sending: position 0
    rank 6   r(4) s .. r ..            first receives from 4: position 1
    rank 2   r(6) s(0) ..              first receives from 6: position 2
    rank 0   is not here: 2 sends to it, so there is a position 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.errors import Fault, InputError
from ..core.schedule import Kind
from .device_ops import UNTOLD, Ints, Mask, RankOps, Transfers, group_of, index_of, of_each_op, place_within

NOWHERE = -1  # place of a device that is left out
HALF = 0.75  # of a rank's messages: a middle rank that lacks one neighbour shares half of them with the other
MOST_NAMED = 8  # ranks that are spelled out


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says if a file does not tell.

    Args:
        ranks: positions in the pipeline.
        data: data-parallel replicas.
        chunks: stages a rank.
        steps: first and last step to use.
    """

    ranks: int | None = None
    data: int | None = None
    chunks: int | None = None
    steps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Position and replica of each device, in their order.

    Args:
        position: rank in the pipeline, int64[devices]; -1 for a device that is left out.
        replica: data-parallel replica, int64[devices]; -1 likewise.
        ranks: positions of a whole pipeline, those of ranks that are not here among them.
        missing: global ranks that messages name and whose traces are not here.
        remarks: how they were found, if that is a guess, and who was left out.
    """

    position: Ints
    replica: Ints
    ranks: int
    missing: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def placed(self) -> list[int]:
        """Indices of the devices that are not left out."""
        found: list[int] = np.flatnonzero(self.position != NOWHERE).tolist()
        return found

    def members(self, replica: int, position: int) -> list[int]:
        """Indices of the devices that hold a position of a replica."""
        found: list[int] = np.flatnonzero((self.replica == replica) & (self.position == position)).tolist()
        return found


def nowhere(devices: int) -> Places:
    """No place for any of some devices."""
    return Places(np.full(devices, NOWHERE), np.full(devices, NOWHERE), 0)


def named(ranks: Iterable[int]) -> str:
    """Some ranks in words, the lowest first."""
    some = sorted(ranks)
    spelled = ", ".join(map(str, some[:MOST_NAMED]))
    if len(some) <= MOST_NAMED:
        return spelled
    return f"{spelled} and {len(some) - MOST_NAMED} more"


# What the user or labels say.


def labelled_positions(devices: Sequence[RankOps], said: Said) -> Ints | None:
    """Positions that the user or files say, or that follow from the stages a device holds; None if nothing does."""
    if said.ranks is not None:
        return by_rank_number(len(devices), said.ranks, said.data).position
    told = [device.position for device in devices if device.position is not None]
    if len(told) == len(devices):
        return np.array(told)
    held = [tuple(np.unique(device.stage).tolist()) for device in devices if device.stage is not None]
    if len(held) < len(devices):
        return None
    order = sorted(set(held))  # stages 0 and 7 stand before 1 and 6, whether chunks loop or turn back
    return np.array([order.index(stages) for stages in held])


def by_rank_number(devices: int, ranks: int, data: int | None) -> Places:
    """Megatron-LM's order of groups: tensor fastest, then data, then pipeline.

    Raises:
        InputError: the numbers do not fit the number of devices.
    """
    a_stage, rest = divmod(devices, ranks)
    if rest or a_stage % (data or 1):
        given = f"--ranks {ranks}"
        if data:
            given += f" --data {data}"
        rule = f"{devices} devices cannot be split so"
        raise InputError(Fault(given, rule, "give numbers whose product divides the number of devices"))
    tensor = a_stage // (data or a_stage)
    index = np.arange(devices)
    return Places(index // a_stage, index % a_stage // tensor, ranks)


# What messages say.


def places_of(devices: Sequence[RankOps], said: Said) -> Places:
    """Find out where each device stands: what is said first, then labels, then messages, then the warm-up.

    Args:
        devices: in the order of their ranks, on one clock as far as messages tell it, with peers as far as known.
        said: what the user gave.

    Raises:
        InputError: the overrides do not fit the number of devices, or no pipeline is whole and nothing says how many
            ranks one has.
    """
    if said.ranks is not None:
        return by_rank_number(len(devices), said.ranks, said.data)
    position = labelled_positions(devices, said)
    if position is not None:
        return _with_replicas(devices, position, said)
    if len(devices) == 1 and not _absent(devices):
        return Places(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    pipelines = _pipelines(devices)
    if pipelines:
        return _of_pipelines(devices, pipelines)
    if _untold(devices):
        return nowhere(len(devices))
    position = _by_warm_up(devices)
    if not position.any() or np.ptp(np.bincount(position)):
        # GPipe runs every forward first on all ranks; 1F1B with m < p does on its first p - m + 1.
        position = _by_first_forward(devices, said.data or 1)
    places = _with_replicas(devices, position, said)
    guess = "no label and no transfer tells ranks apart; they stand in the order of their warm-up (--ranks overrides)"
    return replace(places, missing=(), remarks=(guess, *places.remarks))


def _untold(devices: Sequence[RankOps]) -> bool:
    """Whether a file does not tell forward from backward."""
    return bool((of_each_op(devices, "kind") == UNTOLD).any())


def _peers(device: RankOps) -> list[int]:
    """Global ranks that a device's messages name, ascending."""
    moves = device.transfers
    if moves is None:
        return []
    found: list[int] = np.unique(moves.peer[moves.peer >= 0]).tolist()
    return found


def _absent(devices: Sequence[RankOps]) -> tuple[int, ...]:
    """Ranks that messages name and whose traces are not here."""
    named: set[int] = set()
    for device in devices:
        named.update(_peers(device))
    return tuple(sorted(named - index_of(devices).keys()))


def _pipelines(devices: Sequence[RankOps]) -> list[list[int]]:
    """Chains of ranks by the first message that each receives; none if no message names a peer."""
    here = index_of(devices)
    after: dict[int, int] = {}
    before: dict[int, int] = {}

    def link(one: int, other: int) -> None:
        if one not in after and other not in before and _walk(after, other)[-1] != one:  # a ring is no pipeline
            after[one], before[other] = other, one

    ahead: dict[int, int] = {}
    for device in devices:
        first, previous, following = _first_messages(device.transfers)
        if previous is not None and not first:
            link(previous, device.rank)
        if following is not None:
            ahead[device.rank] = following
    for rank, peer in sorted(ahead.items()):
        # What a rank that is not here received first nobody can say; who sent to it first can.
        if peer not in here and before.get(rank) != peer:
            link(rank, peer)
    chains = [_walk(after, head) for head in sorted(after.keys() - before.keys())]
    if not chains:
        return []
    lone = [[rank] for rank in sorted(here) if rank not in after and rank not in before]
    return [*_joined_at_tails(devices, chains), *lone]


def _first_messages(moves: Transfers | None) -> tuple[bool, int | None, int | None]:
    """Whether steps begin by sending, and the peers of the first receive and of the first send, by most steps."""
    if moves is None or not len(moves):
        return False, None, None
    rows = np.arange(len(moves))
    if (moves.forward >= 0).all():
        rows = np.flatnonzero(moves.forward == 1)
    if (moves.step[rows] >= 0).any():
        rows = rows[moves.step[rows] >= 0]  # others lie outside of every whole step
    rows = rows[np.lexsort((moves.end[rows], moves.step[rows]))]
    begins = _first_of_steps(moves, rows)
    sends = bool(len(begins)) and float(moves.send[begins].mean()) > 0.5
    return sends, _usual_peer(moves, rows[~moves.send[rows]]), _usual_peer(moves, rows[moves.send[rows]])


def _first_of_steps(moves: Transfers, rows: Ints) -> Ints:
    """Of rows in the order of steps and time the first of each step."""
    _, first = np.unique(moves.step[rows], return_index=True)
    return rows[first]


def _usual_peer(moves: Transfers, rows: Ints) -> int | None:
    """The peer of the first of these in most steps; None if it is not known."""
    if not len(rows):
        return None
    peer: int = Counter(moves.peer[_first_of_steps(moves, rows)].tolist()).most_common(1)[0][0]
    if peer < 0:
        return None
    return peer


def _walk(after: dict[int, int], rank: int) -> list[int]:
    """The chain from one rank on."""
    chain = [rank]
    while chain[-1] in after:
        chain.append(after[chain[-1]])
    return chain


def _joined_at_tails(devices: Sequence[RankOps], chains: list[list[int]]) -> list[list[int]]:
    """Two chains whose last ranks talk to each other are one pipeline that is fed from both ends (DualPipe)."""
    talks: dict[int, list[int]] = {}
    for device in devices:
        talks[device.rank] = _peers(device)
    joined: list[list[int]] = []
    left = list(chains)
    while left:
        chain = left.pop(0)
        for other in left:
            if other[-1] in talks.get(chain[-1], ()):
                left.remove(other)
                chain = [*chain, *other[::-1]]
                break
        joined.append(chain)
    return joined


def _of_pipelines(devices: Sequence[RankOps], found: list[list[int]]) -> Places:
    """Places by the pipelines that messages show: the whole ones, else those with ranks that are named but not here."""
    index = index_of(devices)
    longest = max(map(len, found))
    used: list[list[int]] = []
    for chain in found:
        if len(chain) == longest and _closed(devices, chain, index):
            used.append(chain)
    missing = _absent(devices)
    if not used:
        if not missing and _untold(devices):
            return nowhere(len(devices))  # of a piece nobody can say which way its messages go
        if not missing and len(found) > 1:
            raise _no_whole_one(devices[0].source, found)
        used = [chain for chain in _pieces_joined(found) if len(chain) > 1]
    ranks = max(map(len, used))
    position, replica = np.full((2, len(devices)), NOWHERE)
    for number, chain in enumerate(sorted(used, key=min)):
        for at, rank in enumerate(chain):
            if rank in index:
                position[index[rank]], replica[index[rank]] = at, number
    remarks = []
    if missing:
        remarks.append(f"rank {named(missing)}: messages name it, but its trace is not here")
    if (position == NOWHERE).any():
        lost = named(ranks_where(devices, position == NOWHERE))
        remarks.append(f"rank {lost}: their pipeline lacks a rank (the others have {ranks}); they were left out")
    return Places(position, replica, ranks, missing, tuple(remarks))


def ranks_where(devices: Sequence[RankOps], mask: Mask) -> list[int]:
    """Global ranks of some devices.

    Args:
        devices: of which some are asked for.
        mask: which ones, bool[devices].
    """
    return [devices[i].rank for i in np.flatnonzero(mask).tolist()]


def _closed(devices: Sequence[RankOps], chain: list[int], index: dict[int, int]) -> bool:
    """Whether a pipeline's ranks are here, and most of their messages stay in it; a piece of one sends out of it."""
    for rank in chain:
        if rank not in index:
            return False
        moves = devices[index[rank]].transfers
        if moves is not None and len(moves) and float(np.isin(moves.peer, chain).mean()) < HALF:
            return False
    return True


def _no_whole_one(source: str, found: list[list[int]]) -> InputError:
    """What is wrong with pieces of pipelines if no message names a rank that is not here."""
    lonely = [chain[0] for chain in found if len(chain) == 1]
    if not lonely:
        lonely = [chain[-1] for chain in found]
    rule = f"rank {named(lonely)} sends to or receives from ranks whose traces are not here; no pipeline is whole"
    remedy = "add the traces of the other ranks, or say with --ranks how many of one pipeline are here"
    return InputError(Fault(source, rule, remedy))


def _pieces_joined(found: list[list[int]]) -> list[list[int]]:
    """Pieces between which several ranks are missing, put together by the regular distance of their ranks.

    Neighbours in a pipeline lie as many ranks apart as there are devices of one stage.
    """
    apart: Counter[int] = Counter()
    for chain in found:
        apart.update(np.diff(chain).tolist())
    stride = apart.most_common(1)[0][0] if apart else 0
    if stride <= 0:
        return found
    joined: list[list[int]] = []
    for piece in sorted(found, key=lambda chain: chain[0]):
        for one in joined:
            if (piece[0] - one[-1]) % stride == 0:
                again = int(piece[0] == one[-1])
                one += [*range(one[-1] + stride, piece[0], stride), *piece[again:]]
                break
        else:
            joined.append(list(piece))
    return joined


# Replicas, and what is left if nothing tells.


def _with_replicas(devices: Sequence[RankOps], position: Ints, said: Said) -> Places:
    """Tell apart the devices of one position: by what is told, by who talks to whom, or else in order."""
    ranks, missing = int(position.max()) + 1, _absent(devices)
    told = [device.replica for device in devices if device.replica is not None]
    if len(told) == len(devices):
        return Places(position, np.array(told), ranks, missing)
    nth = place_within(position)
    most = int(nth.max()) + 1
    if said.data is not None:
        return Places(position, nth // max(1, most // said.data), ranks, missing)
    if most == 1:
        return Places(position, nth, ranks, missing)
    parts = _parts(devices)
    alone = not place_within(group_of(parts, position)).any()
    if int(parts.max()) + 1 == most and alone:
        return Places(position, parts, ranks, missing)
    guess = f"{most} devices hold the same stage; they were taken for replicas (--data says how many there are)"
    return Places(position, nth, ranks, missing, (guess,))


def _parts(devices: Sequence[RankOps]) -> Ints:
    """A number for each device, the same for those that messages join, also by a rank that is not here, from 0."""
    index = index_of(devices)
    part = np.arange(len(devices))
    for i, device in enumerate(devices):
        for peer in _peers(device):
            other = part[index.setdefault(peer, i)]  # the first that names a rank stands for it, if it is not here
            low, high = sorted((part[i], other))
            part[part == high] = low
    return group_of(part)


def _by_warm_up(devices: Sequence[RankOps]) -> Ints:
    """The more forwards stand before a device's first backward, the earlier it is in a pipeline."""
    warm_up = np.empty(len(devices), np.int64)
    for i, device in enumerate(devices):
        last = device.step == device.step.max(initial=0)
        back = device.start[last & (device.kind != Kind.F)].min(initial=np.iinfo(np.int64).max)
        warm_up[i] = (last & (device.kind == Kind.F) & (device.start < back)).sum()
    return group_of(-warm_up)


def _by_first_forward(devices: Sequence[RankOps], data: int) -> Ints:
    """The earlier a device begins its first forward, the earlier it is in a pipeline; their clocks must agree."""
    begun = np.full(len(devices), np.inf)
    for i, device in enumerate(devices):
        forward = device.kind == Kind.F
        steps, first = np.unique(device.step[forward], return_inverse=True)
        earliest = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(earliest, first, device.start[forward])
        if len(steps):
            begun[i] = np.median(earliest)
    position = np.empty(len(devices), np.int64)
    position[np.argsort(begun, kind="stable")] = np.arange(len(devices)) // data
    return position
