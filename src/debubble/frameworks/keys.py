"""Keys: what flags and overrides say as pairs of key and value, and pairs as a configuration in a framework's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from ..config.config import NUMBERS, SWITCHES, YES, Config, Open, Value
from ..core.errors import Fault, InputError
from .framework import Framework


@dataclass(frozen=True, slots=True)
class Said:
    """One key with its value.

    Args:
        key: as it stands there, tables joined by dots: ``--num-layers``, ``parallelism.pp``.
        value: as it stands there; ``Unresolved`` where it names what is set elsewhere.
        place: where, as in ``train.sh:12``.
    """

    key: str
    value: object
    place: str = ""

    @property
    def typed(self) -> bool:
        """Whether somebody said it to us, and no file."""
        return self.place in ("", COMMAND_LINE) or self.place.startswith("--")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that is set outside of what was read, as it stands there."""

    text: str


Pairs = Sequence[Said]
REST = "-1, the devices that the others leave"  # in place of a degree
DEGREES = ("tensor", "pipeline", "context", "expert", "expert_tensor", "chunks")
COMMAND_LINE = "command line"  # the place of what nobody's file says

WORDS = (
    *("split", "layout", "pattern", "rampup", "schedule", "recompute", "recompute_method", "recompute_modules"),
    *("precision", "gradient_precision", "optimizer_precision", "engine"),
)
AMOUNTS = ("gradient_copies", "bucket")
# Our own words for fields, and those that people use for every framework.
OURS = {name: name for name in (*NUMBERS, *SWITCHES, *WORDS, *AMOUNTS)}
OURS |= {"ranks": "pipeline", "stage_layers": "split", "batch": "local_batch", "num_layers": "layers"}
OURS |= {"model_layers": "layers", "vpp": "chunks", "pp": "pipeline", "tp": "tensor", "dp": "data", "cp": "context"}
OURS |= {"ep": "expert", "etp": "expert_tensor", "mbs": "micro_batch", "gbs": "global_batch"}

NODES = (
    *("nnodes", "num_nodes", "trainer.num_nodes", "nodes", "n_nodes", "num_machines"),
    *("trainer.nnodes", "actor_num_nodes"),  # of trainers that share a job with inference
)
PER_NODE = (
    *("nproc_per_node", "gpus_per_node", "trainer.devices", "num_gpus_per_node", "ntasks_per_node"),
    *("n_gpus_per_node", "num_gpus", "trainer.n_gpus_per_node", "actor_num_gpus_per_node"),
)
# What says that a value is left open: a variable of a shell, an interpolation, a template, a word that must be set.
_OPEN = re.compile(r"[$`]|\{\{.*\}\}|^\?\?\?$|^<[A-Za-z_ ]+>$")
_DUMP = re.compile(r"^\s*(?:\[.*?\]:?\s*)?(\w+) \.{3,} (.+?)\s*$", re.MULTILINE)
_OVERRIDE = re.compile(r"([+~]{0,2}[A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}
_LETTERS = {"embedding": "E", "decoder": "t", "loss": "L", "mtp": "m"}
_CLOSE = 0.88  # a misspelt key, not another one


def dump_pairs(text: str, file: str = "") -> tuple[Said, ...]:
    """The arguments that Megatron-LM prints into its log before it starts, ``name ..... value``."""
    words: dict[str, object] = {"True": True, "False": False, "None": None}
    return tuple(Said("--" + k.replace("_", "-"), words.get(v, v), file) for k, v in _DUMP.findall(text))


def pairs_of(words: Sequence[str], place: str = "") -> tuple[Said, ...]:
    """``--key value``, ``--key=value``, ``--key a b c``, ``--switch`` (True), ``key=value``, ``++key=value``, ``~key``.

    ``--`` ends the values of a flag, as do a list that was not filled in, a flag of one dash, an override, and the
    program that is launched. Other words are left out.
    """
    found: list[Said] = []
    key, values = "", list[str]()

    def close() -> None:
        if key:
            found.append(Said(key, " ".join(values) if values else True, place))

    for word in words:
        override = _override(word, place)
        if override is not None:
            close()
            key, values = "", []
            found.append(override)
            continue
        ends = word == "--" or word.endswith(("[@]}", "[*]}")) or _starts_another(word, values)
        if not ends and not re.match(r"--[A-Za-z]", word):
            values.append(word)
            continue
        close()
        if ends:
            key, values = "", []
            continue
        key, equals, value = word.partition("=")
        values = [value] if equals else []
    close()
    return tuple(found)


def _override(word: str, place: str) -> Said | None:
    """Hydra's ``key=value``, ``+key=value``, ``++key=value`` and ``~key``; None for any other word."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or match[1].isupper() or "/" in match[1].split("@")[0]:
        return None
    if match[1].startswith("~"):
        return Said(match[1].lstrip("~"), None, place)
    if match[2] is None:
        return None
    return Said(match[1].lstrip("+"), _listed(match[2]), place)


def _listed(text: str) -> object:
    """The value of an override: a list in brackets, a number, a switch or a word."""
    if text.startswith("["):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(text)
    return typed(text.strip("'\"")) if text else True


def _starts_another(word: str, values: Sequence[str]) -> bool:
    """Whether a word cannot be one more value: ``--nnodes 16 train.py``, ``--nproc-per-node 8 -m train``."""
    return bool(re.match(r"-[A-Za-z]", word)) or (bool(values) and word.endswith(".py"))


def typed(text: str) -> object:
    """A word as YAML would read it: a number, a switch, or itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def read_config(framework: Framework, pairs: Pairs, name: str = "job", *, whole: bool = False) -> Config:
    """What pairs say to a framework; later ones win, and keys that no field stands for are its own words.

    Args:
        framework: whose words they are.
        pairs: keys with their values, in order.
        name: what reports call the configuration.
        whole: whether they are a whole launch, so that what is absent is what the framework takes by itself.

    Raises:
        InputError: values that are not what their key takes; all of them.
    """
    known = _known(framework)
    own_keys = {*framework.keys.values(), *framework.aliases}
    values: dict[str, Value] = {}
    own: dict[str, Value] = {}
    opened: dict[str, Open] = {}
    places: dict[str, str] = {}
    faults: list[Fault] = []
    others = [said for said in pairs if not _of_the_training(framework, said.key)]
    pairs = [said for said in pairs if _of_the_training(framework, said.key)]
    for said in pairs:
        field = _field(known, said.key)
        word, negated = _own_word(framework, said)
        if field is None and word in Config.__dataclass_fields__:
            continue  # a word of the framework under the name of a field of ours that it does not mean
        target, key = values, field or ""
        if field is None:
            target, key = own, word
        places[key] = said.place
        if text := open_text(said.value):
            target.pop(key, None)
            opened[key] = Open(key, text, said.place)
            continue
        opened.pop(key, None)
        if field in framework.rest and str(said.value) == "-1":
            target.pop(key, None)
            opened[key] = Open(key, REST, said.place, rests_on=(Open("gpus", f"those of {said.key}", said.place),))
            continue
        try:
            value = _plain_value(said, negated) if field is None else _read(field, said.key, said.value, framework.auto)
        except InputError as error:
            # A file may have a key of its own under one of our short words, such as context.
            if not said.typed and said.key in OURS and said.key not in own_keys:
                continue
            faults += error.faults
            continue
        target[key] = value
    if faults:
        raise InputError(*faults)
    config = Config(
        name=name,
        framework=framework.name,
        whole=whole,
        own=own,
        open=tuple(opened.values()),
        places=places,
        remarks=(*_misspelt(known, pairs), *_not_judged(known, others)),
    )
    return _with_devices(config.changed(**{key: value for key, value in values.items() if value is not None}), pairs)


def keys_known(framework: Framework, pairs: Pairs) -> int:
    """How many keys are this framework's own: a sign of whose configuration it is.

    A program around another framework shares that one's keys, and small tables have keys that many have, so that for
    these only marks tell.
    """
    if not framework.offered and not marks_known(framework, pairs):
        return 0
    own = {_plain(key) for key in (*framework.keys.values(), *framework.aliases, *framework.marks)} - OURS.keys()
    return sum(any(name in own for name in _suffixes(said.key)) for said in pairs)


def marks_known(framework: Framework, pairs: Pairs) -> int:
    """How many keys are nobody else's."""
    marks = {_plain(mark) for mark in framework.marks}
    return sum(any(name in marks for name in _suffixes(said.key)) for said in pairs)


def fields_known(framework: Framework, pairs: Pairs) -> frozenset[str]:
    """The fields that these pairs say."""
    known = _known(framework)
    return frozenset(field for said in pairs if (field := _field(known, said.key)) is not None)


def open_text(value: object) -> str:
    """What stands in place of a value that is left open; empty where there is a value."""
    if isinstance(value, Unresolved):
        return value.text
    if isinstance(value, str) and _OPEN.search(value):
        return value
    return ""


def _known(framework: Framework) -> dict[str, str]:
    own = {_plain(key): field for field, key in framework.keys.items()}
    words = dict(OURS)
    if "split" not in framework.keys:
        words.pop("split", None)  # Megatron-LM's --split shares out data
    ends = {key.rsplit(".", 1)[-1]: field for key, field in own.items() if "_" in key.rsplit(".", 1)[-1]}
    aliases = {_plain(key): field for key, field in framework.aliases.items() if field in Config.__dataclass_fields__}
    return ends | words | aliases | own


def _plain(key: str) -> str:
    return key.lstrip("-+~").replace("-", "_").lower()


@lru_cache(4096)  # a file of thirteen recipes says the same keys thirteen times, and each framework is asked about each
def _suffixes(key: str) -> tuple[str, ...]:
    """The path of a key and its ends, longest first: a.b.c, b.c, c."""
    parts = _plain(key).split(".")
    return tuple(".".join(parts[n:]) for n in range(len(parts)))


def _field(known: Mapping[str, str], key: str) -> str | None:
    for name in _suffixes(key):
        if name in known and ("." not in key or name not in OURS or known[name] != OURS[name]):
            return known[name]
        if name in known and "_" in name:  # our own words count at the top alone, but for those that frameworks share
            return known[name]
    return None


def _own_word(framework: Framework, said: Said) -> tuple[str, bool]:
    """The name of a word that no field stands for, and whether it says the contrary: ``--no-x`` switches x off."""
    suffixes = _suffixes(said.key)
    name = next((framework.aliases[path] for path in suffixes if path in framework.aliases), suffixes[-1])
    if name.startswith("!"):
        return name[1:], True
    if name.startswith("no_") and said.value is True:
        name = name.removeprefix("no_")
        return framework.aliases.get(name, name), True
    return name, False


def _plain_value(said: Said, negated: bool) -> Value:
    """The value of a framework's own word, as far as it is a number, a word or a list of them."""
    if negated:
        return str(said.value).lower() not in YES
    if said.value in ("None", "null"):
        return None
    if isinstance(said.value, bool | int | float | str):
        return said.value
    if isinstance(said.value, list | tuple):
        return tuple(part if isinstance(part, bool | int | float | str) else str(part) for part in said.value)
    return None


def _read(field: str, key: str, value: object, auto: Container[str]) -> Value:
    """The value of a field; None where it leaves it to the framework."""
    if value in (-1, "-1") and field in auto:
        return None
    if value is None or value in ("auto", "None", "null", ""):
        return None
    if field in SWITCHES:
        return _switch(key, value)
    if field in NUMBERS:
        return _number(field, key, value)
    if field in ("split", "rampup"):
        return _numbers(key, value)
    if field == "recompute":
        return _recompute(value)
    if field == "recompute_modules":
        return tuple(map(str, _parts_of(value)))
    if field in AMOUNTS:
        return _amount(key, value)
    if field == "layout" and isinstance(value, list):
        return _letters(key, value)
    if isinstance(value, list | bool):
        raise InputError(Fault(f"{key} = {value!r}"[:80], "it is a word", f"write it as in {key} 1f1b"))
    return str(value)


def _switch(key: str, value: object) -> bool:
    """A switch alone is on; one with a value is what its value says."""
    text = str(value).strip().lower()
    if text not in (*YES, "false", "0", "off", "no"):
        raise InputError(Fault(f"{key} = {text[:60]}", "it is on or off", f"write it as in {key} true"))
    return text in YES


def _recompute(value: object) -> str:
    """What is recomputed: a word, a switch, or DeepSpeed's interval of layers, of which 0 is none."""
    if isinstance(value, int):
        return "full" if value else "none"
    words = {"true": "full", "false": "none", "null": "none", "no": "none"}
    return words.get(str(value).lower(), str(value))


def _number(field: str, key: str, value: object) -> int:
    if isinstance(value, bool) and field in ("embedding_layers", "loss_layers"):
        return int(value)
    text = str(value).strip().rstrip(",)")
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,15}(\.0)?", text):
        raise InputError(Fault(f"{key} = {text[:60]}", "it is a whole number", f"write it as in {key} 4"))
    return int(text.removesuffix(".0"))


def _amount(key: str, value: object) -> float:
    """A number that need not be whole, as 2.5e7."""
    try:
        return float(str(value))
    except ValueError:
        raise InputError(Fault(f"{key} = {str(value)[:60]}", "it is a number", f"write it as in {key} 4")) from None


def _parts_of(value: object) -> list[object]:
    """The parts of a list, or of a text that writes one: ``8,8,7,7``, ``[8, 8]``."""
    if isinstance(value, list):
        return value
    return list(re.split(r"[,\s]+", str(value).strip("[]() ")))


def _layers_named(stage: Iterable[object]) -> int:
    """How many of a stage's modules are layers, by names as torchtitan has them: ``layers.7``."""
    return sum(1 for name in stage if re.search(r"\blayers\.\d+", str(name)))


def _numbers(key: str, value: object) -> tuple[int, ...]:
    """A number for each stage, said as numbers or, in ``module_fqns_per_model_part``, by the names of its modules."""
    if isinstance(value, list) and value and all(isinstance(stage, list) for stage in value):
        return tuple(map(_layers_named, value))
    parts = _parts_of(value)
    if not all(re.fullmatch(r"\d{1,15}", str(part)) for part in parts):
        raise InputError(Fault(f"{key} = {value}"[:80], "it is a list of whole numbers", "write it as in 8,8,7,7"))
    return tuple(int(str(part)) for part in parts)


def _letters(key: str, rows: Iterable[object]) -> str:
    """A layout given as a list of stages, as Megatron-Core takes it too."""
    stages = []
    for row in rows:
        held = row if isinstance(row, list) else [row]
        names = [str(name).lower().rsplit(".", 1)[-1] for name in held]  # LayerType.decoder, or the word alone
        if any(name not in _LETTERS for name in names):
            rule = "a stage is a list of embedding, decoder, mtp and loss"
            raise InputError(Fault(f"{key}: {row}"[:80], rule, "correct the stage"))
        stages.append("".join(_LETTERS[name] for name in names))
    return "|".join(stages)


def _of_the_training(framework: Framework, key: str) -> bool:
    """Whether a key speaks of the model that is trained, and of no other of the same job."""
    return not framework.inside or "." not in key or key.lstrip("+").startswith(framework.inside)


def _not_judged(known: Mapping[str, str], others: Pairs) -> Iterable[str]:
    """Degrees of further models of a job, as verl's critic and reference have; those of inference say no training."""
    for said in others:
        if _field(known, said.key) in DEGREES and ".rollout." not in said.key:
            yield f"{said.key} = {open_text(said.value) or said.value} is of another model of the job: it is not judged"


def _misspelt(known: Mapping[str, str], pairs: Pairs) -> Iterable[str]:
    """Keys that no rule reads but look like one that is read."""
    long = tuple(name for name in known if len(name) > 8)
    words = {word for name in known for word in name.split("_")}
    seen: dict[str, None] = {}
    for said in pairs:
        name = _plain(said.key).rsplit(".", 1)[-1]
        if _field(known, said.key) is None and name not in seen:
            seen[name] = None
            close = _closest(name, long)
            if close and _one_typo(name, close, words):
                yield f"{said.key} is not read by any rule: did you mean {close}?"


@lru_cache(4096)
def _closest(name: str, known: tuple[str, ...]) -> str:
    """The known key that looks most like a name; empty if none does."""
    return next(iter(get_close_matches(name, known, n=1, cutoff=_CLOSE)), "")


def _one_typo(name: str, other: str, words: Container[str]) -> bool:
    """Whether two keys differ by the spelling of one word: not ``decoder`` for ``encoder``, nor ``moe_`` in front."""
    ours, theirs = name.split("_"), other.split("_")
    if len(ours) != len(theirs):
        return name.replace("_", "") == other.replace("_", "")
    apart = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    if len(apart) != 1 or apart[0][0] in words:  # a word that other keys have is meant
        return False
    return bool(get_close_matches(apart[0][0], apart[0][1:], cutoff=0.7))


def _with_devices(config: Config, pairs: Pairs) -> Config:
    """With nodes times devices of a node, where both are said; torchrun alone takes one node where none is said."""
    if "gpus" in config.opened() or config.gpus is not None:
        return config
    said = {_plain(one.key): one for one in pairs}
    nodes = next((said[name] for name in NODES if name in said), None)
    each = next((said[name] for name in PER_NODE if name in said), None)
    if nodes is None and "nproc_per_node" in said:
        nodes = Said("nnodes", 1)
    if nodes is None or each is None:
        return config
    counts = [str(one.value).split(":")[-1] for one in (nodes, each)]  # --nnodes 1:4 is elastic, up to 4
    if not all(text.isdecimal() for text in counts):
        texts = [f"{one.key.lstrip('-')} {open_text(one.value) or one.value}" for one in (nodes, each)]
        place = nodes.place or each.place
        return config.changed(open=(*config.open, Open("gpus", " x ".join(texts), place)))
    gpus, per_node = int(counts[0]) * int(counts[1]), int(counts[1])
    if not gpus:
        return config
    return config.changed(gpus=gpus, per_node=per_node, places={**config.places, "gpus": each.place})
