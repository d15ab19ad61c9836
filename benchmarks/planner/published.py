"""Published tables of runs in the form that ``debubble validate`` reads: ``python published.py FOLDER --out DIR``.

Each CSV of FOLDER is known by its columns, whatever it is called, and written to DIR as one set or more, with every
row: what its source marks as doubtful is said in ``time_doubt``, and whatever else it says of a row in ``note``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from sources import SOURCES, Cells, Source

COLUMNS = (
    *("model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied", "gated", "biases", "dropout"),
    *("positions", "next_layers", "experts", "top_k", "expert_ffn", "shared_experts", "dense_layers"),
    *("gpu", "gpus", "gpus_per_node", "nic_gb_s", "framework", "framework_version", "precision"),
    *("sequence", "global_batch", "micro_batch", "tensor", "pipeline", "data", "context", "expert", "expert_tensor"),
    *("chunks", "schedule", "split", "zero", "sequence_parallel", "recompute", "recompute_modules", "recompute_layers"),
    *("gradient_precision", "gradient_copies", "optimizer_precision", "offload", "offload_layers", "fused_loss"),
    "weights_are_master",
    *(
        "tensor_overlap",
        "data_overlap",
        "gather_overlap",
        "gather_by_tensor",
        "fused_attention",
        "fused_kernels",
        "pieces",
        "bucket_bytes",
    ),
    *("blocking_sends", "scattered_sends", "blocking_launches", "graphs", "flex_dispatch", "expert_overlap"),
    *("task", "status", "step_seconds", "tokens_per_second_per_gpu", "peak_gib", "device_gib", "time_doubt", "group"),
    *("source", "note"),
)


def main(arguments: list[str] | None = None) -> int:
    """Convert every table of a folder that is known by its columns; say what was written and what was not known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the published tables are")
    parser.add_argument("--out", type=Path, required=True, help="where to write the tables of measured runs")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        parser.error(f"{given.folder}: no such folder")
    given.out.mkdir(parents=True, exist_ok=True)
    sets = converted(given.folder)
    for name, rows in sets.items():
        path = given.out / f"{name}.csv"
        write(path, rows)
        print(f"{path}: {len(rows)} rows")
    if not sets:
        print(f"{given.folder}: none of its tables is known by its columns", file=sys.stderr)
    return 0 if sets else 1


def converted(folder: Path) -> dict[str, list[Cells]]:
    """Every known set of a folder with its rows, in the form of ``COLUMNS``; sets of one name are one."""
    sets: dict[str, list[Cells]] = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8", errors="replace") as lines:
            rows = list(csv.DictReader(lines))
        source = source_of(set(rows[0])) if rows else None
        if source is None:
            print(f"{path.name}: left out, its columns are not those of a table of runs", file=sys.stderr)
            continue
        for cells in source.prepared(rows):
            sets.setdefault(source.set_of(cells, path.stem), []).append(source.row(cells))
    return sets


def source_of(columns: set[str]) -> Source | None:
    """The first source whose columns a table has."""
    return next((source for source in SOURCES if source.knows(columns)), None)


def write(path: Path, rows: list[Cells]) -> None:
    """Columns that no row fills are left out."""
    used = [name for name in COLUMNS if any(row.get(name) not in (None, "") for row in rows)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, used, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
