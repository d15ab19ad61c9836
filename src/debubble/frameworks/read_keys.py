"""Reading: pairs of key and value become a setup, in the words of one framework or in ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..core.errors import Fault, InputError
from .flags import Pairs
from .setup import NUMBERS, Backend, Setup

_WORDS = ("split", "partition", "layout", "pattern", "rampup", "schedule", "recompute", "recompute_method", "reshard")
_OURS = {name: name for name in (*NUMBERS, *_WORDS)}
_OURS |= {"ranks": "pipeline", "stage_layers": "split", "batch": "local_batch", "num_layers": "layers"}
_OURS |= {"model_layers": "layers", "vpp": "chunks", "pp": "pipeline", "tp": "tensor", "dp": "data", "cp": "context"}
_OURS |= {"ep": "expert", "etp": "expert_tensor", "mbs": "micro_batch", "gbs": "global_batch"}
# Switches by the names of Megatron-Core's fields, and the value that turns them on.
_FIELDS = {
    "overlap_p2p_comm": ("--no-overlap-p2p-communication", False),
    "overlap_p2p_comm_warmup_flush": ("--overlap-p2p-communication-warmup-flush", True),
}
_NODES = ("nnodes", "num_nodes", "trainer.num_nodes", "nodes")
_PER_NODE = ("nproc_per_node", "gpus_per_node", "trainer.devices", "num_gpus_per_node", "ntasks_per_node")
# Flags of which a value, not the flag, is what a rule is about.
VALUES = {"--ckpt-format": ("torch_dcp",), "--dist-ckpt-format": ("torch_dcp",)}
_LETTERS = {"embedding": "E", "decoder": "t", "loss": "L", "mtp": "m"}
_CLOSE = 0.88  # a misspelt key, not another one


@dataclass(frozen=True, slots=True)
class Told:
    """A setup as it was read.

    Args:
        setup: what it says.
        notes: keys that look misspelt, and values that the file leaves to its surroundings.
    """

    setup: Setup
    notes: tuple[str, ...] = ()


def read_setup(backend: Backend, pairs: Pairs) -> Told:
    """What pairs say to a framework; later ones win, keys that no rule reads are passed over.

    Raises:
        InputError: values that are not what their key takes; all of them.
    """
    known = _known(backend)
    values: dict[str, Any] = {}
    switches: set[str] = set()
    notes: list[str] = []
    faults: list[Fault] = []
    for key, value in pairs:
        field = _field(known, key)
        if field is None:
            switches |= _switch(key, value)
            notes += _misspelt(known, key)
            continue
        notes += _unsettled(field, key, value)
        try:
            values |= _read(field, key, value)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    values.setdefault("gpus", _devices(pairs))
    return Told(Setup(**values, switches=frozenset(switches)), tuple(dict.fromkeys(notes)))


def _unsettled(field: str, key: str, value: object) -> list[str]:
    """A note where a value names a variable of the shell that the file does not set."""
    if not (isinstance(value, str) and "$" in value):
        return []
    return [f"{key} = {value}: it is set outside of the file; give --{field.replace('_', '-')} N to check it"]


def _read(field: str, key: str, value: object) -> dict[str, Any]:
    """The field with its value; nothing where there is none to read, or what it leaves to the framework."""
    if value == -1 and field in ("data", "sharded", "global_batch"):
        return {}
    if value is None or value == "auto" or (isinstance(value, str) and "$" in value):
        return {}
    return {field: _value(field, key, value)}


def keys_known(backend: Backend, pairs: Pairs) -> int:
    """How many keys are this framework's own: a sign of whose configuration it is."""
    own = {_plain(key) for key in (*backend.keys.values(), *backend.aliases)} - _OURS.keys()
    return sum(any(name in own for name in _suffixes(key)) for key, _ in pairs)


def _known(backend: Backend) -> dict[str, str]:
    own = {_plain(key): field for field, key in backend.keys.items()}
    words = dict(_OURS)
    if "split" not in backend.keys:
        words.pop("split", None)  # Megatron-LM's --split shares out data
    ends = {key.rsplit(".", 1)[-1]: field for key, field in own.items() if "_" in key.rsplit(".", 1)[-1]}
    return ends | words | {_plain(key): field for key, field in backend.aliases.items()} | own


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_").lower()


def _suffixes(key: str) -> list[str]:
    """The path of a key and its ends, longest first: a.b.c, b.c, c."""
    parts = _plain(key).split(".")
    return [".".join(parts[n:]) for n in range(len(parts))]


def _field(known: dict[str, str], key: str) -> str | None:
    for name in _suffixes(key):
        if name in known and ("." not in key or name not in _OURS or known[name] != _OURS[name]):
            return known[name]
        if name in known and "_" in name:  # our own words count at the top alone, but for those that frameworks share
            return known[name]
    return None


def _switch(key: str, value: object) -> set[str]:
    name = _plain(key).rsplit(".", 1)[-1]
    if name in _FIELDS:
        flag, on = _FIELDS[name]
        return {flag} if value is on else set()
    flag = "--" + name.replace("_", "-")
    if value in VALUES.get(flag, ()):
        return {f"{flag} {value}"}
    return {flag} if value is True else set()


def _misspelt(known: dict[str, str], key: str) -> list[str]:
    name = _plain(key).rsplit(".", 1)[-1]
    close = get_close_matches(name, [n for n in known if len(n) > 8], n=1, cutoff=_CLOSE)
    return [f"{key} is not read by any rule: did you mean {close[0]}?"] if close else []


def _value(field: str, key: str, value: Any) -> Any:
    if field in NUMBERS:
        return _number(field, key, value)
    if field in ("split", "rampup"):
        return _numbers(key, value)
    if field == "recompute" and isinstance(value, int) and not isinstance(value, bool):
        return "full" if value else "none"
    if field == "recompute":
        return {True: "full", False: "none", "true": "full", "false": "none"}.get(value, str(value))
    if field == "layout" and isinstance(value, list):
        return _letters(key, value)
    if isinstance(value, list | bool):
        raise InputError(Fault(f"{key} = {value!r}"[:80], "it is a word", f"write it as in {key} 1f1b"))
    return str(value)


def _number(field: str, key: str, value: Any) -> int:
    counted = field in ("embedding_layers", "loss_layers")
    if isinstance(value, bool) and counted:
        return int(value)
    text = str(value).strip().rstrip(",)")
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,15}(\.0)?", text):
        raise InputError(Fault(f"{key} = {text[:60]}", "it is a whole number", f"write it as in {key} 4"))
    return int(text.removesuffix(".0"))


def _numbers(key: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(isinstance(part, list) for part in value):  # names of modules
        return tuple(sum(bool(re.search(r"\blayers\.\d+", str(name))) for name in part) for part in value)
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())
    if not all(re.fullmatch(r"\d{1,15}", str(part)) for part in parts):
        raise InputError(Fault(f"{key} = {value}"[:80], "it is a list of whole numbers", "write it as in 8,8,7,7"))
    return tuple(int(part) for part in parts)


def _letters(key: str, rows: list[Any]) -> str:
    """A layout given as a list of stages, as Megatron-Core takes it too."""
    stages = []
    for row in rows:
        names = [str(name).lower().rsplit(".", 1)[-1] for name in (row if isinstance(row, list) else [row])]
        if any(name not in _LETTERS for name in names):
            rule = "a stage is a list of embedding, decoder, mtp and loss"
            raise InputError(Fault(f"{key}: {row}"[:80], rule, "correct the stage"))
        stages.append("".join(_LETTERS[name] for name in names))
    return "|".join(stages)


def _devices(pairs: Pairs) -> int | None:
    """Nodes times devices of a node, where both are numbers; torchrun alone takes one node where none is said."""
    said = {_plain(key): str(value) for key, value in pairs}
    nodes, each = (next((said[n] for n in names if said.get(n, "").isdecimal()), None) for names in (_NODES, _PER_NODE))
    if nodes is None and not said.keys() & set(_NODES) and "nproc_per_node" in said:
        nodes = "1"
    if nodes is None or each is None:
        return None
    return int(nodes) * int(each) or None
