"""Reading a model: a Hugging Face ``config.json``, a name among ``data/models``, or a TOML file of the same form."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError, nearest
from .hugging_face import model_of_config
from .model import Experts, LatentAttention, Model, transformer

FOLDER = Path(__file__).resolve().parents[1] / "data" / "models"
LARGEST = 4_000_000  # bytes: a configuration is a few kilobytes

# Words of a TOML file: of its tables, what ``transformer`` takes, and what else is said of a model.
_SHAPE = ("name", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "head_size", "gated")
_OTHERS = ("tied", "causal", "positions", "biases", "dropout", "next_heads")
_REQUIRED = ("name", "layers", "hidden", "ffn", "heads", "vocab")
_EXPERTS = ("count", "active", "width", "shared")
_EXPERT_LAYERS = ("dense_first", "every")
_LATENT = ("kv", "query", "plain", "rotary", "value")


def read_model(text: str) -> Model:
    """The model that a user means: a path to a ``.json`` or ``.toml`` file, a folder that holds config.json, or a name.

    Raises:
        InputError: no such name (the nearest are given), or a field that a file lacks.
    """
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.suffix in (".json", ".toml") or path.is_file():
        return _from_file(path)
    names = _names()
    if text.lower() not in names:
        raise nearest(text, names, "model")
    return _from_file(FOLDER / f"{names[text.lower()]}.toml")


def known_models() -> tuple[str, ...]:
    """Names of all models that come with the package, sorted."""
    return tuple(sorted(set(_names().values())))


@cache
def _names() -> dict[str, str]:
    """Every name of a model, with the file that describes it."""
    names: dict[str, str] = {}
    for file in FOLDER.glob("*.toml"):
        names[file.stem] = file.stem
        names.update(dict.fromkeys(tomllib.loads(file.read_text())["also"], file.stem))
    return names


def _from_file(path: Path) -> Model:
    if path.stat().st_size > LARGEST:
        raise InputError(Fault(str(path), "a configuration has less than 4 MB", "give the config.json of the model"))
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        read = tomllib.loads if path.suffix == ".toml" else json.loads
        table = read(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a JSON or TOML file")) from None
    if not isinstance(table, dict):
        raise InputError(Fault(str(path), "it holds no table of fields", "give the config.json of the model"))
    if path.suffix == ".toml" and isinstance(table.get("config"), dict):  # the fields of a config.json under a name
        return replace(model_of_config(table["config"], path.stem, str(path)), name=str(table.get("name", path.stem)))
    if path.suffix == ".toml":
        return model_of_sizes(table, str(path))
    return model_of_config(table, path.parent.name if path.stem == "config" else path.stem, str(path))


def model_of_sizes(table: dict[str, Any], where: str) -> Model:
    """A model from the words of a TOML file, as in ``data/models``."""
    words = {word: value for word, value in table.items() if word not in ("also", "source", "experts", "latent")}
    words.setdefault("name", Path(where).stem)
    experts, latent = table.get("experts") or {}, table.get("latent") or {}
    faults = _faults(words, (*_SHAPE, *_OTHERS), _REQUIRED, where)
    if experts:
        faults += _faults(experts, (*_EXPERTS, *_EXPERT_LAYERS), ("count", "active", "width"), f"{where}: experts")
    if latent:
        faults += _faults(latent, _LATENT, ("kv",), f"{where}: latent")
    if faults:
        raise InputError(*faults)
    shape = _among(words, _SHAPE)
    shape.setdefault("kv_heads", words["heads"])
    if experts:
        shape |= _among(experts, _EXPERT_LAYERS)
        shape["experts"] = Experts(**_among(experts, _EXPERTS), gated=words.get("gated", True))
    if latent:
        shape["latent"] = LatentAttention(words["heads"], **latent)
    return replace(transformer(**shape), **_among(words, _OTHERS))


def _faults(table: dict[str, Any], known: Sequence[str], required: Sequence[str], where: str) -> list[Fault]:
    """Words that no model has, and those that every model needs."""
    faults = []
    for word in table:
        if word not in known:
            faults.append(Fault(f"{where}: {word}", "no model has such a size", f"known: {', '.join(known)}"))
    for word in required:
        if word not in table:
            faults.append(Fault(f"{where}: {word}", "it is missing", f"add {word}"))
    return faults


def _among(table: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The part of a table with these words."""
    return {word: table[word] for word in words if word in table}
