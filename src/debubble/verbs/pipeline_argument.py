"""The pipeline that is asked for: its order by name, file or class, its speed, its engine, and what samples it gets."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ..core.costs import Rates
from ..core.engine import IDEAL, LINK, SENDS, Engine
from ..core.errors import MOST_CHUNKS, MOST_SHOWN_OPS, Fault, InputError, beyond
from ..core.laws import violations
from ..core.packing import PACKINGS, Lengths, Samples
from ..core.posts import Exchange
from ..core.schedule import Release, Schedule, Shape
from ..core.units import Hops
from ..frameworks.engines import engine_of
from ..readers import torch_csv
from ..schedules.catalog import CATALOG, build, called, entry_of
from .arguments import Duration, Factors, Hop, Size, duration, factors, gigabytes_a_second, hop, share, size, together

Named = str | PathLike[str] | Schedule
HOPS = ("transfer", "occupy")  # durations that may differ from link to link
SCALES = ("stage_scale", "microbatch_scale", "rank_scale")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was said about the size of a pipeline; None where nothing was.

    Args:
        ranks: of the pipeline.
        microbatches: per step.
        chunks: stages on each rank.
        group: micro-batches that pass a chunk before the next has its turn.
        slices: parts into which the sequence of a micro-batch is cut.
        pairs: whether forwards and backwards run as one slot, of schedules that let it be chosen.
    """

    ranks: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    group: int | None = None
    slices: int | None = None
    pairs: bool | None = None


def schedule_of(
    named: Named,
    sizes: Sizes,
    rates: Rates | None = None,
    *,
    cap: str | None = None,
    release: str = "w",
    most: int = MOST_SHOWN_OPS,
) -> Schedule:
    """The schedule that a name or a path means.

    Args:
        named: as in the catalog, the path of a torch CSV file, ``module:Class`` of a torch schedule, or a schedule.
        sizes: of the pipeline; a file and a schedule know their own.
        rates: how long ops take, for schedules that are searched; None for the defaults.
        cap: activations that each rank may hold, which a searched schedule keeps; None for its default.
        release: when a split backward frees them: ``w``, ``half`` or ``i``.
        most: ops that the verb does.

    Raises:
        InputError: no such schedule, or sizes or a cap that are missing or do not suit it; all faults at once.
    """
    name = named.name if isinstance(named, Schedule) else fspath(named)
    # By suffix too: a file that is missing is said to be missing, and not to be no schedule.
    is_file = name.endswith(".csv") or Path(name).is_file()
    ordered = isinstance(named, Schedule) or is_file or ":" in name  # no name of the catalog has a colon
    if cap is not None and ordered:
        raise InputError(Fault(f"cap = {cap}", f"{name} is an order already and takes no cap", "leave it out"))
    if isinstance(named, Schedule):
        return _of_its_own(named, sizes, "the schedule")
    if is_file:
        return _of_its_own(torch_csv.read(name), sizes, name)
    if ":" in name:
        return _from_class(name, sizes)

    # Both are read before either is used, so that a misspelt name does not hide a missing size.
    together(lambda: entry_of(name), lambda: shape_of(sizes, most))
    entry = entry_of(name)
    # Only one is refused here: other numbers are refused by the schedule itself, which knows what it takes.
    if sizes.chunks == 1 and entry.chunks > 1:
        rule = f"{entry.name} has several on each rank"
        raise InputError(Fault("chunks = 1", rule, f"give {entry.chunks} or none"))
    if sizes.pairs and not entry.pairs:
        able = ", ".join(each.name for each in CATALOG.values() if each.pairs)
        rule = f"{entry.name} runs no forward and backward as one slot"
        raise InputError(Fault("--pair", rule, f"leave it out, or take one of {able}"))
    pairs = sizes.pairs if entry.may_pair else None  # the others always are in pairs
    return build(entry.name, shape_of(replace(sizes, pairs=pairs), most), rates, cap=cap, release=Release(release))


def suited(named: Named, sizes: Sizes) -> Sizes:
    """The sizes as far as a schedule takes them: of two schedules side by side, one may have chunks and one not."""
    entry = None if isinstance(named, Schedule) else called(fspath(named))
    if entry is None:
        return sizes
    if not entry.pairs:
        sizes = replace(sizes, pairs=None)
    if sizes.chunks is None or entry.any_chunks or entry.chunks == sizes.chunks:
        return sizes
    return replace(sizes, chunks=None)


def exchange_of(named: Named, schedule: Schedule) -> Exchange | None:
    """Where the sends and receives of a file stand; None of any other schedule, and of a file that does not say.

    Raises:
        InputError: transfers from, to or of what is not there.
    """
    if isinstance(named, Schedule):
        return None
    name = fspath(named)
    if schedule.source != name or not Path(name).is_file():
        return None
    if violations(schedule):  # then its transfers lead nowhere, and the laws say why
        return None
    placed = torch_csv.read_with_transfers(name)[1]
    if not placed.act.any():  # a file of ops alone leaves it to the engine where they are sent
        return None
    return placed


def _from_class(spec: str, sizes: Sizes) -> Schedule:
    shape = shape_of(sizes)
    try:  # torch takes seconds to import, and only this way of naming a schedule needs it
        from ..runner.torch_schedules import read_class
    except ImportError as error:
        rule = f"only PyTorch can say what its class does: {error}"
        raise InputError(Fault(f"schedule = {spec}", rule, "pip install 'debubble[torch]'")) from error
    return read_class(spec, shape)


def shape_of(sizes: Sizes, most: int = MOST_SHOWN_OPS) -> Shape:
    """The shape that was asked for.

    Args:
        sizes: of the pipeline.
        most: ops that the verb does.

    Raises:
        InputError: ranks or micro-batches are missing, or there are more ops than memory holds.
    """
    missing = []
    for option, example, value in (("--ranks", "-p 4", sizes.ranks), ("--microbatches", "-m 8", sizes.microbatches)):
        if value is None:
            missing.append(Fault(option, "a schedule of the catalog needs to know", f"give {example}"))
    if missing:
        raise InputError(*missing)
    said = {field.name: value for field in fields(sizes) if (value := getattr(sizes, field.name)) is not None}
    shape = Shape(**said)
    what = f"ops of {shape.stages} stages x {shape.units} micro-batches"
    remedy = (
        f"the bubble hardly changes beyond {100 * shape.ranks} micro-batches, nor its share beyond some hundred ranks"
    )
    faults = beyond(what, 2 * shape.stages * shape.units, most, remedy) + beyond("chunks", shape.chunks, MOST_CHUNKS)
    if faults:
        raise InputError(*faults)
    return shape


def _of_its_own(schedule: Schedule, sizes: Sizes, where: str) -> Schedule:
    """An order that is there already, if nothing that was said of it contradicts it."""
    chunks = schedule.stages / schedule.ranks
    # What agrees with the order may be said of it: a command line that worked by name works with its file.
    holds = {"ranks": schedule.ranks, "microbatches": schedule.microbatches, "chunks": chunks, "slices": 1}
    faults = []
    for name, held in holds.items():
        value = getattr(sizes, name)
        if value is not None and value != held:
            faults.append(Fault(f"{name} = {value}", f"{where} has {held:g}", "leave it out"))
    if sizes.group is not None:
        faults.append(Fault(f"group = {sizes.group}", f"{where} has its order already", "leave it out"))
    if faults:
        raise InputError(*faults)
    return schedule


def rates_of(durations: Mapping[str, Hop | None], scales: Mapping[str, Factors]) -> Rates:
    """What was said about speed; what was not said has its default.

    Args:
        durations: ``forward``, ``backward``, ``input``, ``weight``, ``pair``, and by link or not ``transfer``,
            ``occupy``.
        scales: ``stage_scale``, ``microbatch_scale``, ``rank_scale``.

    Raises:
        InputError: what cannot be read, all at once; or halves of a backward that do not add up to it.
    """
    given = {name: value for name, value in durations.items() if value is not None}
    spent = together(*(lambda name=name, value=value: _read(value, name) for name, value in given.items()))
    scaled = together(*(lambda name=name, value=value: factors(value, name) for name, value in scales.items()))
    said: dict[str, Any] = dict(zip(given, spent, strict=True))
    said |= dict(zip(scales, scaled, strict=True))
    if "pair" in said:
        said["pair"], said["pair_of_stage"] = said["pair"]
    return Rates(**said)


def _pair(value: Duration) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """A pair of any stage, and of those that are named: ``2.4ms,0=3ms``.

    Raises:
        InputError: not a duration, or a stage that is no number or named twice.
    """
    usual: list[float] = []
    of_stage: dict[int, float] = {}
    parts = value.split(",") if isinstance(value, str) else [value]
    for part in parts:
        stage, named, text = str(part).partition("=")
        if not named:
            usual.append(duration(part if isinstance(part, str) else value, "pair"))
        elif stage.strip().isdecimal() and len(stage) < 10 and int(stage) not in of_stage:
            of_stage[int(stage)] = duration(text, f"pair {stage.strip()}")
        else:
            rule = "stages are named by their numbers, each once"
            raise InputError(Fault(f"pair = {value}"[:60], rule, "write it as in 2.4ms,0=3ms"))
    if len(usual) > 1:
        rule = "one value is that of all stages that are not named"
        raise InputError(Fault(f"pair = {value}"[:60], rule, "write it as in 2.4ms,0=3ms"))
    return usual[0] if usual else None, tuple(of_stage.items())


def _read(value: Hop, name: str) -> Any:
    """A duration, or that of each link where it is one of hops, or of each stage where it is one of pairs."""
    if name in HOPS or isinstance(value, Hops):
        return hop(value, name)
    if not isinstance(value, str | float | int):
        raise InputError(Fault(f"{name} has {len(value)} values", "it is not of links", "give one duration"))
    return _pair(value) if name == "pair" else duration(value, name)


def over_a_link(rates: Rates, link: str | float | None, payload: Size | None) -> Rates:
    """The same over links of limited speed, if any was given.

    Raises:
        InputError: a link without the bytes that it carries, or bytes without a link.
    """
    if (link is None) != (payload is None):
        value = "--link without --bytes"
        if link is None:
            value = "--bytes without --link"
        rule = "how long a link is taken up is bytes over speed"
        raise InputError(Fault(value, rule, "give both, as in --link 25 --bytes 64MB"))
    if link is None or payload is None:
        return rates
    return replace(rates, link=gigabytes_a_second(link), payload=size(payload, "bytes"))


def sends_of(name: str, rates: Rates) -> Engine:
    """Whom a send keeps; sends that wait for nobody take turns on a link of limited speed.

    Raises:
        InputError: no such way.
    """
    if name not in SENDS:
        raise InputError(Fault(f"sends = {name}", "it says whom a send keeps", f"give {', '.join(SENDS)}"))
    if rates.payload and name == "async":
        return LINK
    return SENDS[name]


def engine_argument(name: str | None, schedule: Schedule, *, sends: str, link: str | float | None) -> Engine | None:
    """The engine that was asked for by name; None if none was.

    Raises:
        InputError: no such engine, or ways of sending beside one that has its own.
    """
    if name is None:
        return None
    engine = engine_of(name, schedule)
    beside = []
    if sends != "async":
        beside.append(f"--sends {sends}")
    if link is not None:
        beside.append("--link")
    if beside and engine != IDEAL:
        rule = f"{engine} has its own way of sending"
        raise InputError(Fault(f"{' '.join(beside)} beside --engine {name}", rule, "leave one out"))
    if beside:
        return None  # ideal says nothing of sends: what was said of them holds
    return engine


Given = str | int | PathLike[str]

LARGEST = 200_000_000  # bytes of a file: twenty million lengths
POINTS = 10_000  # equally likely lengths that stand for a distribution
LONGEST = 1e9  # tokens
COLUMNS = ("length", "lengths", "tokens", "num_tokens", "seqlen", "input_length")
EXAMPLE = "give 2048, p50=800,p95=6000, mean=1200,p95=4000, or a file with a length a line"


def samples_of(
    lengths: Given | None, sequence: int | None, packing: str | None, attention: str | float | None = None
) -> Samples | None:
    """What was said of samples; None if nothing was.

    Args:
        lengths: of samples.
        sequence: tokens that a row has room for.
        packing: ``whole``, ``cut`` or ``none``; None for ``whole``.
        attention: share of a row's time that grows with the square of a sample's length; None if the model says it.

    Raises:
        InputError: what cannot be read, or a packing of nothing.
    """
    if lengths is None:
        if packing is not None:
            rule = "only samples of unequal length need to be packed"
            raise InputError(Fault(f"packing = {packing}", rule, "give --lengths as well"))
        return None
    if packing not in (None, *PACKINGS):
        raise InputError(Fault(f"packing = {packing}", "it says how rows are filled", f"give {', '.join(PACKINGS)}"))
    grows = 0.0 if attention is None else share(attention, "attention-share")
    return Samples(lengths_of(lengths), sequence or 0, packing or PACKINGS[0], grows)


def lengths_of(given: Given) -> Lengths:
    """``2048``, ``p50=800,p95=6000``, ``mean=1200,p95=4000``, or the path of a file with one length a line.

    Two figures are those of a log-normal distribution, as lengths of documents and conversations nearly are.

    Raises:
        InputError: none of these, or figures that no such distribution has.
    """
    text = fspath(given) if isinstance(given, PathLike) else str(given)
    if Path(text).is_file():
        return Lengths(Path(text).name, np.sort(np.array(_of_file(Path(text)))))
    if "=" in text:
        centre, spread = _log_normal(text)
        normal = NormalDist()
        points = np.array([normal.inv_cdf((number + 0.5) / POINTS) for number in range(POINTS)])
        return Lengths(text, np.ceil(np.exp(np.minimum(centre + spread * points, math.log(LONGEST)))))
    length = _number(text, f"lengths = {text[:60]}")
    return Lengths(text, np.array([math.ceil(length)], np.float64))


def _number(text: str, name: str) -> float:
    """A length of at least one token.

    Raises:
        InputError: no such number.
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 1 <= found <= LONGEST:
        raise InputError(Fault(name, "a length is at least one token, and no file has this name", EXAMPLE))
    return found


def _log_normal(text: str) -> tuple[float, float]:
    """Mean and spread of the logs, from two of the mean and percentiles.

    Raises:
        InputError: other figures, or figures that contradict each other.
    """
    figures: list[tuple[float | None, float]] = []
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        percentile = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", name.strip())
        if name.strip() != "mean" and (percentile is None or not float(percentile[1])):
            raise InputError(Fault(f"lengths = {text[:60]}", "its figures are the mean and percentiles", EXAMPLE))
        place = None if percentile is None else NormalDist().inv_cdf(float(percentile[1]) / 100)
        figures.append((place, math.log(_number(value, f"lengths {name} = {value}"[:80]))))
    if len({place for place, _ in figures}) != 2 or len(figures) != 2:
        raise InputError(Fault(f"lengths = {text[:60]}", "two figures make a log-normal distribution", EXAMPLE))
    (place, log), (other, other_log) = sorted(figures, key=lambda figure: figure[0] is not None)
    other = other or 0.0
    spread = _spread_by_mean(other, other_log - log) if place is None else (other_log - log) / (other - place)
    if not 0 <= spread < 10:  # NaN is neither
        raise InputError(Fault(f"lengths = {text[:60]}", "no log-normal distribution has these figures", EXAMPLE))
    return other_log - spread * other, spread


def _spread_by_mean(place: float, above: float) -> float:
    """Spread s of logs if a percentile at z lies so far above the mean: z s - s^2 / 2, its lesser solution."""
    inside = place**2 - 2 * above
    if inside < 0:
        return math.nan
    return min((s for s in (place - math.sqrt(inside), place + math.sqrt(inside)) if s >= 0), default=math.nan)


def _of_file(path: Path) -> list[float]:
    """The lengths of a file: one a line, or the column of a CSV that is called like one, or its only column.

    Raises:
        InputError: no such column, or a cell that is no length.
    """
    if path.stat().st_size > LARGEST:
        raise InputError(Fault(str(path), f"a file of lengths has less than {LARGEST:,} bytes", "give a sample of it"))
    lines = csv.reader(path.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    rows = [line for line in lines if any(cell.strip() for cell in line)]
    column = 0
    if rows and not rows[0][0].strip().replace(".", "", 1).isdecimal():
        names = [name.strip().lower() for name in rows.pop(0)]
        named = [place for place, name in enumerate(names) if name in COLUMNS]
        if not named and len(names) > 1:
            raise InputError(Fault(str(path), f"none of its columns is {', '.join(COLUMNS)}", "name one of them so"))
        column = (named or [0])[0]
    if not rows:
        raise InputError(Fault(str(path), "it holds no length", EXAMPLE))
    found = []
    for number, row in enumerate(rows, start=1):
        cell = row[column] if column < len(row) else ""
        found.append(_number(cell, f"{path.name} length {number} = {cell[:40]}"))
    return found
