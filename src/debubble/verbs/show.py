"""``show``: a schedule simulated, how big its bubble is, and where the time of each rank goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

from ..core.costs import Rates
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.packing import Samples
from ..diagnosis.simulated import Against, Show, simulated
from ..diagnosis.simulated import against as hold_against
from ..schedules.loops import forward_only as without_backwards
from .arguments import Duration, Factors, Hop, Size, Swept, swept
from .pipeline_argument import (
    Given,
    Named,
    Sizes,
    engine_argument,
    exchange_of,
    over_a_link,
    rates_of,
    samples_of,
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
    lengths: Given | None = None,
    sequence: int | None = None,
    attention_share: str | float | None = None,
    packing: str | None = None,
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
        pair: an overlapped F and B together; None for their sum; ``2.4ms,0=3ms`` if a stage's layers are of another
            kind. ``interleaved`` then runs them in pairs, as Megatron-Core does beside the all-to-alls of experts.
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
        lengths: of samples, if they are unequal: ``p50=800,p95=6000``, ``mean=1200,p95=4000``, or a file of lengths.
            Durations are then of a micro-batch that is one sample of ``sequence`` tokens.
        sequence: tokens that a micro-batch has room for.
        attention_share: of its time, how much grows with the square of a sample's length.
        packing: ``whole`` samples fill a micro-batch; ``cut`` from a stream of them; ``none``, each is one sample.

    Raises:
        InputError: no such schedule, sizes that are missing or do not suit it, durations that cannot be.
        Refusal: the schedule is illegal or deadlocks.
    """
    work = {"forward": forward, "backward": backward, "input": input, "weight": weight, "pair": pair}
    hops = {"transfer": transfer, "occupy": occupy}
    scales = {"stage_scale": stage_scale, "microbatch_scale": microbatch_scale, "rank_scale": rank_scale}
    rates = over_a_link(rates_of(work | hops, scales), link, bytes)
    way = sends_of(sends, rates)
    sizes = Sizes(ranks, microbatches, chunks, group, slices, None if pair is None else True)
    held = None if cap is None else str(cap)  # 6 and "6" are the same cap
    tried = _tried(sweep, against)
    samples = _samples(lengths, sequence, attention_share, packing)
    if samples is not None and microbatch_scale:
        rule = "lengths say how unequal micro-batches are"
        raise InputError(Fault("--microbatch-scale beside --lengths", rule, "leave one out"))

    asked = _Asked(rates, way, held, release, forward_only, sends, link, samples)
    engines = _engines(engine, two=against is not None)
    if against is None:
        return _shown(asked, schedule, sizes, engines[0])
    # Sizes as each takes them: -v 2 is of the interleaved one of two.
    first = _shown(asked, schedule, suited(schedule, sizes), engines[0])
    other = _shown(asked, against, suited(against, sizes), engines[-1])
    if tried is None:
        return hold_against(first, other)
    return hold_against(first, other, tried.ranks, tried.hops)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked of one schedule or of both: see ``show``."""

    rates: Rates
    way: Engine
    cap: str | None
    release: str
    forward_only: bool
    sends: str
    link: str | float | None
    samples: Samples | None


def _shown(asked: _Asked, named: Named, sizes: Sizes, engine: str | None) -> Show:
    """One schedule, simulated under one engine."""
    order = schedule_of(named, sizes, asked.rates, cap=asked.cap, release=asked.release)
    if asked.forward_only and not order.forward_only:
        order = without_backwards(order)
    executes = engine_argument(engine, order, sends=asked.sends, link=asked.link)
    if executes is None and asked.way != IDEAL:
        executes = asked.way
    # Where a file places its sends counts for engines that follow such orders; forwards alone have another order.
    placed = None
    if executes is not None and executes.takes_orders and not asked.forward_only:
        placed = exchange_of(named, order)
    return simulated(order, asked.rates, asked.release, engine=executes, placed=placed, samples=asked.samples)


def _samples(
    lengths: Given | None, sequence: int | None, attention: str | float | None, packing: str | None
) -> Samples | None:
    """The samples that micro-batches are packed from; a schedule knows neither their room nor what attention costs."""
    beside = {"--sequence": sequence, "--attention-share": attention}
    if lengths is None:
        faults = [
            Fault(option, "it says how time grows with the length of samples", "give --lengths as well")
            for option, value in beside.items()
            if value is not None
        ]
    else:
        faults = [
            Fault(option, "times of unequal samples follow from it", "give it, as in --sequence 8192")
            for option, value in beside.items()
            if value is None
        ]
    if faults:
        raise InputError(*faults)
    return samples_of(lengths, sequence, packing, attention)


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
