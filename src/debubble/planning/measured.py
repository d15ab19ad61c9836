"""Measured tables by name: which published set stands in which file, and how its rows are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .recipes import bridge, dgxc, foundry, misc
from .rows import Row, Table, read_table
from .sweeps import bigscience, ultrascale, vtrain

__all__ = ["TABLES", "Row", "Table", "read_table", "tables_in"]

TABLES = (
    Table("vtrain multi", "vtrain_a100.csv", vtrain("multi")),
    Table("bigscience", "bigscience_a100.csv", bigscience),
    Table("ultrascale clean", "ultrascale_h100.csv", ultrascale),
    Table("vtrain single", "vtrain_a100.csv", vtrain("single")),
    Table("dgxc", "dgxc_benchmarking.csv", dgxc),
    Table("megatron bridge", "megatron_bridge.csv", bridge),
    Table("llm foundry", "llm_foundry_fsdp.csv", foundry),
    Table("misc", "misc_published.csv", misc),
)


def tables_in(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Name and rows of each known set whose file lies in a folder."""
    for table in TABLES:
        if (folder / table.file).is_file():
            yield table.name, read_table(folder, table)
