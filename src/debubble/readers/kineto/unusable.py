"""Files that would be misread: they are left out, and it is said why."""

from __future__ import annotations

from typing import Any

import numpy as np

from .names import Way
from .pieces import Pieces
from .posts import posts_of
from .tables import Tables


def unfit(tables: Tables, header: dict[str, Any]) -> str:
    """Why a file cannot be read as one rank's work, as a clause, or an empty string."""
    lanes = np.unique(tables.columns["kernels"]["lane"]).tolist()
    devices = {tables.lanes[lane][0] for lane in lanes}
    if len(devices) > 1:
        return f"it holds kernels of {len(devices)} devices: ranks that were merged cannot be told apart any more"
    if not lanes and (len(tables.columns["launches"]["start"]) or header.get("deviceProperties")):
        return "it ran on a device, but no kernel is in the file: times on the CPU are not those of the work"
    return ""


def untold(tables: Tables, pieces: Pieces) -> str:
    """Why no op was found where a rank does send and receive, as a clause, or an empty string."""
    posts = posts_of(tables)
    if not len(posts) or not (pieces.way == Way.UNTOLD).any():
        return ""
    return (
        f"it posts {len(posts):,} sends and receives, but nothing tells its forward work from its backward: "
        "no range or kernel names a direction, and no work of the autograd engine is in it (profile CPU activities too)"
    )
