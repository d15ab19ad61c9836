"""An engine: how the one who executes a schedule sends and receives, apart from the order of its computations.

A transfer has two sides. Each is *posted* somewhere between the ops of its rank and *waited for* somewhere behind that;
it begins when both are posted (where sides meet) and what is in front of it on its lane has ended:

    rank 0   0F0 [s] 0F1 ..             posted and waited for at once: 0F1 starts when the transfer has ended
    rank 1   (r)  ..  1F0               posted early, waited for before its consumer: what runs in between is free

Where the sides are posted is a table of steps (``steps_of``), or one of four rules that no table says (``Posting``).
Tables of the engines that people run lie in ``frameworks``; the four below are what ``--sends`` and ``--link`` name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum


class Posting(Enum):
    """Where sends and receives stand between the ops of each rank."""

    MADE = "made"  # an output is sent when it is made, and the receiver always has room for it
    ROUNDS = "rounds"  # both behind the round in which it is made: the order of `exchange`, which cannot deadlock
    STEPS = "steps"  # a table of steps says it
    PLACED = "placed"  # both when the producer is placed, rank after rank: torch's `_add_send_recv`
    PLANNED = "planned"  # both at the time at which a timetable ends the producer: zero-bubble's scheduler


class Lane(Enum):
    """What carries one transfer (or one batch of them) at a time, in the order in which they were posted."""

    NONE = "none"
    WAY = "way"  # from one rank to another
    PAIR = "pair"  # between two ranks, both directions: a communicator of two ranks
    GROUP = "group"  # at each rank, whomever it talks to: one communicator of the whole pipeline


class WaitUntil(Enum):
    """When a rank waits for a send that it does not wait for at once."""

    END = "end"  # when the step ends, so no op does
    NEXT = "next"  # behind its next op
    AGAIN = "again"  # behind its next op of the same kind, whose output it posts first
    BACKWARD = "backward"  # before its first backward


class Occupies(Enum):
    """Whose time a transfer takes up, as an op does: then it opens and closes the rank's own time."""

    NOBODY = "nobody"
    SENDER = "sender"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class EngineItem:
    """One send or receive of a table of steps.

    Args:
        act: ``s`` or ``r``.
        kind: ``F`` or ``B``; empty for the ops next to the gap, whatever they are.
        ahead: 1 for the input of the op after the next one of that kind.
    """

    act: str
    kind: str
    ahead: int

    def __str__(self) -> str:
        text = f"{self.act}{self.kind}"
        if self.ahead:
            text += f"+{self.ahead}"
        return text


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """Sends and receives that are posted together.

    Args:
        items: what, in order.
        at_once: whether the rank waits for all of them before it goes on.
        neighbours: whether it is one batch only where all go to the same rank, and else sends, then receives.
        turns: whether it is two, one after the other: the receive first where the other rank sends before it receives.
    """

    items: tuple[EngineItem, ...]
    at_once: bool
    neighbours: bool = False
    turns: bool = False

    def __str__(self) -> str:
        between = " "
        if self.neighbours:
            between = "|"
        elif self.turns:
            between = "/"
        text = between.join(map(str, self.items))
        if self.at_once:
            return f"[{text}]"
        return f"({text})"


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What a rank posts between two ops.

    Args:
        behind: which op comes before: ``F``, ``B``, a phase (``w`` warm-up forward, ``f`` and ``b`` steady, ``c``
            cool-down backward), ``-`` for the start of the step, ``any``.
        before: which comes after; ``-`` for the end.
        batches: what is posted, in order.
        leading: what the rank posts instead that is the first of the pipeline in the direction of the op behind (or,
            at the start, before); None for the same.
    """

    behind: str
    before: str
    batches: tuple[EngineBatch, ...]
    leading: tuple[EngineBatch, ...] | None = None

    def items(self) -> tuple[EngineItem, ...]:
        """All sends and receives of the line."""
        return tuple(item for batch in (*self.batches, *(self.leading or ())) for item in batch.items)


@dataclass(frozen=True, slots=True)
class Engine:
    """How the one who executes a schedule communicates.

    Args:
        name: what people call it, with its switch, as in ``torch:one-lane``.
        posting: where sends and receives stand.
        lane: what takes one transfer at a time.
        steps: the table, where a table says it; of two lines that fit, the first counts.
        chunked: the table for interleaved orders, where that is another one.
        until: when sends that are not waited for at once are waited for.
        queue: whether all that a rank launches goes through one queue, so that an op waits until the sends and receives
            that were posted before it have been dispatched, each behind what is in front of it on its lane.
        coalesced: whether what is posted together goes as one: then its parts have no order among themselves, and where
            it is more than one they are on no lane between two ranks.
        meets: whether a transfer begins when both sides are posted; else the receiver always has room.
        occupies: whose time a transfer takes up.
        least_chunks: stages a rank that it asks for.
        two_ways: whether a pipeline of two ranks has a lane for each direction where others have one for the pair.
        source: file, function and release that it was read in; empty for ours.
    """

    name: str
    posting: Posting
    lane: Lane = Lane.NONE
    steps: tuple[EngineStep, ...] = ()
    chunked: tuple[EngineStep, ...] = ()
    until: WaitUntil = WaitUntil.END
    queue: bool = False
    coalesced: bool = False
    meets: bool = True
    occupies: Occupies = Occupies.NOBODY
    least_chunks: int = 1
    two_ways: bool = False
    source: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def stands_still(self) -> bool:
        """Whether a rank waits at once for whatever it sends or receives."""
        batches = self._batches()
        return self.occupies is Occupies.BOTH or (bool(batches) and all(batch.at_once for batch in batches))

    @property
    def one_by_one(self) -> bool:
        """Whether it waits for each transfer by itself."""
        return self.stands_still and all(batch.turns or len(batch.items) == 1 for batch in self._batches())

    def _batches(self) -> list[EngineBatch]:
        return [batch for step in (*self.steps, *self.chunked) for batch in step.batches]

    @property
    def takes_orders(self) -> bool:
        """Whether it runs an order of sends and receives that somebody else wrote."""
        return self.posting in (Posting.MADE, Posting.ROUNDS, Posting.PLACED)

    def switched(self, name: str, **changes: object) -> Engine:
        """The same engine with a switch set, under the name ``engine:switch``."""
        return replace(self, name=f"{self.name}:{name}", **changes)  # type: ignore[arg-type]


IDEAL = Engine("ideal", Posting.MADE, meets=False)  # a hop is a latency from the end of the producer, and nothing else
LINK = Engine("link", Posting.MADE, Lane.WAY, meets=False)  # bytes take turns on the way from one rank to another
# The sender hands all over before it goes on.
BLOCKING = Engine("blocking", Posting.MADE, meets=False, occupies=Occupies.SENDER)
RENDEZVOUS = Engine("rendezvous", Posting.ROUNDS, occupies=Occupies.BOTH)  # both sides stand still while they hand over
# By the names under which ``--sends`` and ``--link`` ask for them.
SENDS = {"async": IDEAL, "link": LINK, "blocking": BLOCKING, "rendezvous": RENDEZVOUS}


def way_of(engine: Engine) -> str:
    """The name that ``--sends`` has for an engine; that of the engine itself for any other."""
    return next((way for way, each in SENDS.items() if each == engine), engine.name)


# The grammar of `steps_of`: a batch in square or round brackets, and a send or receive with kind and distance.
_BATCH = re.compile(r"\[[^\]]*\]|\([^)]*\)")
_ITEM = re.compile(r"([sr])([FB]?)(?:\+([0-9]))?")


def steps_of(table: str) -> tuple[EngineStep, ...]:
    """Read a table of steps.

    Each line names the op behind the gap, the op before it, and what is posted there: ``[sF rB]`` waited for at once,
    ``(sF rF)`` later, ``[s|r]`` one batch where both go to the same neighbour and else first the sends, ``[s/r]`` one
    after the other, the receive first where the other rank sends first. ``sF`` sends what the last F made, ``rB``
    receives what the next backward needs, ``rF+1`` what the F after the next one needs; ``s`` and ``r`` are of the ops
    next to the gap. A second column, behind a semicolon, is for the leading rank:

        w  f  [sF rF rB]
        w  w  (sF) (rF+1); (sF rF)

    Raises:
        ValueError: a line that is none of this.
    """
    return tuple(_step(line) for line in table.strip().splitlines())


def _step(line: str) -> EngineStep:
    behind, before, *rest = line.split(maxsplit=2)
    usual, apart, leading = "".join(rest).partition(";")
    if not apart:
        return EngineStep(behind, before, _batches(usual, line))
    return EngineStep(behind, before, _batches(usual, line), _batches(leading, line))


def _batches(column: str, line: str) -> tuple[EngineBatch, ...]:
    if _BATCH.sub("", column).strip():
        raise ValueError(f"not batches of sends and receives: {line!r}")
    return tuple(_batch(text) for text in _BATCH.findall(column))


def _batch(text: str) -> EngineBatch:
    words = re.sub("[|/]", " ", text[1:-1]).split()
    found = [_ITEM.fullmatch(word) for word in words]
    if not words or None in found:
        raise ValueError(f"not sends and receives: {text!r}")
    items = tuple(EngineItem(match[1], match[2], int(match[3] or 0)) for match in found if match)
    return EngineBatch(items, text[0] == "[", "|" in text, "/" in text)
