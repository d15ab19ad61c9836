"""Splits: how layers fall to stages, as even as can be, with lighter ends, or by weight."""

from __future__ import annotations


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be; the first stages take what does not divide: 10 over 4 is 3, 3, 2, 2."""
    least, over = divmod(layers, stages)
    return (least + 1,) * over + (least,) * (stages - over)


def ends_apart(layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """First and last stage as told, the rest even; None where the middle does not divide."""
    given = [n for n in (first, last) if n is not None]
    middle, rest = stages - len(given), layers - sum(given)
    if middle < 0 or rest < 0 or (rest if middle == 0 else rest % middle):
        return None
    inner = [rest // middle] * middle if middle else []
    return (*([first] if first is not None else []), *inner, *([last] if last is not None else []))


def ends_counted(layers: int, stages: int, embedding: int, loss: int) -> tuple[int, ...] | None:
    """As even as can be where embedding and loss count as layers; None where an end has no room for them."""
    split = list(even_split(layers + embedding + loss, stages))
    split[0] -= embedding
    split[-1] -= loss
    return tuple(split) if min(split) >= 0 else None


def by_weight(layers: int, stages: int, *, layer: int, head: int) -> tuple[int, ...] | None:
    """As nanotron deals blocks: a stage is full once the running weight passes its share of the whole.

    Args:
        layers: transformer layers.
        stages: one a rank.
        layer: weight of each layer.
        head: weight of the head, which comes behind the layers.

    Returns:
        Layers of each stage; None where the head lands before the last one and leaves stages empty.
    """
    whole, stage, held = layers * layer + head, 0, [0] * stages
    for number in range(1, layers + 1):
        if stage == stages:
            return None
        held[stage] += 1
        stage += number * layer > whole * ((stage + 1) / stages)
    return tuple(held) if stage == stages - 1 else None


def near_even_ends(layers: int, ranks: int, chunks: int = 1) -> tuple[int, int] | None:
    """Layers of the first and last rank that leave the middle ranks an equal whole number, nearest to even.

    Each rank's number divides over its chunks. None where there are fewer than three ranks.
    """
    if ranks < 3:
        return None
    unit, about = chunks, layers // ranks // chunks * chunks
    best: tuple[int, int, int, int] | None = None
    for middle in range(
        about + 2 * unit, max(about - 3 * unit, 0), -unit
    ):  # further off an end or the middle is heavier
        ends = layers - middle * (ranks - 2)
        last = ends // 2 // unit * unit
        first = ends - last
        if last < unit or first < unit or first % unit:
            continue
        heaviest = max(first, middle)
        found = heaviest, heaviest - min(last, middle), first, last
        best = found if best is None else min(best, found)
    return None if best is None else best[2:]
