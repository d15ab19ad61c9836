"""What can go wrong, as a tree, and how much an input may ask for before that goes wrong.

The command line turns each branch into one exit status:

DebubbleError
├── InputError            something given cannot be used: value, rule, remedy           exit 2
└── Refusal               the question was understood and the answer is no              exit 1
    ├── IllegalSchedule   a schedule breaks a law; carries every violation
    ├── WithoutOps        a measurement holds no op, so no idle share; carries what it tells instead
    └── Deadlock          every rank waits for another; carries the cycle

A number in a file costs its author nothing, and may stand for a week of work. So a size is held against its bound
before anything is allocated or looped over for it. Each bound lies well above all that was ever published, and well
below what a workstation of 2 GB does in some seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

MOST_SHOWN_OPS = 20_000_000  # of a schedule that is drawn: 2 GB and 15 s; the bubble of 65,536 ranks needs fewer
MOST_PROVEN_OPS = 6_000_000  # of one whose deadlocks are looked for under each engine, which takes three times as much
MOST_LAYERS = 10_000  # of a model; the deepest published has 1,000 (DeepNet, https://arxiv.org/abs/2203.00555)
MOST_CHUNKS = 1_024  # of a rank: each holds at least a part of a layer
MOST_OF_A_LAYER = 1 << 24  # heads, experts or numbers that one layer takes or makes
MOST_WORDS = 1 << 31  # of a vocabulary
MOST_COUNTED = 10**15 - 1  # of anything: above the tokens of a batch and the ranks of any cluster
MOST_KEYS = 100_000  # of a configuration, counted as often as they are named: nine lines of YAML can name 10^9
_LONGEST = 600  # characters of words that are not ours: a library may put a whole program into its message


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input.

    Args:
        value: what was given, with its name, as in ``microbatches = 0``.
        rule: what it breaks, as a clause.
        remedy: what to give instead, as a clause.
    """

    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.value}: {self.rule}; {self.remedy}"


class DebubbleError(Exception):
    """The root of all errors that this package raises on purpose."""


class InputError(DebubbleError):
    """Something given cannot be used; carries every fault found, not only the first."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class Interrupted(KeyboardInterrupt):
    """A signal ended the work.

    Args:
        signal: its number.
        kept: what is left of the work.
    """

    def __init__(self, signal: int, kept: str) -> None:
        super().__init__(kept)
        self.signal = signal


class Refusal(DebubbleError):
    """The question was understood, and the answer is no."""


class WithoutOps(Refusal):
    """A measurement holds no forward or backward of a micro-batch, so no idle share; carries what it tells instead.

    Args:
        source: the path that was read.
        holds: what it holds and what it lacks, a clause.
        facts: what it tells, a sentence each.
        remedies: what would tell the rest, a clause each.
    """

    def __init__(self, source: str, holds: str, facts: Sequence[str], remedies: Sequence[str]) -> None:
        told = "".join(f"\n  - {fact}" for fact in facts)
        helps = "".join(f"\n  {remedy}" for remedy in remedies)
        super().__init__(f"{source}: {holds}. What it tells (measured):{told}{helps}")
        self.facts = tuple(facts)


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a schedule breaks a law.

    Args:
        rank: whose row, or -1 where no single row is to blame.
        position: index in that row, or -1 where the op is missing from it.
        sentence: what is wrong there.
        remedy: what to do about it, as a clause, or an empty string.
    """

    rank: int
    position: int
    sentence: str
    remedy: str = ""

    @property
    def place(self) -> str:
        """Where, in words; an empty string where no single row is to blame."""
        if self.rank < 0:
            return ""
        if self.position < 0:
            return f"rank {self.rank}"
        return f"rank {self.rank} position {self.position}"

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence}" if self.place else self.sentence


class IllegalSchedule(Refusal):
    """A schedule breaks a law; carries every violation."""

    def __init__(self, name: str, violations: Sequence[Violation]) -> None:
        # A file whose stages are shifted breaks a law at every op: twenty lines show that as well as a million.
        shown = [str(violation) for violation in violations[:20]]
        if len(violations) > len(shown):
            shown.append(f".. and {len(violations) - len(shown)} more")
        super().__init__(f"{name} is not a legal schedule:\n  " + "\n  ".join(shown))
        self.violations = tuple(violations)


class Deadlock(Refusal):
    """Every rank waits for another; carries the cycle of ops that wait for each other."""

    def __init__(self, name: str, cycle: Sequence[str], violations: Sequence[Violation] = ()) -> None:
        super().__init__(f"{name} deadlocks: " + " waits for ".join([*cycle, cycle[0]]))
        self.cycle = tuple(cycle)
        self.violations = tuple(violations)


def in_one_line(error: BaseException) -> str:
    """An error that somebody else raised: its type, and its words as far as a line holds them."""
    words = cut_to_a_line(f"{error}")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def cut_to_a_line(words: str) -> str:
    """Words of somebody else's error, without their line breaks, as far as a line holds them."""
    return " ".join(words.split())[:_LONGEST]


def nearest(word: str, words: Iterable[str], kind: str) -> InputError:
    """The error for a mistyped name: quotes it and offers the nearest names that exist."""
    known = sorted(words)
    remedy = f"known: {', '.join(known)}"
    if close := get_close_matches(word.lower(), known, n=3, cutoff=0.5):
        remedy = f"did you mean {' or '.join(close)}?"
    return InputError(Fault(f"{kind} = {word!r}", f"no {kind} has this name", remedy))


def beyond(what: str, value: int, most: int, remedy: str = "") -> list[Fault]:
    """The fault of a size that is asked for, or none.

    Args:
        what: the size as its source calls it.
        value: that it has.
        most: that is done.
        remedy: what to do instead; a smaller one if there is nothing better.
    """
    if value <= most:
        return []
    said = str(value)
    if len(said) >= 40:  # a number may be as long as its file
        said = f"a number of {len(said)} digits"
    return [Fault(f"{what} = {said}", f"up to {most:,} are read", remedy or f"give {most:,} or less")]


def entries(tree: object, most: int) -> int:
    """Leaves and branches of nested tables and lists, or a number above ``most`` as soon as there are more.

    What an alias names twice counts twice, because whoever walks it later meets it twice.
    """
    count, left = 0, [tree]
    while left and count <= most:
        one = left.pop()
        count += 1
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set):
            left += one
    return count
