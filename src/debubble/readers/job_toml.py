"""Job files: what a user states of one run, or of a series of runs, as TOML.

A file is one job, or a series of ``[[run]]`` tables; keys above the first ``[[run]]`` hold for all of them.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, structs

from ..config.job import Job, Measured, settled
from ..core.errors import Fault, InputError
from ..core.units import count_bytes, nanoseconds

LONGEST = 1_000_000  # bytes; a job file is a page of text
MOST_BYTES = 10**15  # of memory on a device
LONGEST_TIME = 86_400e9  # nanoseconds: a day; sums of all that is simulated stay within 64 bits

Count = Annotated[int, Meta(ge=1, le=10**12)]
Share = Annotated[float, Meta(gt=0, le=1)]
Speed = Annotated[float, Meta(gt=0, lt=1e18)]
Duration = str | int | float
Size = str | int


class MeasuredTable(Struct):
    """The table ``[measured]``."""

    utilisation: Share = 0.61
    tokens_per_second: Speed = 82000
    samples_per_second: Speed = 20
    tflops_per_gpu: Speed = 170
    mfu: Share = 0.43
    step: Duration = "1.2s"
    peak_memory: Size = "48GB"


class JobTable(Struct):
    """The keys of a job; each default is the example that error messages show, never used as a value."""

    name: str = "eight"
    gpus: Count = 8
    pipeline: Count = 4
    tensor: Count = 1
    context: Count = 1
    data: Count = 2
    microbatches: Count = 4
    micro_batch: Count = 1
    global_batch: Count = 8
    sequence: Count = 4096
    chunks: Count = 1
    schedule: str = "1f1b"
    forward: Duration = "10ms"
    backward: Duration = "20ms"
    input: Duration = "10ms"
    weight: Duration = "10ms"
    transfer: Duration = "1ms"
    stage_scale: tuple[Annotated[float, Meta(ge=0, lt=1e9)], ...] = (1.0, 1.0, 1.0, 1.6)
    recompute: Literal["none", "selective", "full"] = "full"


def read_jobs(path: Path | str) -> tuple[Job, ...]:
    """Every run that a file states, with the sizes that follow filled in.

    Raises:
        InputError: not TOML, an unknown key, a value that cannot be, sizes that contradict each other; all of them.
    """
    path = Path(path)
    top = _parse(path)
    runs = top.pop("run", None)
    tables = [top] if runs is None else _inherit(path, top, runs)
    faults: list[Fault] = []
    jobs = []
    for number, table in enumerate(tables, start=1):
        where = path.name if runs is None else f"{path.name} run {number}"
        try:
            job = _job(table, where)
            fallback = path.stem if runs is None else _series_name(job, number)
            jobs.append(settled(job if "name" in table else replace(job, name=fallback)))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*dict.fromkeys(faults))
    return _told_apart(jobs)


def _told_apart(jobs: list[Job]) -> tuple[Job, ...]:
    """No two runs of one name: repeated names get their number in the series."""
    names = [job.name for job in jobs]
    return tuple(
        replace(job, name=f"{job.name} ({number})") if names.count(job.name) > 1 else job
        for number, job in enumerate(jobs, start=1)
    )


def _series_name(job: Job, number: int) -> str:
    return f"{job.gpus} GPUs" if job.gpus else f"run {number}"


def _parse(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        raw = stream.read(LONGEST + 1)
    if len(raw) > LONGEST:
        raise InputError(Fault(str(path), f"a job file is at most {LONGEST:,} bytes", "give a job TOML"))
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise InputError(Fault(str(path), f"byte {error.start} is not UTF-8", "give a job TOML")) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Fault(str(path), f"this is not TOML: {error}", "mend the line")) from None


def _inherit(path: Path, top: dict[str, Any], runs: Any) -> list[dict[str, Any]]:
    """Each run with the keys above it; its own win."""
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError(Fault(f"{path.name}: run", "a series is a list of tables", "write [[run]] above each run"))
    return [top | run | _merged(top, run) for run in runs]


def _merged(top: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    tables = [table["measured"] for table in (top, run) if isinstance(table.get("measured"), dict)]
    return {"measured": tables[0] | tables[1]} if len(tables) == 2 else {}


def _job(table: dict[str, Any], where: str) -> Job:
    faults: list[Fault] = []
    measured = table.pop("measured", {})
    if not isinstance(measured, dict):
        faults.append(Fault(f"{where}: measured", "it is a table", "write [measured] on a line of its own"))
        measured = {}
    keys = _values(table, JobTable, f"{where}: ", faults)
    seen = _values(measured, MeasuredTable, f"{where}: measured.", faults)
    if faults:
        raise InputError(*faults)
    return Job(**keys, measured=Measured(**seen))


def _values(table: dict[str, Any], form: type[Struct], where: str, faults: list[Fault]) -> dict[str, Any]:
    """Each value as its type wants it; what does not fit becomes a fault."""
    fields = {field.name: field for field in structs.fields(form)}
    values = {}
    for key, value in table.items():
        try:
            if key not in fields:
                raise InputError(_unknown(key, value, fields, where))
            values[key] = _value(value, fields[key], f"{where}{key}")
        except InputError as error:
            faults += error.faults
    return values


def _unknown(key: str, value: Any, known: dict[str, Any], where: str) -> Fault:
    text = f"{where}{key} = {_short(value)}"
    if where.endswith("measured.") and key in JobTable.__struct_fields__:
        return Fault(text, "this key stands above [measured]", f"move {key} up")
    if not where.endswith("measured.") and key in MeasuredTable.__struct_fields__:
        return Fault(text, "this key belongs into [measured]", f"move {key} below [measured]")
    close = get_close_matches(key, known, n=3, cutoff=0.5)
    return Fault(text, "no such key", f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}")


def _value(value: Any, field: structs.FieldInfo, name: str) -> Any:
    remedy = f"write it as in {field.name} = {_short(field.default)}"
    if field.type == Duration:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise InputError(Fault(f"{name} = {_short(value)}", "a duration is text or a number of ms", remedy))
        return _duration(str(value), name, free=field.name == "transfer")
    if field.type == Size:
        return _size(value, name, remedy)
    try:
        return msgspec.convert(value, type=field.type)  # NaN and infinity fail every bound
    except msgspec.ValidationError as error:
        rule = str(error).replace("`", "").split(" - at")[0]
        rule = rule[:1].lower() + rule[1:]
        raise InputError(Fault(f"{name} = {_short(value)}", rule, remedy)) from None


def _duration(text: str, name: str, *, free: bool) -> float:
    """A duration of work; only a transfer may take no time."""
    length = nanoseconds(text, name)
    if length > LONGEST_TIME or not (length or free):
        raise InputError(Fault(f"{name} = {text}", "it takes some time, and at most a day", "write it as in 20ms"))
    return length


def _size(value: Any, name: str, remedy: str) -> int:
    """Bytes of memory that something holds."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InputError(Fault(f"{name} = {_short(value)}", "a size is text or a number of bytes", remedy))
    size = count_bytes(str(value), name)
    if not 0 < size <= MOST_BYTES:
        raise InputError(Fault(f"{name} = {value}", "a device holds more than nothing and less than 1 PB", remedy))
    return size


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    text = str(list(value)) if isinstance(value, tuple) else text
    return text if len(text) <= 60 else text[:57] + "..."
