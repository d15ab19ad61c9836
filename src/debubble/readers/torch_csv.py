"""PyTorch's schedule files: one row a rank, cells in order of execution, empty cells idle.

Cells, as ``torch.distributed.pipelining`` writes and reads them:

    2F0  2I0  2W0  2B0                      stage, kind, micro-batch
    (0F7;7B3)OVERLAP_F_B                    an overlapped pair: one slot of two ops
    2SEND_F0  2RECV_F0  2SEND_B0  2RECV_B0  transfers ("compute_comms" files only)
    2UNSHARD  2RESHARD  2REDUCE_GRAD        sharded weights, gradients across replicas; they order no op

The stage of a SEND is the sender's, of a RECV the receiver's. A stage lives on the rank in whose row it stands first.
torch's own reader lets rubbish behind a cell pass; this one does not.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.laws import FORWARD, GRADIENT, locate
from ..core.posting_rules import exchange
from ..core.posts import Act, Exchange
from ..core.program import Program
from ..core.safe_output import replacing
from ..core.schedule import Kind, Op, Schedule

_OP = "([0-9]{1,9})([FIWB])([0-9]{1,9})"
_COMPUTE = re.compile(_OP)
_PAIR = re.compile(rf"\( *{_OP} *; *{_OP} *\)OVERLAP_F_B")
_TRANSFER = re.compile("([0-9]{1,9})(SEND|RECV)_([FB])([0-9]{1,9})")
_WEIGHTS = re.compile("[0-9]{1,9}(UNSHARD|RESHARD|REDUCE_GRAD)[0-9]{0,9}")
_FORM = "write 2F0, (0F7;7B3)OVERLAP_F_B, 2SEND_F0, 2RECV_B0, 2UNSHARD, 2RESHARD, 2REDUCE_GRAD or nothing"
_MOST_FAULTS = 20  # that are spelled out
_ACTS = {"SEND": Act.SEND, "RECV": Act.RECEIVE}


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The cells of a file; rank ``r`` owns lines ``offsets[r]`` to ``offsets[r + 1]``.

    ``kind`` of a transfer is F for activations and B for gradients; ``column`` is where it stands in the file, from 1.
    """

    path: Path
    offsets: NDArray[np.int64]
    act: NDArray[np.int32]
    kind: NDArray[np.int32]
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]
    joined: NDArray[np.int32]
    column: NDArray[np.int32]

    def rank_of(self) -> NDArray[np.int64]:
        """The rank of each line, int64[lines]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def write(schedule: Schedule, path: Path | str) -> None:
    """Write a "compute_only" file: torch places the transfers.

    Raises:
        Refusal: the schedule holds what torch's format has no word for.
        InputError: the path cannot be written.
    """
    _refuse_what_torch_lacks(schedule)
    with replacing(path) as stream:
        for first, last in _spans(schedule.offsets):
            cells: list[str] = []
            for row, text in enumerate(_texts(schedule, first, last), first):
                _add(cells, text, schedule, row)
            stream.write(",".join(cells).encode() + b"\n")


def write_with_transfers(program: Program, path: Path | str) -> None:
    """Write a "compute_comms" file: our own order of sends and receives, and REDUCE_GRAD behind each stage's last op.

    Weights that are sharded (FSDP) need UNSHARD and RESHARD cells as well, which are not written.

    Raises:
        Refusal: the schedule holds what torch's format has no word for.
        InputError: the path cannot be written.
    """
    # torch's runtime runs a compute_comms file as it stands: what is not in it does not happen.
    _refuse_what_torch_lacks(program.schedule)
    placed = exchange(program)
    ends = _last_of_stage(program.schedule)
    with replacing(path) as stream:
        for rank, span in enumerate(_spans(placed.offsets)):
            stream.write(",".join(_exchanged(program.schedule, placed, rank, span, ends)).encode() + b"\n")


def read(path: Path | str) -> Schedule:
    """Read a file of either kind; transfers are left out, because the order of ops implies them.

    Raises:
        InputError: cells that are none, each with row and column; a stage that no rank holds.
    """
    return _schedule(_table(Path(path)))


def read_with_transfers(path: Path | str) -> tuple[Schedule, Exchange]:
    """Read a "compute_comms" file with the order of its sends and receives.

    Raises:
        InputError: as `read`; and transfers from, to or of what is not there.
    """
    table = _table(Path(path))
    schedule = _schedule(table)
    return schedule, _exchange(table, schedule)


def _refuse_what_torch_lacks(schedule: Schedule) -> None:
    if schedule.slices > 1:
        raise Refusal(f"{schedule.name} cuts sequences into {schedule.slices} slices, which torch's format cannot say")
    if schedule.placement.shape[0] > 1:
        raise Refusal(f"{schedule.name} holds two copies of the weights, which torch's format cannot say")


def _spans(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    return pairwise(offsets.tolist())


def _texts(schedule: Schedule, first: int, last: int) -> Iterator[str]:
    """Ops of one rank as cells, one at a time: a row may hold millions."""
    columns = (schedule.stage, schedule.kind, schedule.unit)
    letters = "FIWB"
    for stage, kind, unit in zip(*(column[first:last].tolist() for column in columns), strict=True):
        yield f"{stage}{letters[kind]}{unit}"


def _add(cells: list[str], text: str, schedule: Schedule, row: int) -> None:
    """Append an op to a row of cells, or join it with the one before."""
    if schedule.joined is not None and schedule.joined[row]:
        cells[-1] = f"({cells[-1]};{text})OVERLAP_F_B"
    else:
        cells.append(text)


def _last_of_stage(schedule: Schedule) -> frozenset[int]:
    """Rows behind which the gradient of a stage is complete."""
    last = np.full(schedule.stages, -1, np.int64)
    rows = np.flatnonzero((schedule.kind == Kind.B) | (schedule.kind == Kind.W))
    np.maximum.at(last, schedule.stage[rows], rows)
    return frozenset(last.tolist())


def _exchanged(
    schedule: Schedule, placed: Exchange, rank: int, span: tuple[int, int], ends: frozenset[int]
) -> list[str]:
    base, stop = schedule.offsets[rank : rank + 2].tolist()
    texts = list(_texts(schedule, base, stop))
    cells: list[str] = []
    done: list[int] = []  # stages whose last op has been written
    for act, row in zip(placed.act[slice(*span)].tolist(), placed.op[slice(*span)].tolist(), strict=True):
        if act == Act.COMPUTE:
            _add(cells, texts[row - base], schedule, row)
            done += [int(schedule.stage[row])] if row in ends else []
        else:
            verb = "SEND" if act == Act.SEND else "RECV"
            way = "F" if schedule.kind[row] == Kind.F else "B"
            cells.append(f"{schedule.stage[row]}{verb}_{way}{schedule.unit[row]}")
    return cells + [f"{stage}REDUCE_GRAD" for stage in done]


def _table(path: Path) -> _Table:
    lines = array("i")  # six numbers a line: no object per cell
    offsets, faults = [0], 0
    spelled: list[Fault] = []
    for row, cells in enumerate(_rows(path), 1):
        none = _read_row(cells, lines)
        faults += len(none)
        for column in none[: _MOST_FAULTS - len(spelled)]:
            place = f"{path} row {row} column {column} = {cells[column - 1][:40]!r}"
            spelled.append(Fault(place, "this is no cell", _FORM))
        offsets.append(len(lines) // 6)
    if faults > _MOST_FAULTS:
        spelled.append(Fault(str(path), f"{faults - _MOST_FAULTS} more cells are none", "see the rows above"))
    if faults:
        raise InputError(*spelled)
    while len(offsets) > 1 and offsets[-1] == offsets[-2]:
        offsets.pop()  # blank lines at the end are not ranks
    columns = np.frombuffer(lines, np.int32).reshape(-1, 6).T if lines else np.empty((6, 0), np.int32)
    return _Table(path, np.array(offsets, np.int64), *columns)


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            yield from csv.reader(stream)
    except (OSError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(Fault(str(path), f"it cannot be read: {reason}", "give a CSV file, one row a rank")) from error


def _read_row(cells: list[str], lines: array[int]) -> list[int]:
    """Append the lines of a row; the columns that hold no cell."""
    none = []
    for column, cell in enumerate(cells, 1):
        found = _read_cell(cell.strip(), column)
        if found is None:
            none.append(column)
        else:
            lines.extend(found)
    return none


def _read_cell(cell: str, column: int) -> tuple[int, ...] | None:
    """Lines of act, kind, stage, unit, joined, column; none for a cell that orders no op, None for no cell."""
    if match := _COMPUTE.fullmatch(cell):
        return (Act.COMPUTE, Kind[match[2]], int(match[1]), int(match[3]), 0, column)
    if not cell or _WEIGHTS.fullmatch(cell):
        return ()
    if match := _PAIR.fullmatch(cell):
        first = (Act.COMPUTE, Kind[match[2]], int(match[1]), int(match[3]), 0, column)
        return (*first, Act.COMPUTE, Kind[match[5]], int(match[4]), int(match[6]), 1, column)
    if match := _TRANSFER.fullmatch(cell):
        return (_ACTS[match[2]], Kind[match[3]], int(match[1]), int(match[4]), 0, column)
    return None


def _schedule(table: _Table) -> Schedule:
    ops = np.flatnonzero(table.act == Act.COMPUTE)
    if not ops.size:
        raise InputError(Fault(str(table.path), "it holds no op", "give a schedule, one row a rank"))
    stage, unit, joined = table.stage[ops], table.unit[ops], table.joined[ops].astype(np.bool_)
    # The rank of a stage is where its first op stands; laws say later if another rank runs one, too.
    held, first = np.unique(stage, return_index=True)
    _check_numbers(table.path, held, int(unit.max()) + 1, len(ops))
    return Schedule(
        name=_printable(table.path.stem),
        source=_printable(str(table.path)),
        microbatches=int(unit.max()) + 1,
        placement=table.rank_of()[ops][first].astype(np.int32)[None, :],
        offsets=np.searchsorted(ops, table.offsets).astype(np.int64),
        kind=table.kind[ops].astype(np.uint8),
        stage=stage,
        unit=unit,
        joined=joined if joined.any() else None,
    )


def _printable(name: str) -> str:
    """A file's name without what could command a terminal or break a document."""
    return "".join(character if character.isprintable() else "?" for character in name)


def _check_numbers(path: Path, held: NDArray[np.int32], units: int, ops: int) -> None:
    """Refuse numbers so far apart that most ops must be missing, before tables of that size are allocated."""
    stages = int(held[-1]) + 1
    if len(held) < stages:
        gap = int(np.flatnonzero(held != np.arange(len(held)))[0])
        fault = Fault(f"{path}: stage {gap}", f"no row holds it, but stage {stages - 1} is there", "number them from 0")
        raise InputError(fault)
    # Each stage has a forward of each micro-batch; four times as lenient, because schedules may be cut short.
    if stages * units > 4 * ops + 1000:
        value = f"{path}: {stages} stages x {units} micro-batches"
        rule = f"they need at least {stages * units} ops, and the file holds {ops}"
        raise InputError(Fault(value, rule, "number micro-batches from 0 without gaps"))


def _exchange(table: _Table, schedule: Schedule) -> Exchange:
    where = locate(schedule)
    line = np.where(table.kind == Kind.F, FORWARD, GRADIENT)
    compute = table.act == Act.COMPUTE
    # Activations go to the stage above and come from below, gradients the other way round.
    upward = (table.kind == Kind.F) == (table.act == Act.SEND)
    other = table.stage + np.where(upward, 1, -1)
    known = (table.stage < schedule.stages) & (table.unit < schedule.units)
    known &= compute | ((other >= 0) & (other < schedule.stages))
    # Looked up only where the tables have a place for it: numbers of a stranger's file are no indices yet.
    op = np.full(len(known), -1, np.int32)
    op[known] = where[line[known], table.stage[known], table.unit[known]]
    op[compute] = np.arange(len(schedule), dtype=np.int32)
    lost = np.flatnonzero(op < 0)
    if lost.size:
        raise InputError(*(_lost(table, int(row)) for row in lost[:_MOST_FAULTS]))
    peer = np.where(compute, -1, schedule.placement[0][np.clip(other, 0, schedule.stages - 1)])
    return Exchange(table.act.astype(np.uint8), op, peer.astype(np.int32), table.offsets)


def _lost(table: _Table, row: int) -> Fault:
    rank = int(table.rank_of()[row])
    verb = "SEND" if table.act[row] == Act.SEND else "RECV"
    way = Kind(table.kind[row]).name
    cell = f"{table.stage[row]}{verb}_{way}{table.unit[row]}"
    op = Op(Kind[way], int(table.stage[row]), int(table.unit[row]))
    return Fault(
        f"{table.path} row {rank + 1} column {table.column[row]} = {cell!r}",
        f"there is no {op}, or nothing on the other side of it",
        "leave it out",
    )
