"""Dumps of torch's flight recorder as JSON: sends, receives and collectives of each rank, as they were posted.

``torch._C._distributed_c10d._dump_fr_trace_json()`` (``_dump_nccl_trace_json`` before torch 2.9), or the worker's
``/handler/dump_nccl_trace_json``, gives one document a rank (torch/csrc/distributed/c10d/FlightRecorder.hpp, 2.10):

    {"pg_config": {"5": {"desc": "mesh_pp", "ranks": "[0, 2]"}}, "entries": [{"profiling_name": "nccl:send 0->1",
     "process_group": ["5", "mesh_pp"], "is_p2p": true, "p2p_seq_id": 7, "input_sizes": [[1, 4096, 8192]],
     "time_created_ns": .., "duration_ms": 3.1, "state": "completed"}, ..]}

Ranks in a name count within the group, the own one first (``recv 1<-0``). Of sends and receives that were posted
together only the entry ``nccl:coalesced`` with their ``p2p_seq_id`` has a duration and a state. Durations are there if
TORCH_NCCL_ENABLE_TIMING was 1. When the device began or ended is not: ends are found by a watchdog, a tenth of a second
late. So what ran between two transfers is not known, and neither is an idle share. A pickled dump is never opened.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from ..core.errors import Fault, InputError, WithoutOps
from ..core.units import duration, percent
from .files import blocks, left_out, listed, mended, source_of, why_unreadable

_JSON = (b"{", b"[")
_NAMED = re.compile(rb'"profiling_name"\s*:\s*"|"pg_status"\s*:')
_BESIDE = (b'"pg_config"', b'"time_created_ns"', b'"nccl_version"', b'"comm_lib_version"')
_MOST_BYTES = 1 << 28  # of a dump; the ring of entries has 2,000 unless it is made larger
_TRANSFER = re.compile(r"\w+:(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
_OWN = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_SIZES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1}
_ALIKE = 0.75  # of the steps must have as many sends as most have, else these are no steps
_MOST_NAMED = 4  # ranks that hang and are named each


class _Group(msgspec.Struct):
    """A process group; the keys are the file's, here and below."""

    desc: str = ""
    ranks: str = ""


class _Entry(msgspec.Struct, gc=False):
    profiling_name: str = ""
    pg_id: int = 0
    process_group: list[str] = []
    p2p_seq_id: int = 0
    is_p2p: bool = False
    record_id: int = 0
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_created_ns: int = 0
    duration_ms: float | None = None
    state: str = ""


class _Dump(msgspec.Struct):
    pg_config: dict[str, _Group] = {}
    entries: list[_Entry] = []


@dataclass(frozen=True, slots=True)
class Post:
    """What one rank posted at once.

    Args:
        created: when, nanoseconds since 1970.
        to: global ranks that it sends to.
        of: global ranks that it receives from.
        bytes: of the first message; 0 if unknown.
        ms: for how long it ran on the device, waiting included; None if that was not measured.
        done: whether it had ended when the dump was made.
    """

    created: int
    to: tuple[int, ...] = ()
    of: tuple[int, ...] = ()
    bytes: int = 0
    ms: float | None = None
    done: bool = True


@dataclass(frozen=True, slots=True)
class RankPosts:
    """The dump of one rank: its sends and receives in their order, and how many collectives there are beside them."""

    rank: int
    source: str
    posts: tuple[Post, ...]
    collectives: int
    last: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps as the first rank of a pipeline posted them.

    Args:
        starts: when each began, and the one after the last, nanoseconds.
        sends: to the next rank in a step.
        most: of these that were on their way before something came back.
    """

    starts: tuple[int, ...]
    sends: int
    most: int


def is_flight(head: bytes) -> bool:
    """Whether a file that begins like this is a flight recorder's dump as JSON."""
    return head.lstrip()[:1] in _JSON and bool(_NAMED.search(head)) and any(key in head for key in _BESIDE)


def read_flight(paths: Sequence[Path]) -> tuple[list[RankPosts], list[str]]:
    """Read the dumps of all ranks.

    Args:
        paths: one a rank.

    Returns:
        Ranks in ascending order, and what was left out, a sentence each.

    Raises:
        InputError: no dump can be used.
    """
    found: dict[int, RankPosts] = {}
    lost: list[tuple[str, str]] = []
    for path in paths:
        try:
            dump = _rank(path)
        except InputError as error:
            lost += [(fault.value, fault.rule) for fault in error.faults]
            continue
        except OSError as error:
            lost.append((str(path), why_unreadable(error)))
            continue
        first = found.setdefault(dump.rank, dump)
        if first is not dump:
            lost.append((str(path), f"rank {dump.rank} was read from {first.source} already"))
    remarks = left_out(lost)
    if not found:
        raise InputError(Fault(source_of(paths), "; ".join(remarks), "dump the flight recorder of each rank as JSON"))
    return [found[rank] for rank in sorted(found)], remarks


def _rank(path: Path) -> RankPosts:
    dump = _decoded(path)
    own: Counter[int] = Counter()
    rows: list[Post] = []
    # Of what was posted together, the place of its row by group and number.
    together: dict[tuple[int, int], int] = {}
    collectives = 0
    for entry in sorted(dump.entries, key=lambda one: one.record_id):
        key = entry.pg_id, entry.p2p_seq_id
        move = _TRANSFER.match(entry.profiling_name)
        if move is None:
            if entry.profiling_name.endswith(":coalesced") and key in together:
                row = together.pop(key)
                rows[row] = replace(rows[row], ms=entry.duration_ms, done=entry.state == "completed")
            else:
                collectives += not entry.is_p2p
            continue
        members = _members(dump, entry)
        mine, other = (members[int(index)] if int(index) < len(members) else int(index) for index in move.groups()[1:])
        own[mine] += 1
        post = Post(entry.time_created_ns, bytes=_bytes(entry), ms=entry.duration_ms, done=entry.state == "completed")
        if key not in together:
            together[key] = len(rows)
            rows.append(post)
        at = together[key]
        if move[1] == "send":
            rows[at] = replace(rows[at], to=(*rows[at].to, other))
        else:
            rows[at] = replace(rows[at], of=(*rows[at].of, other))
    if own:
        rank = own.most_common(1)[0][0]
    elif named := _OWN.search(path.name):
        rank = int(named[1])
    else:
        rule = "neither its entries nor its name say its rank"
        raise InputError(Fault(str(path), rule, "call it nccl_trace_rank_N.json"))
    last = max((entry.time_created_ns for entry in dump.entries), default=0)
    return RankPosts(rank, str(path), tuple(rows), collectives, last)


def _decoded(path: Path) -> _Dump:
    text = bytearray()
    for block in blocks(path, []):
        text += block
        if len(text) > _MOST_BYTES:
            raise InputError(Fault(str(path), f"it is longer than {_MOST_BYTES >> 20} MiB", "dump fewer entries"))
    try:
        return msgspec.json.decode(mended(bytes(text)), type=_Dump)
    except msgspec.MsgspecError as error:
        raise InputError(Fault(str(path), f"it is no whole dump ({error})", "dump it again")) from error


def _members(dump: _Dump, entry: _Entry) -> list[int]:
    """Global ranks of an entry's group; empty if the dump does not say them."""
    name = entry.process_group[0] if entry.process_group else ""
    group = dump.pg_config.get(name)
    if group is None:
        return []
    return [int(number) for number in re.findall(r"\d{1,9}", group.ranks)]


def _bytes(entry: _Entry) -> int:
    if not entry.input_sizes or not entry.input_dtypes:
        return 0
    return math.prod(entry.input_sizes[0]) * _SIZES.get(entry.input_dtypes[0], 0)


def refusal_of_flight(paths: Sequence[Path]) -> WithoutOps:
    """What the dumps tell of a run, and why they tell no idle share.

    Raises:
        InputError: no dump can be used.
    """
    ranks, remarks = read_flight(paths)
    holds = (
        "it holds what ranks posted to each other, and no forward or backward: a rank that works and a rank that waits "
        "look alike in it, so it tells no idle share"
    )
    remedies = ["for the bubble run some steps under debubble record, or profile them with torch.profiler"]
    timed = any(post.ms is not None for one in ranks for post in one.posts)
    if not timed and any(one.posts for one in ranks):
        remedies.insert(0, "TORCH_NCCL_ENABLE_TIMING=1 adds for how long each of them ran")
    return WithoutOps(source_of(paths), holds, [*sentences_of(ranks), *remarks], remedies)


def sentences_of(ranks: Sequence[RankPosts]) -> Iterator[str]:
    """What the dumps tell, in plain words."""
    count = sum(len(one.posts) for one in ranks)
    collectives = sum(one.collectives for one in ranks)
    if not count:
        yield f"{len(ranks)} ranks, {collectives:,} collectives, and no send or receive: no pipeline is in it"
        yield from _hanging(ranks)
        return
    yield f"{len(ranks)} ranks, {count:,} posts of sends and receives, {collectives:,} collectives"
    for line in pipelines_of(ranks):
        yield from _of_pipeline(line, {one.rank: one for one in ranks})
    yield from _hanging(ranks)


def pipelines_of(ranks: Sequence[RankPosts]) -> list[tuple[int, ...]]:
    """Global ranks that talk to each other, ascending: every framework numbers the ranks of a pipeline so."""
    groups: list[set[int]] = []
    for one in ranks:
        near = {one.rank}
        for post in one.posts:
            near.update(post.to, post.of)
        joined = [group for group in groups if group & near]
        groups = [group for group in groups if not group & near]
        groups.append(near.union(*joined))
    return sorted(tuple(sorted(group)) for group in groups if len(group) > 1)


def _of_pipeline(line: tuple[int, ...], by_rank: dict[int, RankPosts]) -> Iterator[str]:
    named = f"pipeline of ranks {listed(line)}"
    first = by_rank.get(line[0])
    if first is None:
        yield f"{named}: the dump of rank {line[0]} is not here, which shows where steps begin"
        return
    steps = steps_of(first.posts, line[1])
    if steps is None:
        yield f"{named}: no whole step is in it (TORCH_FR_BUFFER_SIZE holds 2,000 entries unless it is set)"
        return
    length = float(np.median(np.diff(steps.starts)))
    yield f"{named}: {len(steps.starts) - 1} whole steps, {duration(length)} from one to the next, the median"
    sends, depth = steps.sends, steps.most
    size = median(post.bytes for post in first.posts)
    messages = f"{sends} messages a step to rank {line[1]}, of {size / 1e6:.4g} MB"
    yield f"rank {line[0]} sends {messages}; at most {depth} are on their way before one comes back"
    if depth in (len(line), len(line) - 1, sends):
        least = (len(line) - 1) / (sends + len(line) - 1)
        how = "as 1F1B posts" if depth < sends else "as GPipe posts"
        yield f"that is {how}; with one message a micro-batch and even stages it idles {percent(least)} at least"
    yield from _shares([by_rank[rank] for rank in line if rank in by_rank], steps, length)


def steps_of(posts: Sequence[Post], following: int) -> Steps | None:
    """Steps by what the first rank has on its way: the count of what went less what came is least between two steps.

    Args:
        posts: of the first rank of a pipeline.
        following: global rank of the second.

    Returns:
        None if fewer than two steps begin in it, or what lies between two ends is no step.
    """
    mine = [post for post in posts if following in post.to or following in post.of]
    away = np.cumsum([post.to.count(following) - post.of.count(following) for post in mine])
    if not len(away):
        return None
    # A ring of entries may begin within a step, so the count that means nothing is under way is not known to be 0.
    empty = np.flatnonzero(away == away.min())
    begins = [int(at) + 1 for at in empty if at + 1 < len(mine)]
    if len(begins) < 2:
        return None
    sends, most = [], []
    for begin, end in pairwise(begins):
        sends.append(sum(post.to.count(following) for post in mine[begin:end]))
        most.append(int(away[begin:end].max() - away.min()))
    usual, times = Counter(sends).most_common(1)[0]
    if times < _ALIKE * len(sends):
        return None
    return Steps(tuple(mine[begin].created for begin in begins), usual, max(most))


def _shares(ranks: Sequence[RankPosts], steps: Steps, length: float) -> Iterator[str]:
    """For which share of a step each rank had a receive, a send, or both in one on its device."""
    begin, end = steps.starts[0], steps.starts[-1]
    for one in ranks:
        spent = {"receives": 0.0, "sends": 0.0, "both in one": 0.0}
        inside = [post for post in one.posts if begin <= post.created < end and post.ms is not None]
        for post in inside:
            what = "both in one" if post.to and post.of else "sends" if post.to else "receives"
            spent[what] += (post.ms or 0.0) * 1e6
        if inside:
            whole = length * (len(steps.starts) - 1)
            parts = ", ".join(f"{what} {percent(time / whole)}" for what, time in spent.items() if time)
            yield f"rank {one.rank}, of a step: {parts} (waiting and transfer together, beside work or alone)"


def _hanging(ranks: Sequence[RankPosts]) -> Iterator[str]:
    """Who had not ended what it posted, the longest first."""
    last = max(one.last for one in ranks)
    stuck = []
    for one in ranks:
        for post in one.posts:
            if not post.done:
                stuck.append((last - post.created, one.rank, post))
                break  # what was posted after it waits for it
    stuck.sort(key=lambda row: -row[0])
    for age, rank, post in stuck[:_MOST_NAMED]:
        whom = []
        if post.to:
            whom.append(f"a send to rank {listed(post.to)}")
        if post.of:
            whom.append(f"a receive from rank {listed(post.of)}")
        since = f"posted {duration(age)} before the last post of any rank"
        yield f"rank {rank} had not ended {' with '.join(whom)}, {since}"
    if len(stuck) > _MOST_NAMED:
        yield f"so for {len(stuck) - _MOST_NAMED} more ranks"
