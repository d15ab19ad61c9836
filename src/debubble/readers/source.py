"""The one door for measurements: what a path holds is told by its content, and read into an observation.

A new format is one line in ``FORMATS``: its name, how its first bytes are recognised, and its reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from ..core.errors import Fault, InputError, Refusal
from ..core.observation import Observation
from ..reconstruct.device_ops import Reading
from ..reconstruct.positions import Said
from .files import first_bytes, is_foreign, names, place, read_on_ray, run_files

_HEAD = 1 << 16
_TRACKS_A_TASK = 64  # files of a recording, a few kilobytes a step each
_MOST_SIZE = 1 << 24  # ranks of a job, or chunks of a rank
Each = Callable[[Sequence[Path]], Sequence[object]]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user says beside the paths.

    Args:
        said: overrides, where inference fails.
        columns: our column names to those of a table.
        each: maps the reader of one trace over many paths, in parallel; None for one after the other.
        ray: whether files of a recording are read by Ray tasks too.
    """

    said: Said = field(default_factory=Said)
    columns: dict[str, str] | None = None
    each: Each | None = None
    ray: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file.

    Args:
        name: for messages.
        holds: whether a file's first bytes (unpacked) are of this kind.
        read: reads all files of one run.
        beside: name of a file that it reads as well if it lies beside them.
        in_folders: whether the files say which run they are of, so that those of each host may lie in a folder.
    """

    name: str
    holds: Callable[[bytes], bool]
    read: Callable[[Sequence[Path], Ask], Reading | Observation]
    beside: str = ""
    in_folders: bool = False

    def reads(self, path: str) -> bool:
        """Whether a file is the one that it reads beside its own."""
        return bool(self.beside) and PurePosixPath(path).name == self.beside


def read(paths: Sequence[Path | str], ask: Ask | None = None) -> Observation:
    """Read what was measured of one run.

    Args:
        paths: a file, a folder, or some of both that together hold one run in one format.
        ask: overrides.

    Raises:
        InputError: nothing is there, nothing of it is known, several formats or runs are mixed, no window is whole.
        Refusal: there is no pipeline in it.
    """
    return merge(gather(paths, ask), ask)


def gather(paths: Sequence[Path | str], ask: Ask | None = None) -> Reading | Observation:
    """What the files hold before it is merged: the ops of each device, or a recording, which is merged already.

    Raises:
        InputError: nothing is there, nothing of it is known, several formats or runs are mixed.
        Refusal: there is no pipeline in it.
    """
    ask = ask or Ask()
    known = ", ".join(dict.fromkeys(_NAMES))
    files = run_files(
        [place(path) for path in paths],
        partial(recognised, ask=ask),
        lambda kind: kind.name,
        known,
        in_folders=lambda kind: kind.in_folders,
    )
    # Readers are imported by the format that needs them: Parquet's, SQLite's and the decoders are slow to load.
    found = files.format.read(files.paths, ask)
    said = [remark for remark in files.remarks if not files.format.reads(remark.partition(":")[0])]
    if isinstance(found, Reading):
        found = _of_a_size_that_can_be(found, said)
        return replace(found, source=names(paths), remarks=(*found.remarks, *said))
    return replace(found, remarks=(*found.remarks, *said))


def _of_a_size_that_can_be(found: Reading, remarks: list[str]) -> Reading:
    """Without sizes of the job that no job has: they are a file's word, and tables are made and numbered by them."""
    if found.world is not None and not 1 <= found.world <= _MOST_SIZE:
        size = str(found.world)[:24]  # no number format: it may have thousands of digits
        remarks.append(f"{found.source}: {size} ranks of the job cannot be; its files are counted instead")
        found = replace(found, world=None)
    if found.chunks is not None and not 1 <= found.chunks <= _MOST_SIZE:
        remarks.append(
            f"{found.source}: {found.chunks:.4g} chunks a rank cannot be; they are told by its ops, if at all"
        )
        found = replace(found, chunks=None)
    return found


def merge(found: Reading | Observation, ask: Ask | None = None) -> Observation:
    """Windows of whole pipelines from what was gathered.

    Raises:
        InputError: no window is whole, or none of the steps that are asked for is there.
        Refusal: there is no pipeline in it.
    """
    from ..reconstruct.observe import observe

    ask = ask or Ask()
    if isinstance(found, Reading):
        return observe(found, ask.said)
    windows = tuple(window for window in found.windows if _asked(window.step, ask.said))
    if not windows:
        raise InputError(Fault(f"--steps {ask.said.steps}", "no step of the recording is among them", "widen it"))
    return replace(found, windows=windows)


def recognised(path: Path, ask: Ask | None = None) -> Format | None:
    """The format of one file by its first bytes; None where nothing is known about it."""
    head = first_bytes(path, _HEAD)
    if is_foreign(head):
        return None
    # Who names columns says that it is a table, whatever its header looks like.
    if ask is not None and ask.columns and _is_text_table(head):
        return next(known for known in FORMATS if known.read is _read_table)
    return next((known for known in FORMATS if known.holds(head)), None)


def is_log(path: Path, ask: Ask | None = None) -> bool:
    """Whether a file, or a folder of one run, holds step times only, which ``fit`` reads, and no ops."""
    if path.is_dir():
        from .torchtitan_log import titan_files

        return bool(titan_files(path))
    known = recognised(path, ask)
    return known is not None and known.read in (_read_log, _read_titan)


def _asked(step: int, said: Said) -> bool:
    return said.steps is None or said.steps[0] <= step <= said.steps[1]


_CHROME = re.compile(rb'"traceEvents"|"schemaVersion"|"deviceProperties"|"distributedInfo"|"displayTimeUnit"')
_PHASE = re.compile(rb'"ph"\s*:\s*"')
_TABLE_WORDS = {b"rank", b"op", b"optype", b"op_type", b"kind", b"step", b"stage", b"position", b"microbatch", b"start"}


def _is_chrome(head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if text.startswith((b"{", b"[")):
        return bool(_CHROME.search(text) or _PHASE.search(text))
    return bool(b'"traceEvents"' in head or (_PHASE.search(head) and b"[" in head))  # log lines stand before it


def _is_track(head: bytes) -> bool:
    return b"debubble recording" in head[:200]


def _is_text_table(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return head.startswith(b"PAR1") or (b"\0" not in first and any(mark in first for mark in b",;\t"))


def _is_table(head: bytes) -> bool:
    names = {name.strip().strip(b'"').lower() for name in re.split(rb"[,;\t]", head.partition(b"\n")[0][:4096])}
    return head.startswith(b"PAR1") or (len(names) > 2 and len(names & _TABLE_WORDS) > 1)


def _is_primus(head: bytes) -> bool:
    from .primus import is_primus

    return is_primus(head)


def _is_sqlite(head: bytes) -> bool:
    return head.startswith(b"SQLite format 3\0")


def _read_recording(paths: Sequence[Path], ask: Ask) -> Observation:
    from .recording import read_recording, track_or_fault

    each = partial(read_on_ray, track_or_fault, together=_TRACKS_A_TASK) if ask.ray else None
    return read_recording(list(dict.fromkeys(path.parent for path in paths)), ask.said, each)


def _read_traces(paths: Sequence[Path], ask: Ask) -> Reading:
    from .kineto import read_traces

    return read_traces(paths, each=ask.each)


def _read_table(paths: Sequence[Path], ask: Ask) -> Reading:
    from .table import read_tables

    return read_tables(paths, ask.columns)


def _read_primus(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .primus import read_primus

    return read_primus(paths, str(paths[0].parent))


def _is_otlp(head: bytes) -> bool:
    from .otlp import is_otlp

    return is_otlp(head)


def _read_otlp(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .otlp import read_otlp

    return read_otlp(paths, str(paths[0]) if len(paths) == 1 else str(paths[0].parent))


def _is_distilled(head: bytes) -> bool:
    from .distilled import is_distilled

    return is_distilled(head)


def _read_distilled(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .distilled import read_distilled

    return read_distilled(paths, str(paths[0].parent))


def _read_nsight(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .nsight import read_nsight

    return read_nsight(paths, str(paths[0]) if len(paths) == 1 else str(paths[0].parent))


def _is_steps(head: bytes) -> bool:
    from .steplog import is_log, is_step_table

    return is_log(head) or is_step_table(head)


def _read_log(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    raise Refusal(
        f"{paths[0]}: it holds step times and sums of timers, without the order of ops that a timeline needs; "
        f"debubble fit {paths[0].name} --ranks P says what they tell"
    )


# Files that hold no op of a micro-batch are read for what they do tell, and the refusal carries it.


def _is_titan(head: bytes) -> bool:
    from .torchtitan_log import is_titan

    return is_titan(head)


def _read_titan(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .torchtitan_log import refusal_of_titan

    raise refusal_of_titan(paths)


def _is_flight(head: bytes) -> bool:
    from .flight_recorder import is_flight

    return is_flight(head)


def _read_flight(paths: Sequence[Path], ask: Ask) -> Reading:  # noqa: ARG001 - the table's shape
    from .flight_recorder import refusal_of_flight

    raise refusal_of_flight(paths)


# The first whose mark is found reads the file, so the surest marks come first: a log is what nothing else is.
FORMATS = (
    Format("a recording", _is_track, _read_recording, in_folders=True),
    Format("a distilled trace", _is_distilled, _read_distilled),
    Format("a Primus timeline", _is_primus, _read_primus, beside="config.json"),
    Format("OpenTelemetry spans (OTLP JSON)", _is_otlp, _read_otlp),
    Format("a structured log of torchtitan", _is_titan, _read_titan),
    Format("a dump of the NCCL flight recorder", _is_flight, _read_flight),
    Format("a Kineto or Chrome trace", _is_chrome, _read_traces),
    Format("an Nsight Systems export", _is_sqlite, _read_nsight),
    Format("an op table", _is_table, _read_table),
    Format("a log of steps", _is_steps, _read_log),
)
_NAMES = [known.name for known in FORMATS]
