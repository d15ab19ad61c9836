"""``show``: a schedule simulated, how big its bubble is, and where the time of each rank goes."""

from __future__ import annotations

from ..core.engine import IDEAL
from ..diagnosis.simulated import Show, simulated
from ..schedules.forward_only import forward_only as without_backwards
from .arguments import Duration, Factors, Size
from .rates_argument import over_a_link, rates_of, sends_of
from .schedule_argument import Named, Sizes, exchange_of, schedule_of


def show(
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
    transfer: Duration | None = None,
    pair: Duration | None = None,
    stage_scale: Factors = (),
    microbatch_scale: Factors = (),
    rank_scale: Factors = (),
    link: str | float | None = None,
    bytes: Size | None = None,
    sends: str = "async",
    forward_only: bool = False,
    release: str = "w",
    cap: str | float | None = None,
) -> Show:
    """Simulate a schedule and account for its time.

        >>> debubble.show("1f1b", ranks=4, microbatches=8, transfer="35us").idle_share

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
        transfer: one hop between ranks.
        pair: an overlapped F and B together; None for their sum.
        stage_scale: a factor for each stage.
        microbatch_scale: a factor for each micro-batch.
        rank_scale: a factor for each rank.
        link: what a link between two ranks carries each way, GB/s.
        bytes: that one hop carries for a micro-batch.
        sends: whom a send keeps: ``async`` nobody, ``blocking`` the sender, ``rendezvous`` both sides.
        forward_only: leave the backwards out.
        release: when a split backward frees activations: at ``w``, ``half`` at I and half at W, or at ``i``.
        cap: most activations on a rank, for schedules that are searched: 6, ``1.5p``, or one for each rank.

    Raises:
        InputError: no such schedule, sizes that are missing or do not suit it, durations that cannot be.
        Refusal: the schedule is illegal or deadlocks.
    """
    spent = {
        "forward": forward,
        "backward": backward,
        "input": input,
        "weight": weight,
        "transfer": transfer,
        "pair": pair,
    }
    scales = {"stage_scale": stage_scale, "microbatch_scale": microbatch_scale, "rank_scale": rank_scale}
    rates = over_a_link(rates_of(spent, scales), link, bytes)
    way = sends_of(sends, rates)
    sizes = Sizes(ranks, microbatches, chunks, group, slices)
    order = schedule_of(schedule, sizes, rates, cap=None if cap is None else str(cap), release=release)
    if forward_only and not order.forward_only:
        order = without_backwards(order)
    placed = None if forward_only or way == IDEAL else exchange_of(schedule, order)
    return simulated(order, rates, release, engine=way, placed=placed)
