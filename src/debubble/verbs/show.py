"""``show``: a schedule simulated, how big its bubble is, and where the time of each rank goes."""

from __future__ import annotations

from typing import Any, overload

from ..core.engine import IDEAL
from ..core.errors import Fault, InputError
from ..diagnosis.against import Against
from ..diagnosis.against import against as hold_against
from ..diagnosis.simulated import Show, simulated
from ..schedules.breadth_first import forward_only as without_backwards
from .arguments import Duration, Factors, Hop, Size, Swept, swept
from .pipeline_argument import (
    Named,
    Sizes,
    engine_argument,
    exchange_of,
    over_a_link,
    rates_of,
    schedule_of,
    sends_of,
    suited,
)


@overload
def show(schedule: Named, *, against: None = None, **given: Any) -> Show: ...
@overload
def show(schedule: Named, *, against: Named, **given: Any) -> Against: ...
def show(  # type: ignore[misc]  # the two above name one keyword of all that there are
    schedule: Named,
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    group: int | None = None,
    slices: int | None = None,
    forward: Duration | None = None,
    backward: Duration | None = None,
    input: Duration | None = None,
    weight: Duration | None = None,
    transfer: Hop | None = None,
    occupy: Hop | None = None,
    pair: Duration | None = None,
    stage_scale: Factors = (),
    microbatch_scale: Factors = (),
    rank_scale: Factors = (),
    link: str | float | None = None,
    bytes: Size | None = None,
    sends: str = "async",
    engine: str | None = None,
    against: Named | None = None,
    sweep: str | Swept | None = None,
    forward_only: bool = False,
    release: str = "w",
    cap: str | float | None = None,
) -> Show | Against:
    """Simulate a schedule and account for its time, alone or against another one.

        >>> debubble.show("1f1b", ranks=4, microbatches=8, transfer="35us").idle_share
        >>> debubble.show("1f1b", ranks=8, microbatches=24, against="zb-h1", sweep="6-7=0:60ms:5ms").crossover_ms

    Durations are per micro-batch and **rank** (a chunk takes 1/chunks of them); a bare number is milliseconds.

    Args:
        schedule: a name of the catalog, a torch CSV file, ``module:Class`` of a torch schedule, or a schedule.
        ranks: of the pipeline.
        microbatches: per step.
        chunks: stages on each rank; None for what the schedule has.
        group: micro-batches that pass a chunk before the next has its turn.
        slices: parts into which the sequence of a micro-batch is cut.
        forward: F of one micro-batch on one rank; 1 ms by default.
        backward: B, both halves; 2 ms by default.
        input: I, the half that yields the gradient of the input.
        weight: W, the half that yields the gradient of the weights.
        transfer: one hop between ranks, on all links or by link, as in ``1ms,6-7=30ms``.
        occupy: how long a hop takes up its sender before it begins, likewise.
        pair: an overlapped F and B together; None for their sum.
        stage_scale: a factor for each stage.
        microbatch_scale: a factor for each micro-batch.
        rank_scale: a factor for each rank.
        link: what a link between two ranks carries each way, GB/s.
        bytes: that one hop carries for a micro-batch.
        sends: whom a send keeps: ``async`` nobody, ``blocking`` the sender, ``rendezvous`` both sides.
        engine: who executes it, as in ``megatron`` or ``torch:one-lane``; None for ``ideal``: a hop is only a latency.
            Beside ``against`` also two, one for each: ``megatron,zero-bubble``.
        against: another schedule, to be held against it: a name, a torch CSV file, or a schedule.
        sweep: hops to try on one link of both, as in ``6-7=0:60ms:5ms``.
        forward_only: leave the backwards out.
        release: when a split backward frees activations: at ``w``, ``half`` at I and half at W, or at ``i``.
        cap: most activations on a rank, for schedules that are searched: 6, ``1.5p``, or one for each rank.

    Raises:
        InputError: no such schedule, sizes that are missing or do not suit it, durations that cannot be.
        Refusal: the schedule is illegal or deadlocks.
    """
    work = {"forward": forward, "backward": backward, "input": input, "weight": weight, "pair": pair}
    hops = {"transfer": transfer, "occupy": occupy}
    scales = {"stage_scale": stage_scale, "microbatch_scale": microbatch_scale, "rank_scale": rank_scale}
    rates = over_a_link(rates_of(work | hops, scales), link, bytes)
    way = sends_of(sends, rates)
    sizes = Sizes(ranks, microbatches, chunks, group, slices)
    held = None if cap is None else str(cap)  # 6 and "6" are the same cap
    tried = _tried(sweep, against)

    def shown(named: Named, sizes: Sizes, engine: str | None) -> Show:
        order = schedule_of(named, sizes, rates, cap=held, release=release)
        if forward_only and not order.forward_only:
            order = without_backwards(order)
        executes = engine_argument(engine, order, sends=sends, link=link) or (way if way != IDEAL else None)
        # Where a file places its sends counts for engines that follow such orders; forwards alone have another order.
        placed = None
        if executes is not None and executes.takes_orders and not forward_only:
            placed = exchange_of(named, order)
        return simulated(order, rates, release, engine=executes, placed=placed)

    engines = _engines(engine, two=against is not None)
    if against is None:
        return shown(schedule, sizes, engines[0])
    # Sizes as each takes them: -v 2 is of the interleaved one of two.
    first = shown(schedule, suited(schedule, sizes), engines[0])
    other = shown(against, suited(against, sizes), engines[-1])
    if tried is None:
        return hold_against(first, other)
    return hold_against(first, other, tried.ranks, tried.hops)


def _tried(sweep: str | Swept | None, against: Named | None) -> Swept | None:
    """The hops to try, which take a second schedule."""
    if sweep is None:
        return None
    if against is None:
        raise InputError(Fault("--sweep without --against", "a sweep is of two schedules", "name the other one"))
    return swept(sweep)


def _engines(named: str | None, *, two: bool) -> list[str | None]:
    """The engine of one schedule, or of each of two."""
    if named is None:
        return [None]
    names = named.split(",")
    if len(names) > 1 + two:
        rule = "it is one engine, or one for each of two schedules"
        raise InputError(Fault(f"engine = {named}", rule, "give one, or --against as well"))
    return [*names]
