"""The configuration half of ``check``: files, flags and layout strings of frameworks, held against their rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError, nearest
from ..verbs.schedule_argument import Sizes
from .blocks import wrapped
from .console import look, say

if TYPE_CHECKING:
    from ..frameworks.flags import Pairs
    from ..frameworks.setup import Backend, Setup
    from ..planning.check import Broken, Checked


@dataclass(frozen=True, slots=True)
class Asked:
    """What stands on the command line of ``check`` for a configuration.

    Args:
        places: files and layout strings.
        words: flags that are no options of ours, with their values.
        backend: whose rules; None to be recognised.
        model: name or config.json from which layers and heads are taken.
        gpu: whose memory is to hold it.
        sizes: options that schedules have too.
        batch: samples that are cut into micro-batches.
    """

    places: tuple[str, ...]
    words: tuple[str, ...]
    backend: str | None = None
    model: str | None = None
    gpu: str | None = None
    sizes: Sizes = field(default_factory=Sizes)
    batch: int | None = None


def parted(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files, layout strings and schedule names on one side, flags with their values on the other."""
    from ..frameworks.layout_string import looks_like_layout

    places, rest, bare = [], [], True
    for n, word in enumerate(words):
        follows = n > 0 and words[n - 1].startswith("--")
        alone = bare or (not follows and (looks_like_layout(word) or Path(word).is_file()))
        bare = bare and not word.startswith("-")
        if alone and not word.startswith("-"):
            places.append(word)
        else:
            rest.append(word)
    return tuple(places), tuple(rest)


def is_configuration(place: str) -> bool:
    """Whether a name on the command line can only be a configuration: a layout string, or a file that is no order."""
    from ..frameworks.files import SUFFIXES
    from ..frameworks.layout_string import looks_like_layout

    return looks_like_layout(place) or Path(place).suffix.lower() in SUFFIXES


def check_configuration(asked: Asked, *, as_json: bool) -> int:
    """Print what a framework would say; the exit status.

    Raises:
        InputError: a file that cannot be read, values that are not what their key takes.
    """
    from ..planning.check import check

    backend, setup, notes = _read(asked)
    checked = check(backend, setup)
    notes += _room(asked, checked)
    if as_json:
        from .report import emit

        emit(document(checked, notes))
    else:
        say(text(checked, notes))
    return 0 if checked.legal else 1


def _read(asked: Asked) -> tuple[Backend, Setup, tuple[str, ...]]:
    from ..frameworks.backends import backend_of, recognised
    from ..frameworks.flags import pairs_of
    from ..frameworks.read_keys import read_setup

    read = {place: _pairs(place) for place in asked.places}
    _refuse_a_mixture(asked, read)
    pairs = [pair for each in read.values() for pair in each] + pairs_of(asked.words)
    _refuse_nothing(asked, pairs)
    where = asked.places[0] if asked.places else "configuration"
    backend = backend_of(asked.backend) if asked.backend else recognised(pairs, where)
    told = read_setup(backend, _of_sizes(asked) + _of_model(asked) + pairs)
    if told.setup.layout is not None and told.setup.pipeline is None:
        fault = Fault("pipeline", "a layout does not say over how many ranks it lies", "give it as in --pipeline 8")
        raise InputError(fault)
    return backend, told.setup, told.notes


def _refuse_a_mixture(asked: Asked, read: dict[str, Pairs]) -> None:
    """Files of one framework are one configuration; those of two are not."""
    from ..frameworks.backends import recognised

    whose = {}
    for place, pairs in read.items():
        with suppress(InputError):  # nobody's in particular
            whose[place] = recognised(pairs, place).title
    if asked.backend is None and len(set(whose.values())) > 1:
        named = ", ".join(f"{place} is {title}'s" for place, title in whose.items())
        raise InputError(Fault(named, "they are not one configuration", "check one at a time, or give --backend"))


def _refuse_nothing(asked: Asked, pairs: Pairs) -> None:
    if not pairs and asked.sizes == Sizes() and asked.batch is None and asked.model is None:
        rule = "there is nothing to check"
        if asked.places:
            raise InputError(
                Fault(asked.places[0], "no flag and no key was found in it", "give the configuration itself")
            )
        raise InputError(Fault("configuration", rule, "give a file, flags as in --layers 64 --pipeline 8, or a layout"))


def _pairs(place: str) -> Pairs:
    from ..frameworks.files import read_pairs
    from ..frameworks.layout_string import looks_like_layout

    if looks_like_layout(place):
        return [("layout", place)]
    return read_pairs(Path(place))


def _of_sizes(asked: Asked) -> Pairs:
    """Options that schedules have too, in the same words."""
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
    return [(field, value) for field, value in said.items() if value is not None]


def _of_model(asked: Asked) -> Pairs:
    if asked.model is None:
        return []
    from ..estimate.read_model import read_model

    model = read_model(asked.model)
    names = ("layers", "heads", "kv_heads", "hidden", "ffn", "vocab")
    sizes: dict[str, int] = {name: getattr(model, name) for name in names}
    if model.experts:
        sizes["experts"] = model.experts.count
    if model.next_heads:
        sizes["next_layers"] = model.next_heads
    return list(sizes.items())


def _room(asked: Asked, checked: Checked) -> tuple[str, ...]:
    """Whether a full recomputation is needed at all, where model and device are known."""
    if checked.setup.recompute != "full" or not checked.legal:
        return ()
    if asked.model is None or asked.gpu is None:
        return (
            "full recomputation runs a forward again in each backward; --model and --gpu tell if there is room without",
        )
    from ..estimate.hardware import cluster_of, read_hardware
    from ..estimate.read_model import read_model
    from ..frameworks.to_layout import laid_out
    from ..planning.verdict import room_without_recompute

    layout = laid_out(checked.backend, checked.setup)
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


def document(checked: Checked, notes: Sequence[str]) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "legal": checked.legal,
        "faults": [_fault(checked.backend, fault) for fault in checked.faults],
        "warnings": [*checked.warnings, *notes],
        "backend": checked.backend.name,
        "version": checked.backend.version,
        **checked.facts,
        "evidence": "exact",
    }


def _fault(backend: Backend, fault: Broken) -> dict[str, Any]:
    others = [
        {"key": backend.key(one.field), "value": one.value, "idle_share": one.idle_share} for one in fault.alternatives
    ]
    return {
        "key": fault.key,
        "value": fault.value,
        "rule": fault.rule,
        "remedy": fault.remedy,
        "alternatives": others,
    }


def text(checked: Checked, notes: Sequence[str]) -> str:
    """What people read."""
    many = len(checked.faults)
    verdict = "legal" if not many else "1 fault" if many == 1 else f"{many} faults"
    lines = [f"{checked.backend.title} (rules of {checked.backend.version}): {verdict}"]
    for fault in checked.faults:
        lines.append(f"  {fault.key} = {fault.value}: {fault.rule}")
        lines += [f"      {way}" for way in fault.remedy.split("; or ") if way]
    told = [line for line in _facts(checked.facts) if line]
    told += [f"warning: {sentence}" for sentence in (*checked.warnings, *notes)]
    wide = [part for line in told for part in wrapped(line, look().width, "  ", "    ")]
    return "\n".join([*lines, *wide])  # a fault stays on its line, to be searched for


def _facts(facts: dict[str, Any]) -> list[str]:
    names = ("pipeline", "chunks", "data", "microbatches")
    lines = [", ".join(f"{name} {facts[name]}" for name in names if name in facts)]
    if "idle_share" in facts:
        evidence = f"with even stages ({facts['evidence']})"
        lines[0] += f": idle share {100 * facts['idle_share']:.1f} % of {facts['schedule']} {evidence}"
    laid = facts.get("layout")
    if laid:
        lines.append(f"layout: {laid['layers']} layers in {laid['chunks']} chunks, {laid['vpp']} a rank")
        lines.append(f"layers of each rank: {' '.join(map(str, laid['per_rank_layers']))}")
    elif "split" in facts and len(set(facts["split"])) > 1:
        lines.append(f"layers of each stage: {' '.join(map(str, facts['split']))}")
    return lines
