"""The configuration half of ``check``: files, flags and layout strings of frameworks, held against their rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.config import ask
from ..core.errors import Fault, InputError, nearest
from ..verbs.schedule_argument import Sizes
from .blocks import wrapped
from .console import look, say

if TYPE_CHECKING:
    from ..config.config import Config, Open
    from ..frameworks.files import Block
    from ..frameworks.framework import Framework
    from ..frameworks.keys import Said
    from ..frameworks.layout_string import Stages
    from ..planning.check import Broken, Checked, Facts


@dataclass(frozen=True, slots=True)
class Asked:
    """What stands on the command line of ``check`` for a configuration.

    Args:
        places: files and layout strings.
        words: flags that are no options of ours, with their values.
        framework: whose rules; None to be recognised.
        model: name or config.json from which layers and heads are taken.
        gpu: whose memory is to hold it.
        sizes: options that schedules have too.
        batch: samples that are cut into micro-batches.
    """

    places: tuple[str, ...]
    words: tuple[str, ...]
    framework: str | None = None
    model: str | None = None
    gpu: str | None = None
    sizes: Sizes = field(default_factory=Sizes)
    batch: int | None = None


def parted(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files, layout strings and schedule names on one side, flags and overrides with their values on the other."""
    from ..frameworks.layout_string import looks_like_layout

    places: list[str] = []
    rest: list[str] = []
    first = True  # words in front of the first flag are places
    for n, word in enumerate(words):
        value = n > 0 and words[n - 1].startswith("--")
        place = looks_like_layout(word) or Path(word).is_file() or Path(word.rsplit(":", 1)[0]).is_file()
        first = first and not word.startswith(("-", "+", "~"))
        override = "=" in word and not place
        if not word.startswith("-") and not override and (first or (place and not value)):
            places.append(word)
        else:
            rest.append(word)
    return tuple(places), tuple(rest)


def is_configuration(place: str) -> bool:
    """Whether a name on the command line can only be a configuration: a layout string, or a file that is no order."""
    from ..frameworks.files import SUFFIXES
    from ..frameworks.layout_string import looks_like_layout

    path = Path(place)
    part = not path.exists() and Path(place.rsplit(":", 1)[0]).is_file()
    return looks_like_layout(place) or path.suffix.lower() in SUFFIXES or part


def check_configuration(asked: Asked, *, as_json: bool) -> int:
    """Print what a framework would say; the exit status: 1 where a rule is broken, 2 where something is open.

    Raises:
        InputError: a file that cannot be read, values that are not what their key takes.
    """
    from ..frameworks.catalog import FRAMEWORKS
    from ..planning.check import check

    verdicts = []
    for config in _configurations(asked):
        checked = check(FRAMEWORKS[config.framework or ""], config)
        verdicts.append((config.name, checked, (*config.remarks, *_room(asked, checked))))
    if as_json:
        from .report import emit

        emit(document(verdicts))
    else:
        say("\n".join(text(name if len(verdicts) > 1 else "", one, notes) for name, one, notes in verdicts))
    legal = [one.legal for _, one, _ in verdicts]
    return 1 if False in legal else 2 if None in legal else 0


def _configurations(asked: Asked) -> list[Config]:
    """Every configuration that the command line means: one, or each of a file that holds several."""
    from ..frameworks.catalog import framework_of, recognised, unknown_keys
    from ..frameworks.files import Block, pairs_of
    from ..frameworks.keys import fields_known, read_config

    framework = framework_of(asked.framework) if asked.framework else None
    read = {place: _blocks(place, framework) for place in asked.places}
    _refuse_a_mixture(asked, read)
    said = tuple(pairs_of(asked.words, "command line"))
    given = (*_of_sizes(asked), *_of_model(asked))
    _refuse_nothing(asked, (*given, *said, *(pair for blocks in read.values() for one in blocks for pair in one.pairs)))
    several = next((blocks for blocks in read.values() if len(blocks) > 1), (Block("", ()),))
    alone = [pair for blocks in read.values() if len(blocks) == 1 for pair in blocks[0].pairs]
    found = []
    where = asked.places[0] if asked.places else "configuration"
    for block in several:
        pairs = (*given, *alone, *block.pairs, *said)
        whose = framework or recognised(pairs, where)
        if asked.places and not fields_known(whose, (*alone, *block.pairs)):
            raise unknown_keys(where, whose)
        config = read_config(whose, pairs, block.name or where)
        if config.layout is not None and config.pipeline is None:
            fault = Fault("pipeline", "a layout does not say over how many ranks it lies", "give it as in --pipeline 8")
            raise InputError(fault)
        found.append(config)
    return found


def _refuse_a_mixture(asked: Asked, read: dict[str, tuple[Block, ...]]) -> None:
    """Files of one framework are one configuration; those of two are not."""
    from ..frameworks.catalog import recognised

    whose = {}
    for place, blocks in read.items():
        with suppress(InputError):  # nobody's in particular
            whose[place] = recognised(blocks[0].pairs, place).title
    if asked.framework is None and len(set(whose.values())) > 1:
        named = ", ".join(f"{place} is {title}'s" for place, title in whose.items())
        raise InputError(Fault(named, "they are not one configuration", "check one at a time, or give --framework"))


def _refuse_nothing(asked: Asked, pairs: Sequence[Said]) -> None:
    if not pairs:
        rule = "there is nothing to check"
        if asked.places:
            raise InputError(
                Fault(asked.places[0], "no flag and no key was found in it", "give the configuration itself")
            )
        raise InputError(Fault("configuration", rule, "give a file, flags as in --layers 64 --pipeline 8, or a layout"))


def _blocks(place: str, framework: Framework | None) -> tuple[Block, ...]:
    from ..frameworks.catalog import blocks_of
    from ..frameworks.files import Block
    from ..frameworks.keys import Said
    from ..frameworks.layout_string import looks_like_layout

    if looks_like_layout(place):
        return (Block("", (Said("layout", place, "command line"),)),)
    return blocks_of(Path(place), framework)


def _of_sizes(asked: Asked) -> tuple[Said, ...]:
    """Options that schedules have too, in the same words."""
    from ..frameworks.keys import Said

    sizes = asked.sizes
    said = {
        "pipeline": sizes.ranks,
        "microbatches": sizes.microbatches,
        "chunks": sizes.chunks,
        "group": sizes.group,
        "local_batch": asked.batch,
    }
    if sizes.slices is not None:
        raise InputError(
            Fault(f"slices = {sizes.slices}", "no framework cuts sequences for a pipeline", "leave it out")
        )
    return tuple(Said(field, value, f"--{field}") for field, value in said.items() if value is not None)


def _of_model(asked: Asked) -> tuple[Said, ...]:
    if asked.model is None:
        return ()
    from ..estimate.read_model import read_model
    from ..frameworks.keys import Said

    model = read_model(asked.model)
    names = ("layers", "heads", "kv_heads", "hidden", "ffn", "vocab")
    sizes: dict[str, int] = {name: getattr(model, name) for name in names}
    if model.experts:
        sizes["experts"] = model.experts.count
    if model.next_heads:
        sizes["next_layers"] = model.next_heads
    return tuple(Said(name, value, "--model") for name, value in sizes.items())


def _room(asked: Asked, checked: Checked) -> tuple[str, ...]:
    """Whether a full recomputation is needed at all, where model and device are known."""
    if not checked.legal or checked.config.recompute != "full":
        return ()
    if asked.model is None or asked.gpu is None:
        return (
            "full recomputation runs a forward again in each backward; --model and --gpu tell if there is room without",
        )
    from ..config.config import Unknown
    from ..estimate.hardware import cluster_of, read_hardware
    from ..estimate.read_model import read_model
    from ..planning.verdict import room_without_recompute

    try:
        layout = checked.framework.layout(checked.config)
    except Unknown as error:
        missing = ", ".join(fault.value for fault in error.faults)
        return (f"whether there is room without full recomputation is not known without {missing}",)
    device = read_hardware(asked.gpu)
    room = room_without_recompute(read_model(asked.model), cluster_of(device, layout.gpus), layout)
    return (room,) if room else ()


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


Verdict = tuple[str, "Checked", tuple[str, ...]]


def document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What ``--json`` prints; with several configurations, a verdict of each."""
    legal = [checked.legal for _, checked, _ in verdicts]
    if len(verdicts) == 1:
        return _verdict(verdicts[0][1], verdicts[0][2])
    return {
        "legal": False if False in legal else None if None in legal else True,
        "verdicts": [{"name": name, **_verdict(checked, notes)} for name, checked, notes in verdicts],
    }


def _verdict(checked: Checked, notes: Sequence[str]) -> dict[str, Any]:
    facts = {f.name: getattr(checked.facts, f.name) for f in fields(checked.facts) if f.name != "layout"}
    laid = checked.facts.layout
    return {
        "legal": checked.legal,
        "faults": [_fault(checked.framework, fault) for fault in checked.faults],
        "open": [_open(checked.framework, one) for one in checked.open],
        "warnings": [*checked.warnings, *notes],
        "framework": checked.framework.name,
        "backend": checked.framework.name,  # its former name
        "rules_of": checked.framework.version,
        "version": checked.framework.version,  # its former name
        **{name: value for name, value in facts.items() if value is not None},
        **({"layout": _laid(laid)} if laid else {}),
        "evidence": "exact",
    }


def _laid(laid: Stages) -> dict[str, Any]:
    return {
        "chunks": len(laid.stages),
        "vpp": laid.chunks,
        "layers": laid.count("t"),
        "mtp": laid.count("m"),
        "loss_slots": laid.count("L"),
        "per_rank_layers": laid.per_rank,
    }


def _open(framework: Framework, one: Open) -> dict[str, str]:
    return {"key": framework.key(one.field), "value": one.text, "place": one.place, "remedy": ask(one.field)}


def _fault(framework: Framework, fault: Broken) -> dict[str, Any]:
    others = [
        {"key": framework.key(one.field), "value": one.value, "idle_share": one.idle_share}
        for one in fault.alternatives
    ]
    return {
        "key": fault.key,
        "value": fault.value,
        "rule": fault.rule,
        "remedy": fault.remedy,
        "alternatives": others,
        "place": fault.place,
        "source": fault.source,
    }


def text(name: str, checked: Checked, notes: Sequence[str]) -> str:
    """What people read."""
    many = len(checked.faults)
    verdict = "legal" if not many else "1 fault" if many == 1 else f"{many} faults"
    if checked.legal is None:
        verdict = "cannot say"
    title = f"{checked.framework.title} (rules of {checked.framework.version})"
    lines = [f"{name}: {title}: {verdict}" if name else f"{title}: {verdict}"]
    for fault in checked.faults:
        where = f" ({fault.place})" if fault.place and fault.place != "command line" else ""
        lines.append(f"  {fault.key} = {fault.value}{where}: {fault.rule}")
        lines += [f"      {way}" for way in fault.remedy.split("; or ") if way]
    for one in checked.open:
        where = f" ({one.place})" if one.place else ""
        lines.append(f"  {checked.framework.key(one.field)} is open, {one.text}{where}: {ask(one.field)}")
    told = [line for line in _facts(checked.facts) if line]
    told += [f"warning: {sentence}" for sentence in (*checked.warnings, *notes)]
    wide = [part for line in told for part in wrapped(line, look().width, "  ", "    ")]
    return "\n".join([*lines, *wide])  # a fault stays on its line, to be searched for


def _facts(facts: Facts) -> list[str]:
    names = ("pipeline", "chunks", "data", "microbatches")
    lines = [", ".join(f"{name} {value}" for name in names if (value := getattr(facts, name)) is not None)]
    if facts.idle_share is not None:
        evidence = f"with even stages ({facts.evidence})"
        lines[0] += f": idle share {100 * facts.idle_share:.1f} % of {facts.schedule} {evidence}"
    laid = facts.layout
    if laid:
        lines.append(f"layout: {laid.count('t')} layers in {len(laid.stages)} chunks, {laid.chunks} a rank")
        lines.append(f"layers of each rank: {' '.join(map(str, laid.per_rank))}")
    elif facts.split and len(set(facts.split)) > 1:
        lines.append(f"layers of each stage: {' '.join(map(str, facts.split))}")
    return lines
