"""Whose trace a file is: the rank in its header, else in its name; a clash is settled aloud or costs the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_IN_NAME = re.compile(r"(?:rank|worker)[-_]?\[?(\d{1,9})", re.IGNORECASE)
_MOST_RANKS = 1 << 31  # a larger number is no rank
_MERGED = "merged of many ranks"  # key of a header that is not of the file
_PIPELINE = re.compile(r"PIPELINE_MODEL_PARALLEL_GROUP|(?:mesh_)?pp", re.IGNORECASE)
_DATA = re.compile(r"DATA_PARALLEL_GROUP(?:_WITH_CP)?|(?:mesh_)?dp(?:_replicate|_shard)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Identity:
    """What one file says of whose it is.

    Args:
        path: the file.
        header: the rank in its header, or None.
        named: the rank in its name, or None.
    """

    path: Path
    header: int | None
    named: int | None


def identity(path: Path, header: dict[str, Any]) -> Identity:
    """Read the rank from ``distributedInfo`` and from the name of a file."""
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    match = None if header.get(_MERGED) else _IN_NAME.search(path.name)
    sound = isinstance(rank, int) and 0 <= rank < _MOST_RANKS
    return Identity(path, rank if sound else None, int(match[1]) if match else None)


def with_rank(header: dict[str, Any], rank: int) -> dict[str, Any]:
    """The header of a file that was merged of many ranks, for one of them; its name then says nothing."""
    info = header.get("distributedInfo")
    return {**header, "distributedInfo": {**(info if isinstance(info, dict) else {}), "rank": rank}, _MERGED: True}


def settle(files: Sequence[Identity]) -> tuple[list[int | None], list[str]]:
    """A rank for each file, None for one that must be left out, and what was doubtful, a sentence each."""
    wanted = [one.named if one.header is None else one.header for one in files]
    ranks: list[int | None] = [None] * len(files)
    remarks: list[str] = []
    sure = sorted(range(len(files)), key=lambda i: (files[i].named != wanted[i], files[i].header is None))
    owner: dict[int, Identity] = {}
    for i in sure:
        one, want = files[i], wanted[i]
        free = one.named is not None and one.named not in {*owner, *(w for j, w in enumerate(wanted) if j != i)}
        if want is not None and want not in owner:
            ranks[i] = want
        elif want is None and len(files) == 1:
            ranks[i] = 0
        elif want is None:
            remarks.append(f"{one.path}: neither its header nor its name tells its rank; it was left out")
        elif free:
            ranks[i] = one.named
            rule = f"its header says rank {want}, which is {owner[want].path.name}"
            remarks.append(f"{one.path}: {rule}; it was taken as rank {one.named}, as its name says")
        else:
            remarks.append(f"{one.path}: it claims rank {want}, which {owner[want].path.name} has; it was left out")
        if (rank := ranks[i]) is not None:
            owner[rank] = one
    by_name = [f"{one.path}: its header has no rank; its name says rank {one.named}" for one in files if _by_name(one)]
    if len(by_name) > 2:
        by_name = [f"{by_name[0]}; so for {len(by_name)} files"]
    return ranks, by_name + remarks


def _by_name(one: Identity) -> bool:
    return one.header is None and one.named is not None


def place_in_groups(header: dict[str, Any], rank: int) -> tuple[int | None, int | None]:
    """Position in the pipeline and replica of a rank by the process groups in its header; None where they are not told.

    Megatron calls its groups ``PIPELINE_MODEL_PARALLEL_GROUP``, torchtitan ``mesh_pp``; their ranks are in order.
    """
    info = header.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, dict) else None
    position = replica = None
    for group in groups if isinstance(groups, list) else []:
        members = _members(group)
        if rank not in members or len(members) < 2:
            continue
        name = str(group.get("pg_desc", ""))
        if _PIPELINE.fullmatch(name):
            position = members.index(rank)
        elif _DATA.fullmatch(name):
            replica = members.index(rank)
    return (position, replica) if position is not None else (None, None)


def _members(group: object) -> list[int]:
    """The ranks of a group, which some versions write as a string."""
    ranks = group.get("ranks", []) if isinstance(group, dict) else []
    if isinstance(ranks, str):
        ranks = [int(number) for number in re.findall(r"\d+", ranks)]
    return [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else []
