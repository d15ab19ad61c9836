"""Samples of unequal length as people say them: one length, two figures of a distribution, or a file of lengths."""

from __future__ import annotations

import csv
import math
import re
from os import PathLike, fspath
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ..core.errors import Fault, InputError
from ..core.packing import PACKINGS, Lengths, Samples
from .arguments import share

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
