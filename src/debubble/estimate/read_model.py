"""Reading a model: a Hugging Face ``config.json``, a name among ``data/models``, or a TOML file of the same form."""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError, nearest
from .model import Experts, Latent, Model

FOLDER = Path(__file__).resolve().parents[1] / "data" / "models"
LARGEST = 4_000_000  # bytes: a configuration is a few kilobytes


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
    found: dict[str, str] = {}
    for file in FOLDER.glob("*.toml"):
        found |= dict.fromkeys([file.stem, *tomllib.loads(file.read_text())["also"]], file.stem)
    return found


def _from_file(path: Path) -> Model:
    if path.stat().st_size > LARGEST:
        raise InputError(Fault(str(path), "a configuration has less than 4 MB", "give the config.json of the model"))
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a JSON or TOML file")) from None
    if not isinstance(table, dict):
        raise InputError(Fault(str(path), "it holds no table of fields", "give the config.json of the model"))
    if path.suffix == ".toml":
        return model_of_sizes(table, str(path))
    return model_of_config(table, path.parent.name if path.stem == "config" else path.stem, str(path))


def model_of_sizes(table: dict[str, Any], where: str) -> Model:
    """A model from the words of ``Model`` itself, as in ``data/models``."""
    given = {key: value for key, value in table.items() if key not in ("also", "source", "experts", "latent")}
    given.setdefault("name", Path(where).stem)
    given.setdefault("kv_heads", given.get("heads", 0))
    for key, kind in (("experts", Experts), ("latent", Latent)):
        if table.get(key):
            given[key] = _checked(kind, table[key], f"{where}: {key}")
    found: Model = _checked(Model, given, where)
    return found


def _checked(kind: type[Any], given: dict[str, Any], where: str) -> Any:
    known = {f.name: f for f in fields(kind)}
    required = [n for n, f in known.items() if not _optional(f)]
    faults = [
        Fault(f"{where}: {n}", "no model has such a size", f"known: {', '.join(known)}")
        for n in given
        if n not in known
    ]
    faults += [Fault(f"{where}: {n}", "it is missing", f"add {n}") for n in required if n not in given]
    if faults:
        raise InputError(*faults)
    return kind(**given)


def _optional(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


# How the field that Hugging Face calls by the first name is called here, and other names that it goes by.
_SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}
_OPTIONAL = {
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k"),
}
# Model types whose feed-forward has two matrices and not three.
_PLAIN = {
    "gpt2",
    "gpt_neox",
    "gptj",
    "gpt_neo",
    "bloom",
    "opt",
    "falcon",
    "mpt",
    "phi",
    "nemotron",
    "starcoder2",
    "gpt_bigcode",
}
# Fields that name the activation, and types that gate one which elsewhere comes without a gate.
_ACTIVATIONS = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function", "feed_forward_proj")
_GATES = {"gemma3", "gemma3n_text", "recurrent_gemma", "modernbert-decoder", "bitnet"}
_LEARNED = {"gpt2", "gpt_bigcode", "opt"}
_KNOWN = _PLAIN | {
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "llama4_text", "phi3", "olmo", "olmo2", "granite", "cohere"),
}


def model_of_config(config: dict[str, Any], name: str, where: str) -> Model:
    """A model from a Hugging Face configuration; a nested ``text_config`` counts, other towers do not.

    Raises:
        InputError: every field that is missing or no positive whole number, by its name.
    """
    warnings = []
    if isinstance(config.get("text_config"), dict):
        warnings.append("a model of several towers: only its text_config is planned")
        config = {**config, **config["text_config"]}
    kind = str(config.get("model_type", ""))
    gated, why = _gated(config, kind)
    if kind not in _KNOWN:
        form = "gated" if gated else "without a gate"
        warnings.append(f"model_type {kind!r} is not known here: read from generic fields, feed-forward {form}{why}")
    sizes: dict[str, Any] = {}
    faults: list[Fault] = []
    for mine, theirs in _SIZES.items():
        sizes[mine] = _size(config, theirs, where, faults)
    if faults:
        raise InputError(*faults)
    experts = _experts(config, kind, sizes["layers"], where)
    ffn = _first(config, _OPTIONAL["ffn"])
    if ffn is None:
        ffn = 4 * sizes["hidden"]
        warnings.append("no intermediate_size: taken for 4 x hidden_size")
    return Model(
        name=str(config.get("_name_or_path") or name),
        ffn=int(ffn),
        kv_heads=int(_first(config, _OPTIONAL["kv_heads"]) or (1 if config.get("multi_query") else sizes["heads"])),
        head_size=config.get("head_dim"),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", kind not in _KNOWN - _PLAIN)),
        positions=int(config.get("n_positions") or config.get("max_position_embeddings") or 0)
        if kind in _LEARNED
        else 0,
        biases=kind in _PLAIN - {"falcon", "nemotron", "mpt"},
        next_heads=int(config.get("num_nextn_predict_layers") or 0),
        latent=_latent(config),
        experts=experts,
        warnings=tuple(warnings),
        **sizes,
    )


def _gated(config: dict[str, Any], kind: str) -> tuple[bool, str]:
    """Whether the feed-forward has a gate, and which field says so where the type is not known.

    SiLU comes with a gate in every published decoder; GELU and ReLU come without one unless the type is known for it.
    """
    if kind in _KNOWN | _GATES:
        return kind not in _PLAIN, ""
    if isinstance(config.get("is_gated_act"), bool):
        return config["is_gated_act"], f" (is_gated_act = {config['is_gated_act']})"
    name = next((n for n in _ACTIVATIONS if config.get(n)), None)
    if name is None:
        return True, " (no field says otherwise)"
    text = str(config[name])[:40]
    return any(word in text.lower() for word in ("glu", "gated", "silu", "swish")), f" ({name} = {text!r})"


def _size(config: dict[str, Any], names: tuple[str, ...], where: str, faults: list[Fault]) -> int:
    value = _first(config, names)
    if value is None:
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        faults.append(Fault(f"{where}: {names[0]}", "it is missing", f"add {names[0]}{others}"))
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        faults.append(Fault(f"{where}: {names[0]} = {value!r}", "a size is a whole number, 1 or more", "correct it"))
    else:
        return value
    return 0


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[n] for n in names if config.get(n) is not None), None)


def _experts(config: dict[str, Any], kind: str, layers: int, where: str) -> Experts | None:
    count = _first(config, _OPTIONAL["experts"])
    if not count or count == 1:
        return None
    active = _first(config, _OPTIONAL["active"])
    width = config.get("moe_intermediate_size") or _first(config, _OPTIONAL["ffn"])
    missing = [n for n, v in (("num_experts_per_tok", active), ("moe_intermediate_size", width)) if not v]
    if missing:
        raise InputError(*(Fault(f"{where}: {n}", "a mixture of experts needs it", f"add {n}") for n in missing))
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width
    if kind == "llama4_text":
        shared = width
    every = config.get("moe_layer_freq") or config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step")
    every = every if isinstance(every, int) and every > 0 else 1
    first = config.get("first_k_dense_replace") or (
        every - 1 if config.get("decoder_sparse_step") or kind == "llama4_text" else 0
    )
    only = config.get("mlp_only_layers") or []
    if isinstance(only, list) and only == list(range(len(only))):
        first = max(int(first), len(only))
    return Experts(int(count), int(active), int(width), int(shared), min(int(first), layers), every)


def _latent(config: dict[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        int(config["kv_lora_rank"]),
        int(config.get("q_lora_rank") or 0),
        int(config.get("qk_nope_head_dim") or 128),
        int(config.get("qk_rope_head_dim") or 64),
        int(config.get("v_head_dim") or 128),
    )
