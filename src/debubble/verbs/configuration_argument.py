"""The configuration that a command line means: files, layout strings, flags of a framework or plain ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config.config import OF_THE_MODEL, Config
from ..core.errors import Fault, InputError, nearest
from ..estimate.read_model import read_model
from ..frameworks.catalog import blocks_of, framework_of, only_a_model, recognised, unknown_keys
from ..frameworks.files import SUFFIXES, Block, pairs_of
from ..frameworks.framework import Framework
from ..frameworks.keys import COMMAND_LINE, Said, fields_known, read_config
from ..frameworks.layout_string import looks_like_layout

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
        whose = framework or recognised(pairs, where, " ".join((block.program, *programs)))
        if asked.places and not fields_known(whose, (*alone, *block.pairs)):
            raise unknown_keys(where, whose)
        if asked.places and OF_THE_MODEL.issuperset(fields_known(whose, pairs)):
            raise only_a_model(where)
        # A file says all that it sets; flags alone may be a part, and what they leave out is open.
        config = read_config(whose, pairs, block.name or where, whole=whole)
        if config.layout is not None and config.pipeline is None:
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
