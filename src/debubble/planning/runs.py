"""Measured runs: a table with one run a row, its model, devices and layout, and what was seen of it.

The columns are those of ``COLUMNS``; their usual short forms are known too (``_SHORT``). An empty cell is unknown: what
follows from other cells is worked out, what has a usual value is taken as that and counted, and a row that lacks more
is left out for a reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from ..config.layout import PRECISIONS, RECOMPUTE, SCHEDULES, Layout, even_split
from ..core.errors import Fault, InputError
from ..estimate.hardware import GIGA, Cluster, cluster_of, read_hardware
from ..estimate.model import Experts, Model, transformer
from ..estimate.read_model import read_model
from ..frameworks.backends import BACKENDS

LARGEST = 20_000_000  # bytes of a table
MOST_FAULTS = 20
GIB = 2.0**30
STATUS = ("ok", "oom", "failed")
TASKS = ("", "pretrain", "pre-training", "pretraining", "training")

_WORDS = ("model", "gpu", "framework", "framework_version", "precision", "schedule", "recompute", "task", "status")
_TEXTS = ("time_doubt", "group", "source", "note")
_COUNTS = (
    *("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "positions", "next_layers"),
    *("experts", "top_k", "expert_ffn", "shared_experts"),
    *("gpus", "gpus_per_node", "sequence", "global_batch", "micro_batch", "microbatches"),
    *("tensor", "pipeline", "data", "context", "expert", "expert_tensor", "chunks"),
    *("first_layers", "last_layers", "zero", "recompute_layers", "pieces"),
)
_NUMBERS = ("nic_gb_s", "bucket_bytes", "step_seconds", "tokens_per_second_per_gpu", "peak_gib")
_OF_THE_MODEL = ("tied", "gated", "biases", "dropout")
# Column of a switch -> the fields of ``Layout`` that it sets.
_SWITCHES = {
    "sequence_parallel": ("sequence_parallel",),
    "tensor_overlap": ("tensor_overlap",),
    "data_overlap": ("overlap", "overlap_gather"),
    "gather_overlap": ("overlap_gather",),
    "fused_attention": ("fused_attention",),
    "fused_kernels": ("fused_kernels",),
    "keep_gathered": ("keep_gathered",),
    "blocking_sends": ("blocking_sends",),
    "scattered_sends": ("scattered_sends",),
    "blocking_launches": ("blocking_launches",),
}
COLUMNS = (*_WORDS, *_TEXTS, *_COUNTS, *_NUMBERS, *_OF_THE_MODEL, *_SWITCHES, "split")
_SHORT = {
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
    "memory_gb": "memory_gb",
    "mem_gb": "memory_gb",
}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# Unknown in a row, these are taken as they usually are, and the rows are counted.
_TAKEN_AS_USUAL = ("precision", "zero", "recompute", "sequence_parallel", "tensor_overlap", "data_overlap")


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        group: what rows must share to be ranked against each other.
        source: where it is from.
        status: ``ok``, ``oom`` (it ran out of memory) or ``failed``.
        seconds: of a step; 0 if there is none.
        memory: peak bytes of a device; 0 if there is none.
        framework: that ran it, as the table calls it.
        time_doubt: why its step is not to be trusted; empty if it is.
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
class Otherwise:
    """What rows do not say of themselves.

    Args:
        model: of rows without a column for it.
        cluster: on which such rows ran; each row's own number of devices replaces its.
        base: of their layout.
    """

    model: Model | None = None
    cluster: Cluster | None = None
    base: Layout = field(default_factory=Layout)


_read_model = cache(read_model)  # a table names the same few models again and again


class _LeftOut(Exception):
    """A row that cannot be predicted, with the reason."""


def read_runs(path: Path, otherwise: Otherwise | None = None) -> RunTable:
    """The measured runs of a CSV.

    Args:
        path: the file; models and devices that are files are looked for beside it.
        otherwise: what stands in for columns that it does not have.

    Raises:
        InputError: no table, a column that is needed, or cells that cannot be read; all faults of all rows at once.
    """
    otherwise = otherwise or Otherwise()
    columns, rows = _cells(path)
    _check_columns(path, columns, otherwise)
    faults: list[Fault] = []
    left_out, unknown = Counter[str](), Counter[str]()
    runs: dict[object, Run] = {}
    for line, cells in rows:
        row = _Row(cells, path.parent, f"{path.name} line {line}", otherwise, faults)
        try:
            run = row.run()
        except _LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        unknown.update(name for name in _TAKEN_AS_USUAL if not cells.get(name))
        key = (run.model, run.layout, run.cluster.gpus, run.cluster.device.name, run.seconds, run.status, run.group)
        if key in runs:
            left_out["it repeats another row"] += 1
        if key not in runs or run.memory > runs[key].memory:
            runs[key] = run
    if faults:
        raise InputError(*faults[:MOST_FAULTS])
    strange = tuple(name for name in columns if name not in COLUMNS and name != "memory_gb")
    return RunTable(
        path.stem, tuple(runs.values()), tuple(left_out.most_common()), tuple(unknown.most_common()), strange
    )


def _cells(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Names of the columns, and for each row its line and its cells by those names."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror}", "give a CSV file")) from None
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"a table has less than {LARGEST:,} bytes", "give a table of runs"))
    reader = csv.reader(raw.decode("utf-8-sig", errors="replace").splitlines())
    try:
        lines = [(number, line) for number, line in enumerate(reader, start=1) if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise InputError(Fault(str(path), f"it is no CSV: {error}", "give a table of runs")) from None
    if not lines:
        raise InputError(Fault(str(path), "it holds no rows", "give a line of names and a line for each measured run"))
    names = [_SHORT.get(name.strip().lower(), name.strip().lower()) for name in lines[0][1]]
    rows = [(number, dict(zip(names, map(str.strip, line), strict=False))) for number, line in lines[1:]]
    if not rows:
        raise InputError(Fault(str(path), "it holds no rows", "give a line of names and a line for each measured run"))
    return names, rows


def _check_columns(path: Path, columns: Sequence[str], otherwise: Otherwise) -> None:
    """Refuse a table that lacks a column which nothing else can tell."""
    has = set(columns)
    faults = []
    if otherwise.model is None and not has & {"model", "hidden"}:
        faults.append(Fault(f"{path.name}: model", "it is missing", "add it, or layers, hidden, heads, ffn and vocab"))
    if otherwise.cluster is None:
        for name in ("gpu", "gpus", "sequence", "micro_batch"):
            if name not in has:
                faults.append(Fault(f"{path.name}: {name}", "it is missing", f"add a column {name}"))
    if not has & {"step_seconds", "tokens_per_second_per_gpu", "peak_gib", "memory_gb", "status"}:
        rule = "it says nothing that was measured"
        faults.append(Fault(path.name, rule, "add step_seconds or tokens_per_second_per_gpu, peak_gib, status"))
    if faults:
        raise InputError(*faults)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row as it is read; faults of its cells are collected.

    Args:
        cells: by column.
        folder: of the table.
        place: file and line, for faults.
        otherwise: what stands in for what it does not say.
        faults: of all rows.
    """

    cells: dict[str, str]
    folder: Path
    place: str
    otherwise: Otherwise
    faults: list[Fault]

    def run(self) -> Run:
        """The run.

        Raises:
            _LeftOut: it cannot be predicted.
        """
        status = self.word("status") or "ok"
        if status not in STATUS:
            raise _LeftOut(f"status = {status}")
        if self.word("task") not in TASKS:
            raise _LeftOut(f"task = {self.cells['task']}")
        model = self.model()
        layout = self.layout(model)
        seconds, rate = self.decimal("step_seconds"), self.decimal("tokens_per_second_per_gpu")
        if not seconds and rate:
            seconds = layout.global_batch * layout.sequence / (rate * layout.gpus)
        memory = self.decimal("peak_gib") * GIB or self.decimal("memory_gb") * GIGA
        cluster = self.cluster(layout)
        group = (self.cells.get("group", ""),)
        if not group[0]:
            group = (model.name, cluster.device.name, str(layout.gpus), str(layout.sequence), str(layout.global_batch))
        return Run(
            model,
            cluster,
            layout,
            group,
            self.cells.get("source") or self.place,
            status,
            seconds,
            memory,
            self.cells.get("framework", ""),
            self.cells.get("time_doubt", ""),
        )

    def word(self, name: str) -> str:
        """A cell in lower case."""
        return self.cells.get(name, "").lower()

    def count(self, name: str) -> int | None:
        """A whole number from 0 on; None if the cell is empty."""
        text = self.cells.get(name, "")
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e12 or number != int(number):
            self.fault(name, "it is a whole number")
            return None
        return int(number)

    def decimal(self, name: str) -> float:
        """A number above 0; 0 if the cell is empty."""
        text = self.cells.get(name, "")
        if not text:
            return 0.0
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e15:
            self.fault(name, "it is a number above 0", "correct it, or leave the cell empty")
            return 0.0
        return number

    def switch(self, name: str) -> bool | None:
        """1 or 0, yes or no, on or off, true or false; None if the cell is empty."""
        text = self.word(name)
        if text and text not in (*_YES, *_NO):
            self.fault(name, "it is 1 or 0")
        return text in _YES if text else None

    def fault(self, name: str, rule: str, remedy: str = "correct it") -> None:
        """Note a cell that cannot be read."""
        self.faults.append(Fault(f"{self.place}: {name} = {self.cells[name][:40]}", rule, remedy))

    def model(self) -> Model:
        """By name, by a file beside the table, or from sizes; a name goes before sizes that do not contradict it."""
        name = self.cells.get("model", "")
        sizes = {size: self.count(size) for size in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
        known = self.named_model(name) if name else self.otherwise.model
        hidden = sizes["hidden"]
        if known and hidden in (None, known.hidden):
            model = known
            if sizes["layers"]:
                model = model.with_layers(sizes["layers"])
        else:
            missing = [size for size, value in sizes.items() if value is None and size != "kv_heads"]
            if missing and name:
                raise _LeftOut(f"model = {name} is not known")
            if missing:
                raise _LeftOut(f"{', '.join(missing)} of the model unknown")
            model = self.model_of_sizes(name or "model", {size: value or 0 for size, value in sizes.items()})
        for column, fieldname in (("positions", "positions"), ("next_layers", "next_heads")):
            if (number := self.count(column)) is not None:
                model = replace(model, **{fieldname: number})
        return model

    def named_model(self, name: str) -> Model | None:
        """A model of ours, or one in a file beside the table; None if there is neither."""
        beside = self.folder / name
        try:
            return _read_model(str(beside) if beside.exists() else name)
        except (InputError, OSError):
            return None

    def model_of_sizes(self, name: str, sizes: dict[str, int]) -> Model:
        """A transformer of the sizes in its columns."""
        sizes["kv_heads"] = sizes["kv_heads"] or sizes["heads"]
        gated, tied, biases, dropout = (self.switch(part) for part in ("gated", "tied", "biases", "dropout"))
        experts = self.experts(gated is not False)
        model = transformer(name, gated=gated is not False, experts=experts, **sizes)
        return replace(model, tied=bool(tied), biases=bool(biases), dropout=bool(dropout))

    def experts(self, gated: bool) -> Experts | None:
        """A mixture of experts, if the row has some."""
        count = self.count("experts")
        if not count:
            return None
        active, width = self.count("top_k"), self.count("expert_ffn")
        if not active or not width:
            raise _LeftOut("top_k or expert_ffn of the experts unknown")
        return Experts(count, active, width, (self.count("shared_experts") or 0) * width, gated)

    def cluster(self, layout: Layout) -> Cluster:
        """The devices and what joins them."""
        nic = self.decimal("nic_gb_s") * GIGA or None
        per_node = self.count("gpus_per_node")
        name = self.cells.get("gpu", "")
        if not name and self.otherwise.cluster:
            return replace(self.otherwise.cluster, gpus=layout.gpus)
        beside = self.folder / name
        try:
            device = read_hardware(str(beside) if name.endswith(".toml") else name)
        except (InputError, OSError):
            raise _LeftOut(f"gpu = {name} is not known") from None
        return cluster_of(device, layout.gpus, gpus_per_node=per_node, nic=nic)

    def layout(self, model: Model) -> Layout:
        """The layout, with the habits of its framework."""
        degrees = self.degrees()
        chunks, schedule = self.pipelined(degrees["pipeline"])
        size, many = self.batch(degrees["data"])
        layout = replace(
            self.base(degrees["pipeline"]),
            **degrees,
            expert=self.spread(model),
            expert_tensor=self.count("expert_tensor") or 0,
            chunks=chunks,
            schedule=schedule,
            micro_batch=size,
            microbatches=many,
            **self.others(),
        )
        devices = layout.tensor * layout.data * layout.context
        if layout.expert * layout.expert_shards > devices:
            raise _LeftOut("experts are spread over more devices than a stage has")
        if layout.stages > model.layers:
            raise _LeftOut("more stages than layers")
        if layout.chunks > 1 and layout.microbatches < layout.pipeline:
            raise _LeftOut("interleaved with fewer micro-batches than ranks")
        return replace(layout, layers=self.split(model, layout))

    def base(self, ranks: int) -> Layout:
        """What the framework does by itself."""
        backend = BACKENDS.get(self.word("framework"))
        if backend is None:
            return self.otherwise.base
        habits = dict(backend.habits)
        if ranks > 1:
            habits |= backend.in_pipelines
        return replace(self.otherwise.base, **habits)  # type: ignore[arg-type]  # names of fields and what they are

    def degrees(self) -> dict[str, int]:
        """Tensor, pipeline, data and context: one that is unknown follows from the devices, as all do that must be 1."""
        names = ("tensor", "pipeline", "data", "context")
        known = {name: value for name in names if (value := self.count(name))}
        missing = [name for name in names if name not in known]
        gpus, product = self.count("gpus"), prod(known.values())
        if gpus is None and self.otherwise.cluster:  # rows of a plan's own: what they do not say is 1
            return {name: known.get(name, 1) for name in names}
        if not gpus:
            raise _LeftOut("gpus unknown")
        if gpus % product or (not missing and gpus != product):
            raise _LeftOut("tensor x pipeline x data x context are not its gpus")
        rest = gpus // product
        if rest > 1 and len(missing) > 1:
            raise _LeftOut(f"{', '.join(missing)} unknown")
        return {name: known.get(name, rest if len(missing) == 1 else 1) for name in names}

    def pipelined(self, ranks: int) -> tuple[int, str]:
        """Chunks and schedule; a schedule that is not named is 1F1B, interleaved if a rank has several chunks."""
        chunks, schedule = self.count("chunks"), self.word("schedule")
        if ranks == 1:
            return 1, "1f1b"
        if schedule in ("", "none"):
            schedule = "interleaved" if (chunks or 1) > 1 else "1f1b"
            if chunks is None and self.otherwise.cluster is None:
                raise _LeftOut("chunks unknown")
        elif schedule not in SCHEDULES:
            raise _LeftOut(f"schedule = {schedule} is not known")
        return chunks or 1, schedule

    def batch(self, data: int) -> tuple[int, int]:
        """Samples of a micro-batch, and micro-batches."""
        size, batch, many = (self.count(name) for name in ("micro_batch", "global_batch", "microbatches"))
        if size is None and self.otherwise.cluster:
            size = self.otherwise.base.micro_batch
        if not size:
            raise _LeftOut("micro_batch unknown")
        if batch is None and many is None and self.otherwise.cluster:
            many = self.otherwise.base.microbatches
        if many is None:
            if not batch:
                raise _LeftOut("global_batch unknown")
            many, rest = divmod(batch, data * size)
            if rest or not many:
                raise _LeftOut("data x micro_batch does not divide the global batch")
        return size, many

    def spread(self, model: Model) -> int:
        """Devices over which experts are spread."""
        expert = self.count("expert")
        if expert is None and model.experts and self.otherwise.cluster is None:
            raise _LeftOut("expert unknown")
        return expert or 1

    def others(self) -> dict[str, Any]:
        """What else the row says of its layout."""
        said: dict[str, Any] = {}
        for name, words in (("precision", PRECISIONS), ("recompute", RECOMPUTE)):
            word = self.word(name)
            if word and word not in words:
                self.fault(name, f"known: {', '.join(words)}")
            elif word:
                said[name] = word
        for name in ("sequence", "zero", "recompute_layers", "pieces"):
            if (number := self.count(name)) is not None:
                said[name] = number
        if self.decimal("bucket_bytes"):
            said["bucket"] = self.decimal("bucket_bytes")
        for column, fields in _SWITCHES.items():
            if (on := self.switch(column)) is not None:
                said |= dict.fromkeys(fields, on)
        if "sequence" not in said and self.otherwise.cluster is None:
            raise _LeftOut("sequence unknown")
        return said

    def split(self, model: Model, layout: Layout) -> tuple[int, ...]:
        """Layers of each stage: as said, or with fewer or more at the ends, or even."""
        text = self.cells.get("split", "").replace(",", " ").split()
        first, last = self.count("first_layers"), self.count("last_layers")
        if text:
            if not all(part.isdecimal() for part in text):
                self.fault("split", "it is a list of whole numbers")
                return ()
            split = tuple(map(int, text))
            if len(split) != layout.stages or sum(split) != model.layers:
                self.fault("split", f"it is {layout.stages} stages that sum to {model.layers} layers")
            return split
        if first is None and last is None:
            return ()
        return _with_ends(model.layers, layout.stages, first, last)


def _with_ends(layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Even but for the ends that are given."""
    ends = [end for end in (first, last) if end is not None]
    inner = list(even_split(layers - sum(ends), max(stages - len(ends), 1)))
    if first is not None:
        inner = [first, *inner]
    if last is not None:
        inner = [*inner, last]
    return tuple(inner)

