"""Job files: what a user states of one run, or of a series of runs, as TOML.

A file is one job, or a series of ``[[run]]`` tables; keys above the first ``[[run]]`` hold for all of them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path

from ..config.config import FIGURES, Config, Value
from ..config.derive import settled
from ..config.fields import SAID_OF_A_JOB, short, value_of
from ..core.errors import Fault, InputError

LONGEST = 1_000_000  # bytes; a job file is a page of text
Table = dict[str, object]


def read_jobs(path: Path | str) -> tuple[Config, ...]:
    """Every run that a file states, with the sizes that follow filled in.

    Raises:
        InputError: not TOML, an unknown key, a value that cannot be, sizes that contradict each other; all of them.
    """
    path = Path(path)
    top = _parse(path)
    runs = top.pop("run", None)
    tables = [top]
    if runs is not None:
        tables = _inherit(path, top, runs)
    faults: list[Fault] = []
    jobs = []
    for number, table in enumerate(tables, start=1):
        where = path.name
        if runs is not None:
            where = f"{path.name} run {number}"
        try:
            job = _job(table, where)
            if "name" not in table:
                job = job.changed(name=path.stem if runs is None else _series_name(job, number))
            jobs.append(settled(job))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*dict.fromkeys(faults))
    return _told_apart(jobs)


def is_job(path: Path) -> bool:
    """Whether a TOML file is a job's: one of its keys is, at the top, and it has no table that a job lacks."""
    try:
        top = _parse(path)
    except InputError:
        return True  # so that its fault is told as a job's
    tables = {key for key, value in top.items() if isinstance(value, dict)}
    return tables <= {"measured"}


def _told_apart(jobs: list[Config]) -> tuple[Config, ...]:
    """No two runs of one name: repeated names get their number in the series."""
    times = Counter(job.name for job in jobs)
    apart = []
    for number, job in enumerate(jobs, start=1):
        if times[job.name] > 1:
            job = job.changed(name=f"{job.name} ({number})")
        apart.append(job)
    return tuple(apart)


def _series_name(job: Config, number: int) -> str:
    if job.gpus:
        return f"{job.gpus} GPUs"
    return f"run {number}"


def _parse(path: Path) -> Table:
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


def _inherit(path: Path, top: Table, runs: object) -> list[Table]:
    """Each run with the keys above it; its own win."""
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError(Fault(f"{path.name}: run", "a series is a list of tables", "write [[run]] above each run"))
    return [top | run | _merged(top, run) for run in runs]


def _merged(top: Table, run: Table) -> Table:
    """What was measured, above the runs and in one of them, as one table."""
    above, own = top.get("measured"), run.get("measured")
    if isinstance(above, dict) and isinstance(own, dict):
        return {"measured": above | own}
    return {}  # at most one has it, and a run's keys replace those above


def _job(table: Table, where: str) -> Config:
    faults: list[Fault] = []
    measured = table.pop("measured", {})
    if not isinstance(measured, dict):
        faults.append(Fault(f"{where}: measured", "it is a table", "write [measured] on a line of its own"))
        measured = {}
    values = _values(table, SAID_OF_A_JOB, f"{where}: ", faults)
    values |= _values(measured, FIGURES, f"{where}: measured.", faults)
    if faults:
        raise InputError(*faults)
    return Config().changed(**values, places=dict.fromkeys(values, where))


def _values(table: Mapping[str, object], known: Collection[str], where: str, faults: list[Fault]) -> dict[str, Value]:
    """Each value as its field wants it; what does not fit becomes a fault."""
    values = {}
    for key, value in table.items():
        try:
            if key not in known:
                raise InputError(_unknown(key, value, known, where))
            values[key] = value_of(key, value, f"{where}{key}")
        except InputError as error:
            faults += error.faults
    return values


def _unknown(key: str, value: object, known: Collection[str], where: str) -> Fault:
    text = f"{where}{key} = {short(value)}"
    if where.endswith("measured.") and key in SAID_OF_A_JOB:
        return Fault(text, "this key stands above [measured]", f"move {key} up")
    if not where.endswith("measured.") and key in FIGURES:
        return Fault(text, "this key belongs into [measured]", f"move {key} below [measured]")
    remedy = f"known: {', '.join(known)}"
    close = get_close_matches(key, known, n=3, cutoff=0.6)
    if close:
        remedy = f"did you mean {' or '.join(close)}?"
    return Fault(text, "no such key", remedy)
