"""``check``: prove a schedule or a configuration legal, or list every fault with its place and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

from ..config.config import OF_THE_MODEL, Config, Unknown
from ..core.costs import Rates
from ..core.engine import SENDS
from ..core.errors import MOST_PROVEN_OPS, Fault, InputError, nearest
from ..core.order_check import Claims, OrderCheck, check_order
from ..core.schedule import Schedule
from ..estimate.hardware import cluster_of, read_hardware
from ..estimate.read_model import read_model
from ..frameworks.catalog import (
    FRAMEWORKS,
    SUFFIXES,
    Block,
    blocks_of,
    framework_of,
    only_a_model,
    recognised,
    signs_of,
    unknown_keys,
)
from ..frameworks.framework import Framework
from ..frameworks.keys import COMMAND_LINE, Said, fields_known, pairs_of, read_config
from ..frameworks.megatron_stages import looks_like_layout
from ..planning.check import Checked, ConfigurationCheck, SeveralChecks, checks_of, judgement_of
from ..planning.check import check as judge
from ..planning.verdict import room_without_recompute
from .arguments import Duration, Factors, Hop, duration, together
from .arguments import placement as placement_of
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
    # Read together, so that one run tells all that is wrong with both.
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


Blocks = Mapping[str, tuple[Block, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was said of a configuration.

    Args:
        places: files and layout strings.
        words: flags that are no options of ours, with their values.
        framework: whose rules; None to be recognised.
        model: name or config.json from which layers and heads are taken.
        sizes: options that schedules have too, by their field.
    """

    places: tuple[str, ...]
    words: tuple[str, ...]
    framework: str | None
    model: str | None
    sizes: Mapping[str, int]


def parted(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files, layout strings and schedule names on one side, flags and overrides with their values on the other."""
    places: list[str] = []
    rest: list[str] = []
    first = True  # words before the first flag are places
    before = ""
    for word in words:
        value = before.startswith("--")  # of that flag, even if a file has its name
        before = word
        place = looks_like_layout(word) or Path(word).is_file() or Path(word.rsplit(":", 1)[0]).is_file()
        first = first and not word.startswith(("-", "+", "~"))  # + and ~ are Hydra's overrides
        override = "=" in word and not place
        if not word.startswith("-") and not override and (first or (place and not value)):
            places.append(word)
        else:
            rest.append(word)
    return tuple(places), tuple(rest)


def is_configuration(place: str) -> bool:
    """Whether a name can only be a configuration: a layout string, or a file that is no order."""
    path = Path(place)
    part = not path.exists() and Path(place.rsplit(":", 1)[0]).is_file()
    return looks_like_layout(place) or path.suffix.lower() in SUFFIXES or part


def configurations(asked: Asked) -> list[Config]:
    """Every configuration that is meant: one, or each of a file that holds several.

    Raises:
        InputError: a file that cannot be read, values that are not what their key takes, or nothing to check.
    """
    framework = framework_of(asked.framework) if asked.framework else None
    read = {place: _blocks(place, framework) for place in asked.places}
    _refuse_a_mixture(asked, read)
    said = pairs_of(asked.words, COMMAND_LINE)
    given = (*_of_sizes(asked), *_of_model(asked.model))
    # Files with one configuration each are parts of one; of a file with several each is one, with those parts.
    alone: list[Said] = []
    programs: list[str] = []
    several: Sequence[Block] = ()
    for place, blocks in read.items():
        if len(blocks) == 1:
            alone += blocks[0].pairs
            programs.append(blocks[0].program)
        elif several:
            rule = "another file holds several configurations too"
            raise InputError(Fault(place, rule, "check one at a time"))
        else:
            several = blocks
    if not (given or said or alone or several):
        raise _nothing(asked)
    where = next(iter(asked.places), "configuration")
    whole = any(not looks_like_layout(place) and all(one.whole for one in read[place]) for place in asked.places)
    found = []
    for block in several or (Block("", ()),):
        pairs = (*given, *alone, *block.pairs, *said)
        signs = (*given, *alone, *signs_of(block, several), *said)
        # With all files together: one alone may not say enough to be recognised.
        whose = framework or recognised(signs, where, " ".join((block.program, *programs)))
        if asked.places and not fields_known(whose, (*alone, *block.pairs)):
            raise unknown_keys(where, whose)
        if asked.places and OF_THE_MODEL.issuperset(fields_known(whose, pairs)):
            raise only_a_model(where)
        # A file says all that it sets; flags alone may be a part, and what they leave out is open.
        config = read_config(whose, pairs, block.name or where, whole=whole)
        if "layout" in config.known() and not config.said("pipeline"):
            rule = "a layout does not say over how many ranks it lies"
            raise InputError(Fault("pipeline", rule, "give it as in --pipeline 8"))
        found.append(config)
    return found


def refuse_strangers(words: Sequence[str], known: Sequence[str]) -> None:
    """For a schedule: options that ``check`` does not have.

    Raises:
        InputError: the first of them, with the nearest that exists.
    """
    for word in words:
        if word.startswith("-"):
            raise nearest(word.partition("=")[0], known, "option")
    if words:
        raise InputError(Fault(words[0], "check takes one schedule at a time", "leave it out"))


def _refuse_a_mixture(asked: Asked, read: Blocks) -> None:
    """Files of one framework are one configuration; those of two are not."""
    whose = {}
    for place, blocks in read.items():
        with suppress(InputError):  # nobody's in particular
            # The first of a file tells whose it is; all configurations of one file are one framework's.
            whose[place] = recognised(blocks[0].pairs, place, blocks[0].program).title
    if asked.framework is None and len(set(whose.values())) > 1:
        named = ", ".join(f"{place} is {title}'s" for place, title in whose.items())
        raise InputError(Fault(named, "they are not one configuration", "check one at a time, or give --framework"))


def _nothing(asked: Asked) -> InputError:
    """Nothing was said that could be checked."""
    if asked.places:
        return InputError(Fault(asked.places[0], "no flag and no key was found in it", "give the configuration itself"))
    remedy = "give a file, flags as in --layers 64 --pipeline 8, or a layout"
    return InputError(Fault("configuration", "there is nothing to check", remedy))


def _blocks(place: str, framework: Framework | None) -> tuple[Block, ...]:
    if looks_like_layout(place):
        return (Block("", (Said("layout", place, COMMAND_LINE),)),)
    return blocks_of(Path(place), framework)


def _of_sizes(asked: Asked) -> tuple[Said, ...]:
    """Options that schedules have too, in the same words."""
    if "slices" in asked.sizes:
        rule = "no framework cuts sequences for a pipeline"
        raise InputError(Fault(f"slices = {asked.sizes['slices']}", rule, "leave it out"))
    return tuple(Said(name, value, f"--{name}") for name, value in asked.sizes.items())


def _of_model(name: str | None) -> tuple[Said, ...]:
    """Layers and widths of a model, as its user would say them."""
    if name is None:
        return ()
    model = read_model(name)
    names = ("layers", "heads", "kv_heads", "hidden", "ffn", "vocab")
    sizes: dict[str, int] = {name: getattr(model, name) for name in names}
    if model.experts:
        sizes["experts"] = model.experts.count
    if model.next_heads:
        sizes["next_layers"] = model.next_heads
    return tuple(Said(name, value, "--model") for name, value in sizes.items())
