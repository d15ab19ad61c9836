"""Measured runs: a table with one run a row, its model, devices and layout, and what was seen of it.

An empty cell is unknown: what follows from other cells is worked out, what has a usual value is taken as that and
counted, and a row that lacks more is left out for a reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from ..config.config import (
    GRADIENT_BYTES,
    MODULES,
    MOMENT_BYTES,
    PRECISIONS,
    RECOMPUTE,
    SWITCHES,
    Config,
    Layout,
    even_split,
    layout_of,
)
from ..core.errors import Fault, InputError
from ..estimate.hardware import GIGA, Cluster, cluster_of, read_hardware
from ..estimate.memory import beside_bytes
from ..estimate.model import Experts, Model, transformer
from ..estimate.read_model import read_model
from ..estimate.setting import Setting
from ..frameworks.catalog import FRAMEWORKS
from ..frameworks.framework import habits_of
from ..schedules.catalog import called
from .idle import SCHEDULES, columns

MOST_FAULTS = 20  # that are told: a column of the wrong unit makes one in each row
GIB = 2.0**30
STATUS = ("ok", "oom", "failed")
TASKS = ("", "pretrain", "pre-training", "pretraining", "training")

_SIZES = ("layers", "hidden", "heads", "ffn", "vocab")
_DEGREES = ("tensor", "pipeline", "data", "context")
# Column of a switch -> the fields of ``Config`` that it sets: two columns of published tables, then our own names.
_SWITCHES = {
    "data_overlap": ("overlap", "overlap_gather"),
    "gather_overlap": ("overlap_gather",),
    **{name: (name,) for name in SWITCHES},
}
COLUMNS = (
    *("model", *_SIZES, "kv_heads", "tied", "gated", "biases", "dropout", "positions", "next_layers"),
    *("experts", "top_k", "expert_ffn", "shared_experts", "dense_layers"),
    *("gpu", "gpus", "gpus_per_node", "nic_gb_s", "framework", "framework_version", "precision"),
    *("sequence", "global_batch", "micro_batch", "microbatches", *_DEGREES, "expert", "expert_tensor"),
    *("chunks", "schedule", "first_layers", "last_layers", "split", "zero", "recompute", "recompute_modules"),
    *("recompute_layers", "gradient_precision", "optimizer_precision", "gradient_copies", "offload", "offload_layers"),
    *(*_SWITCHES, "pieces", "bucket_bytes", "bucket", "task", "status", "step_seconds"),
    *("tokens_per_second_per_gpu", "peak_gib", "memory_gb", "device_gib", "time_doubt", "group", "source", "note"),
)
_OTHER_NAMES = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "cp": "context",
    "ep": "expert",
    "etp": "expert_tensor",
    "vp": "chunks",
    "mbs": "micro_batch",
    "gbs": "global_batch",
    "m": "microbatches",
    "seq_len": "sequence",
    "zero_stage": "zero",
    "step_s": "step_seconds",
    "step_time_s": "step_seconds",
    "seconds": "step_seconds",
    "mem_gb": "memory_gb",
}
_SEEN = ("step_seconds", "tokens_per_second_per_gpu", "peak_gib", "memory_gb", "device_gib", "status")
_COUNTS = (
    *("sequence", "micro_batch", "expert", "expert_tensor", "zero", "recompute_layers", "pieces", "offload_layers"),
)
# Unknown in a row, these are taken as they usually are, and the rows are counted.
_TAKEN_AS_USUAL = ("precision", "zero", "recompute", "sequence_parallel", "tensor_overlap", "data_overlap")


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        group: what runs must share to be ranked against each other.
        source: where it is from.
        status: ``ok``, ``oom`` (it ran out of memory) or ``failed``.
        seconds: of a step; 0 if there is none.
        memory: peak bytes of a device; 0 if there is none.
        framework: that ran it, as the table calls it.
        time_doubt: why its step is not to be trusted; empty if it is.
        unknown: columns that it leaves empty and that were taken as they usually are.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    group: tuple[str, ...]
    source: str
    status: str = "ok"
    seconds: float = 0.0
    memory: float = 0.0
    framework: str = ""
    time_doubt: str = ""
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunTable:
    """A table of measured runs.

    Args:
        name: of the set: the stem of its file.
        runs: that can be predicted; exact repeats once.
        left_out: reasons for which other rows are left out, and how many, the most frequent first.
        taken_as_usual: columns that are unknown in so many rows.
        unknown_columns: that mean nothing here.
    """

    name: str
    runs: tuple[Run, ...]
    left_out: tuple[tuple[str, int], ...]
    taken_as_usual: tuple[tuple[str, int], ...]
    unknown_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """What is planned, of which a table of runs need not say what it shares with it.

    Args:
        model: of rows that name none.
        cluster: on which they ran; each row's own number of devices replaces its.
        base: of their layout.
    """

    model: Model
    cluster: Cluster
    base: Layout = field(default_factory=Layout)


def read_runs(path: Path, planned: Planned | None = None) -> RunTable:
    """The measured runs of a CSV.

    Args:
        path: the file; models and devices that are files are looked for beside it.
        planned: what rows need not say; None if each says it.

    Raises:
        InputError: no table, a column that is needed, or cells that cannot be read; all faults of all rows at once.
    """
    columns, rows = read_cells(path, _OTHER_NAMES)
    _check_columns(path, columns, planned)
    faults: list[Fault] = []
    left_out, unknown = Counter[str](), Counter[str]()
    runs: dict[object, Run] = {}
    for line, named in rows:
        cells = Cells(named, f"{path.name} line {line}", faults)
        try:
            run = _run(cells, path.parent, planned)
        except Unusable as reason:
            left_out[str(reason)] += 1
            continue
        unknown.update(sorted(run.unknown))  # columns that are unknown equally often are in the order of their names
        same = (run.model, run.layout, run.cluster.gpus, run.cluster.device.name, run.seconds, run.status, run.group)
        if same in runs:
            left_out["it repeats another row"] += 1
        # Of repeats the one that prints more memory counts: some logs hold it for one rank, others for all.
        if same not in runs or run.memory > runs[same].memory:
            runs[same] = run
    if faults:
        raise InputError(*faults[:MOST_FAULTS])
    return RunTable(
        name=path.stem,
        runs=tuple(runs.values()),
        left_out=tuple(left_out.most_common()),
        taken_as_usual=tuple(unknown.most_common()),
        unknown_columns=tuple(name for name in columns if name not in COLUMNS),
    )


def _check_columns(path: Path, columns: Sequence[str], planned: Planned | None) -> None:
    """Refuse a table that lacks a column which nothing else can tell."""
    faults = []
    if planned is None and "model" not in columns and "hidden" not in columns:
        faults.append(Fault(f"{path.name}: model", "it is missing", f"add it, or {', '.join(_SIZES)}"))
    for name in ("gpu", "gpus", "sequence", "micro_batch"):
        if planned is None and name not in columns:
            faults.append(Fault(f"{path.name}: {name}", "it is missing", f"add a column {name}"))
    if not any(name in columns for name in _SEEN):
        remedy = "add a column step_seconds, tokens_per_second_per_gpu, peak_gib or status"
        faults.append(Fault(path.name, "it says nothing that was seen", remedy))
    if faults:
        raise InputError(*faults)


def _run(cells: Cells, folder: Path, planned: Planned | None) -> Run:
    """One row.

    Raises:
        Unusable: it cannot be predicted.
    """
    status = cells.word("status") or "ok"
    if status not in STATUS:
        raise Unusable(f"status = {status}")
    if cells.word("task") not in TASKS:
        raise Unusable(f"task = {cells.text('task')}")
    model = _model(cells, folder, planned)
    layout = _layout(cells, model, planned)
    cluster = _cluster(cells, folder, layout.gpus, planned)
    seconds, rate = cells.decimal("step_seconds"), cells.decimal("tokens_per_second_per_gpu")
    # Both are common in tables; a step is what is predicted, so a rate is turned into one.
    if not seconds and rate:
        seconds = layout.global_batch * layout.sequence / (rate * layout.gpus)
    group: tuple[str, ...] = (cells.text("group"),)
    if not cells.text("group"):  # only runs of the same work on the same devices can be ranked
        alike = (layout.gpus, layout.sequence, layout.global_batch, layout.precision)
        group = (model.name, cluster.device.name, *map(str, alike))
    return Run(
        model=model,
        cluster=cluster,
        layout=layout,
        group=group,
        source=cells.text("source") or cells.place,
        status=status,
        seconds=seconds,
        memory=_allocated(cells, Setting(model, cluster, columns([layout], model.layers))),
        framework=cells.text("framework"),
        time_doubt=cells.text("time_doubt"),
        unknown=frozenset(name for name in _TAKEN_AS_USUAL if not cells.text(name)),
    )


def _allocated(cells: Cells, setting: Setting) -> float:
    """Bytes of the fullest rank that a framework allocated; 0 if nothing is said.

    Of what the device's own tool showed, that is all but the context of the process and the communicators.
    """
    shown = cells.decimal("device_gib") * GIB
    if shown:
        return max(shown - float(beside_bytes(setting)[0]), 0.0)
    return cells.decimal("peak_gib") * GIB or cells.decimal("memory_gb") * GIGA


def _model(cells: Cells, folder: Path, planned: Planned | None) -> Model:
    """By name, by a file beside the table, or from sizes; a name counts unless its hidden size is another one."""
    name, hidden, layers = cells.text("model"), cells.count("hidden"), cells.count("layers")
    known = _named_model(name, folder) if name else None
    if known is None and planned and not name and hidden is None:
        known = planned.model
    if known and hidden in (None, known.hidden):
        model = known.with_layers(layers) if layers else known
    else:
        model = _model_of_sizes(cells, name)
    dense = cells.count("dense_layers")
    if dense is not None:
        model = model.with_dense_first(min(dense, model.layers))
    positions, next_layers = cells.count("positions"), cells.count("next_layers")
    if positions is not None:
        model = replace(model, positions=positions)
    if next_layers is not None:
        model = replace(model, next_heads=next_layers)
    return model


def _named_model(name: str, folder: Path) -> Model | None:
    """A model of ours, or one in a file beside the table; None if there is neither."""
    beside = folder / name
    try:
        return _read_model(str(beside) if beside.exists() else name)
    except (InputError, OSError):
        return None


_read_model = cache(read_model)  # a table names the same few models again and again


def _model_of_sizes(cells: Cells, name: str) -> Model:
    """A transformer of the sizes in its columns."""
    sizes = {size: cells.count(size) or 0 for size in _SIZES}
    missing = [size for size, value in sizes.items() if not value]
    if missing:
        raise Unusable(f"model = {name} is not known" if name else f"{', '.join(missing)} of the model unknown")
    gated = cells.switch("gated") is not False
    model = transformer(
        name or "model",
        layers=sizes["layers"],
        hidden=sizes["hidden"],
        ffn=sizes["ffn"],
        heads=sizes["heads"],
        kv_heads=cells.count("kv_heads") or sizes["heads"],
        vocab=sizes["vocab"],
        gated=gated,
        experts=_experts(cells, gated),
    )
    return replace(
        model,
        tied=bool(cells.switch("tied")),
        biases=bool(cells.switch("biases")),
        dropout=bool(cells.switch("dropout")),
    )


def _experts(cells: Cells, gated: bool) -> Experts | None:
    count = cells.count("experts")
    if not count:
        return None
    active, width = cells.count("top_k"), cells.count("expert_ffn")
    if not active or not width:
        raise Unusable("top_k or expert_ffn of the experts unknown")
    return Experts(count, active, width, (cells.count("shared_experts") or 0) * width, gated)


def _cluster(cells: Cells, folder: Path, gpus: int, planned: Planned | None) -> Cluster:
    """The devices and what joins them."""
    name = cells.text("gpu")
    if not name and planned:
        return replace(planned.cluster, gpus=gpus)
    try:
        device = read_hardware(str(folder / name) if name.endswith(".toml") else name)
    except (InputError, OSError):
        raise Unusable(f"gpu = {name} is not known") from None
    nic = cells.decimal("nic_gb_s") * GIGA
    return cluster_of(device, gpus, gpus_per_node=cells.count("gpus_per_node"), nic=nic or None)


def _layout(cells: Cells, model: Model, planned: Planned | None) -> Layout:
    """The layout, with the habits of its framework."""
    degrees = _degrees(cells, planned)
    base = planned.base if planned else Layout()
    said: dict[str, Any] = {**degrees, **_choices(cells)}
    if not planned:
        _need(cells, "sequence", "micro_batch")
        if model.experts:
            _need(cells, "expert")
    said["chunks"], said["schedule"] = _pipelined(cells, degrees["pipeline"], planned)
    framework = FRAMEWORKS.get(cells.word("framework"))
    # What a framework does by itself no row says.
    if framework or not planned:  # rows of a plan's own runs are as the plan is
        base = replace(base, **habits_of(framework, degrees["pipeline"]))
    for name in ("micro_batch", "data"):
        said.setdefault(name, getattr(base, name))
    said["microbatches"] = _microbatches(cells, said, planned)
    config = Config(name=cells.place).changed(**said)  # the noun of plans and scripts: one path to a layout
    layout = layout_of(config, base)
    if layout.expert * layout.expert_shards > layout.tensor * layout.data * layout.context:
        raise Unusable("experts are spread over more devices than a stage has")
    if layout.stages > model.layers:
        raise Unusable("more stages than layers")
    if layout.chunks > 1 and layout.microbatches < layout.pipeline:
        raise Unusable("interleaved with fewer micro-batches than ranks")
    return replace(layout, layers=_split(cells, model, layout))


def _need(cells: Cells, *names: str) -> None:
    missing = [name for name in names if not cells.text(name)]
    if missing:
        raise Unusable(f"{', '.join(missing)} unknown")


def _degrees(cells: Cells, planned: Planned | None) -> dict[str, int]:
    """Tensor, pipeline, data and context.

    A single one that is unknown follows from the devices; all are 1 that must be for the known ones to be all devices.
    """
    known = {name: value for name in _DEGREES if (value := cells.count(name))}
    missing = [name for name in _DEGREES if name not in known]
    gpus, product = cells.count("gpus"), prod(known.values())
    if gpus is None and planned:  # a table of the plan's own layouts leaves out what is 1
        return {name: known.get(name, 1) for name in _DEGREES}
    if not gpus:
        raise Unusable("gpus unknown")
    rest, over = divmod(gpus, product)
    if over or (not missing and rest > 1):
        raise Unusable("tensor x pipeline x data x context are not its gpus")
    if len(missing) > 1 and rest > 1:
        raise Unusable(f"{', '.join(missing)} unknown")
    return {name: known.get(name, rest) for name in _DEGREES}


def _pipelined(cells: Cells, ranks: int, planned: Planned | None) -> tuple[int, str]:
    """Chunks and schedule; a schedule that is not named is 1F1B, interleaved if a rank has several chunks."""
    if ranks == 1:
        return 1, "1f1b"
    chunks, schedule = cells.count("chunks"), cells.word("schedule")
    entry = called(schedule)
    if entry is not None and not entry.trains:
        entry = None
    if entry is None and schedule not in ("", "none"):
        cells.fault("schedule", f"known: {', '.join(SCHEDULES)}")
    several = entry is None or entry.any_chunks  # so that how many is not known from its name
    if chunks is None and several and not planned:
        raise Unusable("chunks unknown")
    if entry is None:
        chunks = chunks or 1
        return chunks, "interleaved" if chunks > 1 else "1f1b"
    return chunks or entry.chunks, entry.name


def _microbatches(cells: Cells, said: Mapping[str, Any], planned: Planned | None) -> int:
    many, batch = cells.count("microbatches"), cells.count("global_batch")
    if many:
        return many
    if not batch and planned:
        return planned.base.microbatches
    if not batch:
        raise Unusable("global_batch unknown")
    of_all: int = said["data"] * said["micro_batch"]
    many, rest = divmod(batch, of_all)
    if rest or not many:
        raise Unusable("data x micro_batch does not divide the global batch")
    return many


def _choices(cells: Cells) -> dict[str, Any]:
    """What else a row says of its layout."""
    said: dict[str, Any] = {
        "precision": cells.word("precision", PRECISIONS) or None,
        "recompute": cells.word("recompute", RECOMPUTE) or None,
        "recompute_modules": cells.words("recompute_modules", MODULES) or None,
        "gradient_precision": cells.word("gradient_precision", tuple(GRADIENT_BYTES)) or None,
        "optimizer_precision": cells.word("optimizer_precision", tuple(MOMENT_BYTES)) or None,
        "gradient_copies": cells.count("gradient_copies"),
        "offload_optimizer": "optimizer" in cells.words("offload", ("optimizer", "activations")) or None,
        "bucket": cells.decimal("bucket_bytes") or cells.decimal("bucket") or None,
    }
    for name in _COUNTS:
        said[name] = cells.count(name)
    for column, parts in _SWITCHES.items():
        on = cells.switch(column)
        if on is not None:
            said |= dict.fromkeys(parts, on)
    if said["recompute_layers"] is not None:
        said["recompute_method"] = "block"  # the first layers of each stage
    return {name: value for name, value in said.items() if value is not None}


def _split(cells: Cells, model: Model, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage: as said, with fewer or more at the ends, or even."""
    split, first, last = cells.counts("split"), cells.count("first_layers"), cells.count("last_layers")
    if split and (len(split) != layout.stages or sum(split) != model.layers):
        cells.fault("split", f"it is {layout.stages} stages that sum to {model.layers} layers")
    if split or (first is None and last is None):
        return split
    ends = [end for end in (first, last) if end is not None]
    inner = even_split(model.layers - sum(ends), max(layout.stages - len(ends), 1))
    if first is not None:
        inner = (first, *inner)
    if last is not None:
        inner = (*inner, last)
    return inner


LARGEST = 20_000_000  # bytes of a table
LARGEST_COUNT, LARGEST_NUMBER = 1e12, 1e15  # beyond what any job has, and what floats count exactly
SHOWN = 40  # characters of a cell in a fault
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Unusable(Exception):
    """A row of which nothing can be said, with the reason."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One row.

    Args:
        cells: by column; an empty cell is unknown.
        place: file and line, for faults.
        faults: of all rows of the table, to which this row adds its own.
    """

    cells: Mapping[str, str]
    place: str
    faults: list[Fault]

    def text(self, name: str) -> str:
        """A cell as it is; empty if it is unknown."""
        return self.cells.get(name, "")

    def word(self, name: str, known: Sequence[str] = ()) -> str:
        """A cell in lower case, one of ``known`` if there are any; empty if it is unknown."""
        word = self.text(name).lower()
        if word and known and word not in known:
            self.fault(name, f"known: {', '.join(known)}")
            return ""
        return word

    def words(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """Words with spaces or commas between them, each one of ``known``; none if they are unknown."""
        words = tuple(self.text(name).lower().replace(",", " ").split())
        if any(word not in known for word in words):
            self.fault(name, f"known: {', '.join(known)}")
            return ()
        return words

    def count(self, name: str) -> int | None:
        """A whole number from 0 on; None if it is unknown."""
        number = self._number(name)
        if number is None:
            return None
        if not 0 <= number < LARGEST_COUNT or number != int(number):
            self.fault(name, "it is a whole number")
            return None
        return int(number)

    def counts(self, name: str) -> tuple[int, ...]:
        """Whole numbers with spaces or commas between them; none if they are unknown."""
        parts = self.text(name).replace(",", " ").split()
        if not all(part.isascii() and part.isdecimal() for part in parts):
            self.fault(name, "it is a list of whole numbers")
            return ()
        return tuple(int(part) for part in parts)

    def decimal(self, name: str) -> float:
        """A number above 0; 0 if it is unknown."""
        number = self._number(name)
        if number is None:
            return 0.0
        if not 0 < number < LARGEST_NUMBER:
            self.fault(name, "it is a number above 0", "correct it, or leave the cell empty")
            return 0.0
        return number

    def switch(self, name: str) -> bool | None:
        """1 or 0, yes or no, on or off, true or false; None if it is unknown."""
        word = self.text(name).lower()
        if word and word not in (*YES, *NO):
            self.fault(name, "it is 1 or 0")
            return None
        return word in YES if word else None

    def fault(self, name: str, rule: str, remedy: str = "correct it") -> None:
        """Note a cell that cannot be read."""
        self.faults.append(Fault(f"{self.place}: {name} = {self.text(name)[:SHOWN]}", rule, remedy))

    def _number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            return -1.0  # no number of a table: whoever asks refuses it by its own rule


def read_cells(path: Path, other_names: Mapping[str, str]) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The columns of a CSV by their names, and for each row its line and its cells.

    Args:
        path: the file.
        other_names: further names of columns.

    Raises:
        InputError: no CSV, or no row.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"a table has less than {LARGEST:,} bytes", "give a table of runs"))
    lines = []
    try:
        reader = csv.reader(raw.decode("utf-8-sig", errors="replace").splitlines())
        for number, line in enumerate(reader, start=1):
            if any(cell.strip() for cell in line):
                lines.append((number, [cell.strip() for cell in line]))
    except csv.Error as error:
        raise InputError(Fault(str(path), f"it is no CSV: {error}", "give a table of runs")) from None
    if len(lines) < 2:
        raise InputError(Fault(str(path), "it holds no rows", "give a line of names and a line for each measured run"))
    names = [other_names.get(name.lower(), name.lower()) for name in lines[0][1]]
    return names, [(number, dict(zip(names, line, strict=False))) for number, line in lines[1:]]
