"""What Megatron-Core refuses of a split into stages: one way to say it, and ranks and chunks that come out even."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.layout import even_split
from ..core.errors import InputError
from .layout_string import layout_breaches, read_layout, write_layout
from .rules import given, named
from .setup import Breach, Setup
from .splits import ends_counted, near_even_ends


def stage_rules(setup: Setup) -> Iterator[Breach]:
    """Everything about the stages of a setup (as given, not settled) that Megatron-Core refuses."""
    for check in (_ways_to_split, _layout, _pattern, _ends, _even):
        yield from check(setup)


def _ways_to_split(setup: Setup) -> Iterator[Breach]:
    ways = given(setup, "chunk_layers", "chunks", "layout")
    if len(ways) > 1:
        yield Breach("one way to chunk", ways, f"only one of {named(ways)} may be set", f"leave out {named(ways[1:])}")
    ends = given(setup, "first", "last")
    counted = _counted(setup)
    for some, others in (
        (ends, counted),
        (ends, given(setup, "layout", "chunk_layers")),
        (counted, given(setup, "layout")),
    ):
        if some and others:
            rule = f"{named(some)} cannot be used with {named(others)}"
            yield Breach(f"{some[0]} with {others[0]}", (some[0], others[0]), rule, f"leave out {named(some)}")


def _counted(setup: Setup) -> tuple[str, ...]:
    """Which of embedding and loss count as layers."""
    return tuple(field for field in ("embedding_layers", "loss_layers") if getattr(setup, field))


def _layout(setup: Setup) -> Iterator[Breach]:
    if setup.layout is None:
        return
    try:
        laid = read_layout(setup.layout, setup.ranks)
    except InputError as error:
        fault = error.faults[0]
        yield Breach("layout", ("layout",), fault.rule, fault.remedy)
        return
    yield from layout_breaches(laid, setup.layers, setup.next_layers)


def _pattern(setup: Setup) -> Iterator[Breach]:
    """Stages of a hybrid model are cut by bars, and then by nothing else."""
    if setup.pattern is None or "|" not in setup.pattern:
        return
    others = (*given(setup, "chunks", "chunk_layers", "first", "last", "layout"), *_counted(setup))
    if others:
        rule = f"with bars in it {named(others)} cannot be used"
        yield Breach("pattern alone", ("pattern", *others), rule, f"leave out {named(others)}")
    segments = setup.pattern.split("/")[0].count("|") + 1
    if segments % setup.ranks:
        rule = f"its {segments} stages do not divide over {setup.ranks} ranks"
        yield Breach("pattern stages", ("pattern", "pipeline"), rule, "add or take away a bar")


def _ends(setup: Setup) -> Iterator[Breach]:
    """Uneven ends: what is left divides over the ranks in between, and everything over the chunks."""
    ends = given(setup, "first", "last")
    if not ends or setup.layers is None or setup.layout is not None:
        return
    held, chunks = [getattr(setup, field) for field in ends], setup.chunks or 1
    rest, ranks = setup.layers - sum(held), setup.ranks - len(ends)
    for field, value in zip(ends, held, strict=True):
        if value < 1:
            yield Breach(f"{field} holds a layer", (field,), "an end holds one layer or more")
        elif value % chunks:
            yield Breach(f"{field} over chunks", (field, "chunks"), f"its layers divide over {chunks} chunks")
    fields = (*ends, "layers", "pipeline")
    if ranks < 0 or rest < 0 or bool(rest) != bool(ranks) or (ranks and rest % ranks):
        rule = f"{rest} layers are left for {ranks} ranks in between, which do not share them evenly"
        yield Breach("middle over ranks", fields, rule)
    elif ranks and rest // ranks % chunks:
        rule = f"each rank in between has {rest // ranks} layers, which do not divide over {chunks} chunks"
        yield Breach("middle over chunks", (*ends, "chunks"), rule)


def _even(setup: Setup) -> Iterator[Breach]:
    """Without uneven ends or a layout, every rank and every chunk holds as many layers."""
    cut = "|" in (setup.pattern or "") or given(setup, "first", "last", "layout", "split")
    if setup.layers is None or cut:
        return
    counted = (setup.embedding_layers or 0) + (setup.loss_layers or 0)
    units, what = setup.layers + counted, f"{setup.layers} layers"
    what += f" + {counted} for embedding and loss" if counted else ""
    if units % setup.ranks:
        remedy = _uneven(setup.layers, setup.ranks, setup.chunks or 1) if not counted else ""
        yield Breach(
            "even ranks", ("pipeline", "layers"), f"{what} do not split evenly over {setup.ranks} ranks", remedy
        )
        return
    each = units // setup.ranks
    if setup.chunks and each % setup.chunks:
        rule = f"each rank has {each} layers, which do not divide over {setup.chunks} chunks"
        yield Breach("even chunks", ("chunks", "pipeline"), rule)
    elif setup.chunk_layers and each % setup.chunk_layers:
        rule = f"each rank has {each} layers, which do not fall into chunks of {setup.chunk_layers}"
        yield Breach("even chunks", ("chunk_layers", "pipeline"), rule)


def _uneven(layers: int, ranks: int, chunks: int) -> str:
    ways = []
    ends = near_even_ends(layers, ranks, chunks)
    if ends:
        ways.append(f"uneven ends: <first> {ends[0]} <last> {ends[1]}")
    if (layers + 2) % (ranks * chunks) == 0 and (split := ends_counted(layers, ranks, 1, 1)) and min(split) > 0:
        ways.append(f"<embedding_layers> <loss_layers> ({split[0]}, {split[len(split) // 2]}, .., {split[-1]})")
    if not ways and layers >= ranks * chunks:
        ways.append(
            f"<layout> '{write_layout(even_split(layers, ranks * chunks))}' alone, without other keys of a split"
        )
    return "; ".join(ways)
