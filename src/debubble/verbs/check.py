"""``check``: prove a schedule or a configuration legal, or list every fault with its place and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath

from ..config.config import Unknown
from ..core.costs import Rates
from ..core.engine import SENDS
from ..core.errors import MOST_PROVEN_OPS, Fault, InputError
from ..core.order_check import Claims, OrderCheck, check_order
from ..core.schedule import Schedule
from ..estimate.hardware import cluster_of, read_hardware
from ..estimate.read_model import read_model
from ..frameworks.catalog import FRAMEWORKS
from ..planning.check import Checked
from ..planning.check import check as judge
from ..planning.check_result import ConfigurationCheck, SeveralChecks, checks_of, judgement_of
from ..planning.verdict import room_without_recompute
from .arguments import Duration, Factors, Hop, duration, together
from .arguments import placement as placement_of
from .configuration_argument import Asked, configurations, is_configuration, parted, refuse_strangers
from .pipeline_argument import Sizes, exchange_of, rates_of, schedule_of

BOTH_WAYS = ("async", "rendezvous")  # the most and the least that a send does not wait for: others lie between
# Options of check, of which the nearest is offered for a word that is none.
OPTIONS = (
    *("--framework", "--json", "--ranks", "--microbatches", "--chunks", "--group", "--slices", "--sends"),
    *("--makespan", "--placement", "--local-batch", "--model", "--gpu", "--forward", "--backward", "--input"),
    *("--weight", "--transfer", "--pair", "--stage-scale", "--microbatch-scale", "--rank-scale"),
)


def check(
    *what: str | PathLike[str] | Schedule,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    group: int | None = None,
    slices: int | None = None,
    sends: Sequence[str] = BOTH_WAYS,
    makespan: Duration | None = None,
    placement: str | Sequence[int] | None = None,
    local_batch: int | None = None,
    framework: str | None = None,
    model: str | None = None,
    gpu: str | None = None,
    forward: Duration | None = None,
    backward: Duration | None = None,
    input: Duration | None = None,
    weight: Duration | None = None,
    transfer: Hop | None = None,
    pair: Duration | None = None,
    stage_scale: Factors = (),
    microbatch_scale: Factors = (),
    rank_scale: Factors = (),
) -> OrderCheck | ConfigurationCheck | SeveralChecks:
    """Prove a schedule or a configuration legal, or list every fault with its place and a remedy.

        >>> debubble.check("pretrain.sh").legal
        >>> debubble.check("1f1b", ranks=8, microbatches=32, makespan="71ms").faults

    Args:
        what: a schedule (a name, a torch CSV file, a schedule); or a configuration: files, Megatron's layout string,
            and flags with their values as words of a command line.
        ranks: of the pipeline.
        microbatches: per step.
        chunks: stages on each rank.
        group: micro-batches that pass a chunk before the next has its turn.
        slices: parts into which the sequence of a micro-batch is cut.
        sends: ways of sending to try: ``async``, ``blocking``, ``rendezvous``.
        makespan: that somebody claims of a schedule.
        placement: where your stages live: ``loop``, ``v``, or the rank of each.
        local_batch: samples that your micro-batches are cut from.
        framework: whose configuration it is; None to be recognised.
        model: its name or config.json, for layers and heads.
        gpu: to tell whether there is room without recomputation.
        forward: durations at which a claimed makespan is judged, as in ``show``; so too those below.
        backward: see ``forward``.
        input: see ``forward``.
        weight: see ``forward``.
        transfer: see ``forward``.
        pair: see ``forward``.
        stage_scale: a factor for each stage.
        microbatch_scale: a factor for each micro-batch.
        rank_scale: a factor for each rank.

    Returns:
        The verdict; of each configuration if a file holds several.

    Raises:
        InputError: what cannot be read, or is no option.
    """
    orders = [word for word in what if isinstance(word, Schedule)]
    places, words = parted([fspath(word) for word in what if not isinstance(word, Schedule)])
    spent = {
        "forward": forward,
        "backward": backward,
        "input": input,
        "weight": weight,
        "transfer": transfer,
        "pair": pair,
    }
    scales = {"stage_scale": stage_scale, "microbatch_scale": microbatch_scale, "rank_scale": rank_scale}
    if not orders and (framework or any(is_configuration(place) for place in places)):
        sizes = {"pipeline": ranks, "microbatches": microbatches, "chunks": chunks, "group": group, "slices": slices}
        sizes |= {"local_batch": local_batch}
        said = {name: value for name, value in sizes.items() if value is not None}
        asked = Asked(places=places, words=words, framework=framework, model=model, sizes=said)
        return _configurations(asked, gpu)
    refuse_strangers((*words, *places[1:]), OPTIONS)
    if not orders and not places:
        raise InputError(Fault("schedule", "it is required", "give a file, a name, or --framework and flags"))
    claims, rates = together(lambda: _claims(makespan, placement, local_batch), lambda: rates_of(spent, scales))
    named = orders[0] if orders else places[0]
    return _schedule(named, Sizes(ranks, microbatches, chunks, group, slices), sends, claims, rates)


def _claims(makespan: Duration | None, placement: str | Sequence[int] | None, local_batch: int | None) -> Claims:
    claims = Claims(batch=local_batch)
    if makespan is not None:
        claims = replace(claims, makespan=duration(makespan, "makespan"))
    if placement is not None:
        claims = replace(claims, placement=placement_of(placement))
    return claims


def _schedule(named: str | Schedule, sizes: Sizes, sends: Sequence[str], claims: Claims, rates: Rates) -> OrderCheck:
    unknown = [way for way in sends if way not in SENDS]
    if unknown:
        raise InputError(Fault(f"sends = {unknown[0]}", "it says whom a send keeps", f"give {', '.join(SENDS)}"))
    order = schedule_of(named, sizes, most=MOST_PROVEN_OPS)
    return check_order(order, exchange_of(named, order), [SENDS[way] for way in sends], claims, rates)


def _configurations(asked: Asked, gpu: str | None) -> ConfigurationCheck | SeveralChecks:
    verdicts = []
    for config in configurations(asked):
        checked = judge(FRAMEWORKS[config.framework or ""], config)
        notes = (*config.remarks, *_room(checked, asked.model, gpu))
        verdicts.append(judgement_of(config.name, checked, notes))
    return checks_of(tuple(verdicts))


def _room(checked: Checked, model: str | None, gpu: str | None) -> tuple[str, ...]:
    """Whether a full recomputation is needed at all, if model and device are known."""
    if not checked.legal or checked.config.recompute != "full":
        return ()  # nothing can be saved
    if model is None or gpu is None:
        return (
            "full recomputation runs a forward again in each backward; --model and --gpu tell if there is room without",
        )
    try:
        layout = checked.framework.layout(checked.config)
    except Unknown as error:
        missing = ", ".join(fault.value for fault in error.faults)
        return (f"whether there is room without full recomputation is not known without {missing}",)
    room = room_without_recompute(read_model(model), cluster_of(read_hardware(gpu), layout.gpus), layout)
    return tuple(filter(None, [room]))
