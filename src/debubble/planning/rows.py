"""Rows of measured tables: model, cluster, layout and what was seen; and how the common columns are read."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config.layout import Layout
from ..estimate.hardware import Cluster
from ..estimate.model import Model

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        group: what rows must share to be ranked against each other.
        source: repository, file, line and commit.
        status: ``ok``, or what the source calls a failure.
        seconds: of a step; 0 where there is none.
        memory: peak bytes of a device; 0 where there is none.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    group: tuple[str, ...]
    source: str
    status: str = "ok"
    seconds: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """One set: its file, which rows of it count, and how a row is read."""

    name: str
    file: str
    read: Callable[[Cells], Row | None]


def read_table(folder: Path, table: Table) -> list[Row]:
    """Rows of a set that can be predicted, exact repeats once; those that lack a shape or a size are left out."""
    with (folder / table.file).open(newline="", encoding="utf-8") as lines:
        rows = [row for cells in csv.DictReader(lines) if (row := table.read(cells)) is not None]
    seen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.model, row.layout, row.cluster.gpus, row.cluster.device.name, row.seconds, row.status, row.group)
        if key not in seen or row.memory > seen[key].memory:
            seen[key] = row
    return list(seen.values())


def number(cells: Cells, name: str, otherwise: float = 0.0) -> float:
    """A cell as a number; what is empty or no number is ``otherwise``."""
    try:
        return float(cells.get(name) or otherwise)
    except ValueError:
        return otherwise


def whole(cells: Cells, name: str, otherwise: int = 1) -> int:
    """A cell as a whole number."""
    return int(number(cells, name, otherwise))


def layout_of(cells: Cells, **facts: object) -> Layout | None:
    """The layout in the common columns; None where batch, replicas and micro-batch do not fit together."""
    data, size, batch = whole(cells, "dp"), whole(cells, "mbs"), whole(cells, "gbs")
    microbatches, rest = divmod(batch, data * size)
    if rest or microbatches < 1:
        return None
    chunks = whole(cells, "vp")
    given = {
        "tensor": whole(cells, "tp"),
        "pipeline": whole(cells, "pp"),
        "data": data,
        "context": whole(cells, "cp"),
        "expert": whole(cells, "ep"),
        "chunks": chunks,
        "micro_batch": size,
        "microbatches": microbatches,
        "sequence": whole(cells, "seq_len"),
        "schedule": "interleaved" if chunks > 1 else "1f1b",
    }
    return Layout(**{**given, **facts})  # type: ignore[arg-type]
