"""What is to be recorded, from words: ``steps=10:20``, ``every=5``, ``keep=100`` or ``keep=20MB``, ``replicas=0,7``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import Fault, InputError

_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_LEAST_BYTES = 64 * 1024  # room for some steps of any pipeline in each of the files


@dataclass(frozen=True, slots=True)
class Keep:
    """The most that a process keeps on disk; None where there is no limit.

    Args:
        steps: the newest.
        bytes: of its files together.
    """

    steps: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be recorded.

    Args:
        out: folder of the recording.
        steps: first and last step, counted from 0 by each pipeline; by default all but the first.
        every: records one step in so many.
        keep: the most that each process keeps on disk.
        replicas: data-parallel replicas that are recorded, where the engine says which this one is; None for all.
    """

    out: Path
    steps: tuple[int, int | None] | None = None
    every: int = 1
    keep: Keep = field(default_factory=Keep)
    replicas: tuple[int, ...] | None = None

    def takes(self, number: int, fresh: bool) -> bool:
        """Whether a step is recorded.

        Args:
            number: from 0.
            fresh: whether it is the first of its pipeline and variety.
        """
        if self.steps is None:
            return not fresh and number % self.every == 0
        first, last = self.steps
        return first <= number and (last is None or number <= last) and (number - first) % self.every == 0


def wish_of(
    out: str | Path, *, steps: str = "", every: str | int = 1, keep: str | int = "", replicas: str = ""
) -> Wish:
    """Make a wish of words.

    Args:
        out: folder of the recording.
        steps: first and last, ``10:20``, ``10:`` or ``10``.
        every: one in so many.
        keep: the newest so many steps, or a size of each process's files.
        replicas: which, with commas or ranges: ``0,7`` or ``0-3``; + may stand for the comma.

    Raises:
        InputError: what cannot be, all at once.
    """
    faults: list[Fault] = []
    chosen = _steps(str(steps), faults)
    rate = _whole("every", str(every), faults, "one step in so many is recorded, 1 or more", least=1)
    kept = _keep(str(keep), faults)
    some = _replicas(str(replicas), faults)
    if faults:
        raise InputError(*faults)
    return Wish(Path(out).absolute(), chosen, rate, kept, some)


def _whole(name: str, word: str, faults: list[Fault], rule: str, least: int) -> int:
    if word.isascii() and word.isdigit() and len(word) < 10 and int(word) >= least:
        return int(word)
    faults.append(Fault(f"--{name} {word}", rule, f"give a whole number from {least}"))
    return least


def _steps(word: str, faults: list[Fault]) -> tuple[int, int | None] | None:
    if not word:
        return None
    found = re.fullmatch(r"(\d{0,9}):(\d{0,9})|(\d{1,9})", word)
    if found is None:
        faults.append(Fault(f"--steps {word}", "steps are counted from 0 by each pipeline", "give A:B, as in 10:20"))
        return None
    if found[3]:
        return int(found[3]), int(found[3])
    first, last = int(found[1] or 0), int(found[2]) if found[2] else None
    if last is not None and last < first:
        faults.append(Fault(f"--steps {word}", "the last is before the first", "give A:B, as in 10:20"))
    return first, last


def _keep(word: str, faults: list[Fault]) -> Keep:
    if not word:
        return Keep()
    if word.isascii() and word.isdigit():
        return Keep(steps=_whole("keep", word, faults, "the newest so many steps are kept, 1 or more", least=1))
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)\s*([kmg]?i?b)", word.lower())
    size = float(found[1]) * _SIZES[found[2]] if found and found[2] in _SIZES else 0
    if size < _LEAST_BYTES:
        rule = "a number of steps, or a size of each process's files of 64 KiB or more"
        faults.append(Fault(f"--keep {word}", rule, "give 100 or 20MB, say"))
    return Keep(bytes=int(size))


def _replicas(word: str, faults: list[Fault]) -> tuple[int, ...] | None:
    if not word:
        return None
    chosen: list[int] = []
    for piece in re.split(r"[,+]", word):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", piece.strip())
        if found is None:
            faults.append(Fault(f"--replicas {word}", "replicas are counted from 0", "give 0,7 or 0-3, say"))
            return None
        chosen += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(dict.fromkeys(chosen))
