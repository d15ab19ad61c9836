"""How much an input may ask for: a size is held against its bound before anything is allocated or looped over for it.

A number in a file costs its author nothing, and may stand for a week of work. Each bound lies well above all that was
ever published, and well below what a workstation of 2 GB does in some seconds.
"""

from __future__ import annotations

from .errors import Fault

MOST_SHOWN_OPS = 20_000_000  # of a schedule that is drawn: 2 GB and 15 s; the bubble of 65,536 ranks needs fewer
MOST_PROVEN_OPS = 6_000_000  # of one whose deadlocks are looked for under each engine, which takes three times as much
MOST_LAYERS = 10_000  # of a model; the deepest published has 1,000 (DeepNet, https://arxiv.org/abs/2203.00555)
MOST_CHUNKS = 1_024  # of a rank: each holds at least a part of a layer
MOST_OF_A_LAYER = 1 << 24  # heads, experts or numbers that one layer takes or makes
MOST_WORDS = 1 << 31  # of a vocabulary
MOST_COUNTED = 10**15 - 1  # of anything: above the tokens of a batch and the ranks of any cluster
MOST_KEYS = 100_000  # of a configuration, counted as often as they are named: nine lines of YAML can name 10^9


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
    said = str(value) if len(str(value)) < 40 else f"a number of {len(str(value))} digits"
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
