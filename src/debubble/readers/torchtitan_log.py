"""torchtitan's structured log: JSON lines of each rank, in which the phases of a step begin and end.

A line is one record of ``torchtitan.observability.structured_logger``. A span ends in a record whose ``log_type_name``
is its name and ``_end`` and whose ``value`` is its length in milliseconds, so nothing has to be paired:

    {"rank": 0, "step": 5, "log_type_name": "fwd_bwd_end", "value": 703.1, "step_tags": ["gc"], "time_us": ..}

``step`` is around all of a step; ``fetching_batch``, ``fwd_bwd`` (once for each time that gradients are accumulated),
``optim`` and others lie within. With a pipeline, ``fwd_bwd`` is the whole schedule: no forward and no backward of a
micro-batch is in the log, so it tells step times and phases, and no idle share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from ..core.errors import Fault, InputError, WithoutOps
from ..core.observation import StepLog, Timer
from ..core.units import duration, percent
from .files import first_bytes, left_out, lines, source_of, why_unreadable

_MARK = re.compile(rb'"log_type_name"\s*:\s*"')
_BESIDE = (b'"time_us"', b'"seq_id"', b'"rank"')
_STEP, _PIPELINE, _TOKENS = "step", "fwd_bwd", "global_valid_tokens"
_USUAL = 0.5  # of the steps that a phase must be in to be a part of each; the others come now and then
_MOST_NAMED = 6  # phases that are spelled out


class _Record(msgspec.Struct, gc=False):
    """What a line says, as far as it is of times; the keys are the file's."""

    log_type_name: str = ""
    event_name: str | None = None
    rank: int = 0
    step: int | None = None
    value: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Rank:
    """Phases of one rank: milliseconds by step and name, summed where a phase comes several times in a step."""

    spans: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TitanLog:
    """What the files of all ranks hold.

    Args:
        source: what was given.
        steps: numbers of the steps that every rank ended, ascending.
        step_ms: of each, on the rank that took longest.
        phases: by name, the median over steps of each rank, milliseconds.
        rare: by name, in how many steps a phase came that most steps do not have, and the median of these steps.
        tokens: of all replicas in a step, by step, as far as they are logged.
        ranks: that are here, ascending.
        remarks: what was left out, a sentence each.
    """

    source: str
    steps: tuple[int, ...]
    step_ms: tuple[float, ...]
    phases: dict[str, dict[int, float]]
    rare: dict[str, tuple[int, float]]
    tokens: dict[int, float]
    ranks: tuple[int, ...]
    remarks: tuple[str, ...]


def is_titan(head: bytes) -> bool:
    """Whether a file that begins like this is a structured log of torchtitan; one line of it is enough."""
    return head.lstrip()[:1] == b"{" and bool(_MARK.search(head)) and all(key in head for key in _BESIDE)


def titan_files(path: Path) -> list[Path]:
    """The structured logs that a path is or holds; none if it is, or holds, something else."""
    if not path.is_dir():
        return [path] if is_titan(first_bytes(path)) else []
    return [file for file in sorted(path.rglob("*.jsonl")) if is_titan(first_bytes(file))]


def read_titan(paths: Sequence[Path]) -> TitanLog:
    """Read the files of all ranks; a line that is no record costs that line.

    Args:
        paths: of one run; a rank has several after a restart.

    Raises:
        InputError: no step has ended on all ranks.
    """
    ranks: dict[int, _Rank] = defaultdict(_Rank)
    tokens: dict[int, float] = {}
    lost: list[tuple[str, str]] = []
    remarks: list[str] = []
    for path in paths:
        try:
            again = _read(path, ranks, tokens, remarks)
        except OSError as error:
            lost.append((str(path), why_unreadable(error)))
            continue
        if again:
            remarks.append(f"{path}: {again} steps were done before, in another file; the later times count")
    source = source_of(paths)
    remarks += left_out(lost)
    stepped = {
        rank: one.spans for rank, one in sorted(ranks.items()) if any(_STEP in each for each in one.spans.values())
    }
    if not stepped:
        rule = "; ".join(["no step has ended in it", *remarks])
        raise InputError(Fault(source, rule, "give the logs of a trainer, of two steps or more"))
    ended = [{step for step, each in spans.items() if _STEP in each} for spans in stepped.values()]
    steps = sorted(set.intersection(*ended))
    if not steps:
        rule = "no step has ended on all of its ranks"
        raise InputError(Fault(source, rule, "give the logs of one run"))
    step_ms = [max(spans[step][_STEP] for spans in stepped.values()) for step in steps]
    phases, rare = _phases(stepped, steps, step_ms)
    return TitanLog(source, tuple(steps), tuple(step_ms), phases, rare, tokens, tuple(stepped), tuple(remarks))


def _read(path: Path, ranks: dict[int, _Rank], tokens: dict[int, float], remarks: list[str]) -> int:
    """Add the spans of one file; returns how many of its steps were there already."""
    decoder, bad = msgspec.json.Decoder(_Record), 0
    mine: dict[tuple[int, int], dict[str, float]] = {}
    for line in lines(path, remarks):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError:
            bad += 1
            continue
        if record.step is None or record.value is None or not 0 <= record.value < 1e12:
            continue
        if record.event_name == _TOKENS:
            tokens[record.step] = record.value
        name = record.log_type_name
        if name.endswith("_end"):
            spans = mine.setdefault((record.rank, record.step), {})
            phase = name.removesuffix("_end")
            spans[phase] = spans.get(phase, 0.0) + record.value
    if bad:
        remarks.append(f"{path}: {bad:,} lines were left out: they are no records")
    again = 0
    for (rank, step), spans in mine.items():
        again += step in ranks[rank].spans
        ranks[rank].spans[step] = spans
    return again


def _phases(
    ranks: dict[int, dict[int, dict[str, float]]], steps: Sequence[int], step_ms: Sequence[float]
) -> tuple[dict[str, dict[int, float]], dict[str, tuple[int, float]]]:
    """Phases that steps are made of, by rank; and those that come now and then, with the steps that have them."""
    held: dict[str, set[int]] = defaultdict(set)
    for spans in ranks.values():
        for step in steps:
            for name in spans[step]:
                held[name].add(step)
    phases: dict[str, dict[int, float]] = {}
    rare: dict[str, tuple[int, float]] = {}
    length = dict(zip(steps, step_ms, strict=True))
    for name, some in sorted(held.items()):
        if name == _STEP:
            continue
        if len(some) >= _USUAL * len(steps):
            phases[name] = {rank: median(spans[step].get(name, 0.0) for step in steps) for rank, spans in ranks.items()}
        else:
            rare[name] = len(some), median(length[step] for step in some)
    return phases, rare


def steps_of_titan(paths: Sequence[Path]) -> StepLog:
    """The log as step times, tokens and timers: what ``fit`` and ``why`` take.

    Raises:
        InputError: no step has ended on all ranks.
    """
    found = read_titan(paths)
    seconds = np.array(found.step_ms) / 1e3
    unknown = np.full(len(seconds), np.nan)
    tokens = np.array([found.tokens.get(step, np.nan) for step in found.steps])
    timers = []
    for name, by_rank in found.phases.items():
        timers.append(Timer(name, min(by_rank.values()) / 1e3, max(by_rank.values()) / 1e3))
    return StepLog(
        found.source,
        seconds,
        unknown,
        unknown,
        unknown,
        np.array(found.steps, np.float64),
        tokens_per_second=tokens / seconds,
        timers=tuple(timers),
        remarks=found.remarks,
    )


def refusal_of_titan(paths: Sequence[Path]) -> WithoutOps:
    """What the log tells of a step, and why it tells no idle share.

    Raises:
        InputError: no step has ended on all ranks.
    """
    found = read_titan(paths)
    holds = (
        "it holds phases of steps, and no forward or backward of a micro-batch: whether a rank works or waits within "
        "fwd_bwd is not in it, so neither is an idle share"
    )
    remedies = (
        f"debubble fit {found.source} --ranks P, and debubble why, take it as a log of steps",
        "for the bubble run some steps under debubble record, or profile them with torch.profiler",
    )
    return WithoutOps(found.source, holds, sentences_of(found), remedies)


def sentences_of(found: TitanLog) -> list[str]:
    """What the log tells of a step, in plain words."""
    usual = median(found.step_ms)
    said = [f"{len(found.steps)} steps of {len(found.ranks)} ranks: {_ms(usual)}, the median"]
    longest = sorted(found.phases, key=lambda name: -max(found.phases[name].values()))
    for name in longest[:_MOST_NAMED]:
        by_rank = found.phases[name]
        least, most = min(by_rank, key=by_rank.__getitem__), max(by_rank, key=by_rank.__getitem__)
        line = f"{name}: {_ms(by_rank[most])}, {percent(by_rank[most] / usual)} of a step"
        if by_rank[most] > by_rank[least]:
            line += f", on rank {most}; {_ms(by_rank[least])} on rank {least}"
        said.append(line)
    if _PIPELINE in found.phases:
        inside = found.phases[_PIPELINE].values()
        rest = f"{_ms(max(usual - max(inside), 0.0))} to {_ms(usual - min(inside))}"
        said.append(f"outside fwd_bwd: {rest} of a step, which no schedule changes")
    for name, (count, length) in found.rare.items():
        said.append(f"{name}: in {count} of {len(found.steps)} steps; such a step takes {_ms(length)}")
    said.append("these are times of the CPU: on a GPU a phase ends at its last launch, unless it waits for the device")
    return [*said, *found.remarks]


def _ms(milliseconds: float) -> str:
    return duration(round(milliseconds * 1e6))
