"""PithTrain's NVTX ranges: which op each of them is, by the one order that its engine runs.

Its engine (https://github.com/mlc-ai/Pith-Train, pithtrain/dualpipe/dualpipev.py) is DeepSeek's DualPipeV in eight
steps. A chunk is a micro-batch, a phase the arm of the V; a weight chunk names none, and no backward says whether it
leaves its weights for later:

    forward chunk 3 (phase0)                                    F3 of stage r
    backward chunk 1 (phase1)                                   B1 or I1 of stage 2p-1-r
    forward chunk 4 (phase0) backward chunk 1 (phase1)          both, overlapped
    weight chunk                                                W of the oldest I that has none yet

A rank at distance d from the turn of the V begins its backwards with d that a weight chunk follows at once (step 3),
and ends with p that leave their weights (the second half of step 6, and step 7). So k weight chunks, of which the first
d follow a backward at once, say that p = k - d, that the rank is r = p - 1 - d, and which backwards are I.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_RANK = r"(?:rank \d+ )?"
_OP = r"(forward|backward) chunk (\d{1,9}) \(phase([01])\)"
_NAME = re.compile(rf"{_RANK}(?:overlapped )?{_OP}(?: {_OP})?.*")
_WEIGHT = re.compile(rf"{_RANK}weight chunk")


@dataclass(frozen=True, slots=True)
class Pass:
    """One op of a rank, as far as its range says it.

    Args:
        row: of the range among those of its device.
        letter: F, B (which may turn out to be I) or W.
        chunk: micro-batch; -1 of a W.
        phase: arm of the V; -1 of a W.
    """

    row: int
    letter: str
    chunk: int = -1
    phase: int = -1


def is_pith(name: str) -> bool:
    """Whether a range is one of PithTrain's."""
    return bool(_NAME.fullmatch(name) or _WEIGHT.fullmatch(name))


def ops_of_pith(names: Sequence[str]) -> tuple[dict[int, tuple[str, ...]], list[str]]:
    """The ops of the ranges of one device.

    Args:
        names: of its ranges that are PithTrain's, in order of time.

    Returns:
        By the index of a range one label of an op, or two if they overlap, as in ``PP:2F0``; and what was left out, a
        clause each.
    """
    labels: dict[int, tuple[str, ...]] = {}
    parts = evaluations = 0
    for step in _steps(list(_passes(names))):
        if not any(one.letter == "B" for one in step):
            evaluations += 1
            continue
        found = _labelled(step)
        if found is None:
            parts += 1
            continue
        for row, label in found:
            labels[row] = (*labels.get(row, ()), label)
    clauses = []
    if parts:
        why = "they are not whole, or not in the order of its engine"
        clauses.append(f"{parts} steps of PithTrain's ranges were left out: {why}")
    if evaluations:
        clauses.append(f"{evaluations} steps without a backward were left out")
    return labels, clauses


def _passes(names: Sequence[str]) -> Iterator[Pass]:
    for row, name in enumerate(names):
        said = _NAME.fullmatch(name)
        if said is None:
            yield Pass(row, "W")
            continue
        for way, chunk, phase in (said.groups()[:3], said.groups()[3:]):
            if way:
                yield Pass(row, "F" if way == "forward" else "B", int(chunk), int(phase))


def _steps(passes: Sequence[Pass]) -> Iterator[Sequence[Pass]]:
    """Each step, which begins with the first forward of phase 0; what comes before the first one is cut off."""
    begins = [i for i, one in enumerate(passes) if (one.letter, one.chunk, one.phase) == ("F", 0, 0)]
    for begin, end in pairwise([*begins, len(passes)]):
        yield passes[begin:end]


def _labelled(step: Sequence[Pass]) -> list[tuple[int, str]] | None:
    """Row and label of each op of one step; None if it is no whole step of the engine."""
    backwards = [i for i, one in enumerate(step) if one.letter == "B"]
    weights = [one for one in step if one.letter == "W"]
    early = 0
    for i in backwards:
        if i + 1 == len(step) or step[i + 1].letter != "W":
            break
        early += 1
    ranks = len(weights) - early
    rank = ranks - 1 - early
    if rank < 0 or not _whole(step, early) or len(backwards) < len(weights):
        return None
    late = backwards[:early] + backwards[len(backwards) - ranks :]
    waiting: list[Pass] = []
    found = []
    for i, one in enumerate(step):
        if one.letter == "W":
            if not waiting:
                return None
            kind, of = "W", waiting.pop(0)
        elif i in late:
            kind, of = "I", one
            waiting.append(one)
        else:
            kind, of = one.letter, one
        stage = rank if of.phase == 0 else 2 * ranks - 1 - rank
        found.append((one.row, f"PP:{stage}{kind}{of.chunk}"))
    return found


def _whole(step: Sequence[Pass], early: int) -> bool:
    """Whether each micro-batch has a forward and a backward in both phases, and the first forwards are those of d."""
    forwards = [(one.phase, one.chunk) for one in step if one.letter == "F"]
    backwards = [(one.phase, one.chunk) for one in step if one.letter == "B"]
    chunks = max(chunk for _, chunk in forwards) + 1
    every = [(phase, chunk) for phase in (0, 1) for chunk in range(chunks)]
    first = [phase for phase, _ in forwards].index(1) if (1, 0) in forwards else -1
    # Step 1 has 2d forwards of phase 0, step 2 begins with one more.
    return sorted(forwards) == every == sorted(backwards) and first == 2 * early + 1
