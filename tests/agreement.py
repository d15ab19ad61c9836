"""Random configurations judged twice, by a framework's own code and by our rules: what is legal, and what disagrees.

A draw is a legal configuration with none to three edits. An edit sets one thing at random, legal or not, so that every
rule is asked on both of its sides and several are broken at once. Almost half of the draws are aimed: they repeat, with
the same values, edits that have broken rules which have not fired often enough. Draws go on until there are enough of
them and every rule has fired often enough.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from debubble.config.config import Config
from debubble.frameworks.framework import Framework

Said = dict[str, object]
Edit = Callable[[Said, random.Random], None]
Choice = tuple[int, float]  # an edit by its number, and the seed of its values
DRAWS, TIMES, LEGAL = 2000, 20, 0.40
FREE = (0, 0, 0, 1, 1, 2)  # edits of a draw that is not aimed; two thirds of these draws are legal
AIMED, TARGETS = 0.46, 4  # share of draws that are aimed, each at so many rules
MOST = 40_000


@dataclass
class Tally:
    """What came of it; each disagreement with both verdicts."""

    draws: int = 0
    legal: int = 0
    fired: Counter = field(default_factory=Counter)
    alone: Counter = field(default_factory=Counter)  # of these, where no other rule is broken
    disagreements: list[tuple[Said, tuple[str, ...], str]] = field(default_factory=list)

    @property
    def legal_share(self) -> float:
        return self.legal / self.draws

    def told(self) -> str:
        return "\n".join(f"{said}\n   ours {ours}, theirs {theirs!r}" for said, ours, theirs in self.disagreements[:12])


def compared(
    framework: Framework,
    base: Callable[[random.Random], Said],
    edits: Sequence[Edit],
    refuses: Callable[[Said], str],
    laws: Sequence[str],
    seed: int = 0,
) -> Tally:
    """Draw, judge twice, count.

    Args:
        framework: ours.
        base: a legal configuration, as fields of ``Config`` and, under ``own``, words of the framework.
        edits: what may be done to it.
        refuses: what the framework itself says, an empty text where it takes it.
        laws: that must fire.
        seed: of the draws.
    """
    rng, tally = random.Random(seed), Tally()
    breakers: dict[str, Counter[Choice]] = {law: Counter() for law in laws}
    while tally.draws < MOST:
        rare = [law for law in laws if tally.fired[law] < TIMES]
        if tally.draws >= DRAWS and not rare:
            break
        said = base(rng)
        many = rng.choice(FREE)
        aims: dict[str, Choice] = {}
        if rare and rng.random() < AIMED:
            found = [law for law in rare if breakers[law].total() > 0]
            for law in rng.sample(found, min(TARGETS, len(found))):
                aims[law] = breakers[law].most_common(1)[0][0]
            many = 2 if len(found) < len(rare) else rng.choice((0, 0, 1))  # to find what breaks the others
        chosen = [(rng.randrange(len(edits)), rng.random()) for _ in range(many)] + list(aims.values())
        for number, values in chosen:
            edits[number](said, random.Random(values))
        ours = sorted(framework.broken(Config(whole=True, framework=framework.name, **said)).laws)
        theirs = refuses(said)
        tally.draws += 1
        tally.legal += not theirs
        tally.fired.update(ours)
        tally.alone.update(ours[:1] if len(ours) == 1 else ())
        for law in breakers.keys() & set(ours):
            # The only edit has broken it for sure; of several, each may have.
            breakers[law].update(dict.fromkeys(chosen, 3 if len(chosen) == 1 else 1))
        for law, choice in aims.items():
            breakers[law][choice] -= law not in ours  # it depends on the configuration that is edited
        if bool(ours) != bool(theirs):
            tally.disagreements.append((said, tuple(ours), theirs))
    return tally


def setting(name: str, *values: object) -> Edit:
    """An edit of one field."""

    def edit(said: Said, rng: random.Random) -> None:
        said[name] = rng.choice(values)

    return edit


def wording(**values: Sequence[object]) -> Edit:
    """An edit of words of the framework, each set to one of its values or left as it is."""

    def edit(said: Said, rng: random.Random) -> None:
        said["own"] = {**said.get("own", {}), **{name: rng.choice(some) for name, some in values.items()}}

    return edit


def together(**values: Sequence[object]) -> Edit:
    """An edit of several fields at once."""

    def edit(said: Said, rng: random.Random) -> None:
        said |= {name: rng.choice(some) for name, some in values.items()}

    return edit


def both(*edits: Edit) -> Edit:
    """Several edits, one after the other."""

    def edit(said: Said, rng: random.Random) -> None:
        for one in edits:
            one(said, rng)

    return edit
