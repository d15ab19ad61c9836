"""Reading a model: a Hugging Face ``config.json``, a name among ``data/models``, or a TOML file of the same form.

Where layers are not alike, fields of a ``config.json`` tell the kind of each:

hybrid_override_pattern   "M-M*", a letter a layer of one part: recurrent, attention, feed-forward, Experts
layers_block_type         the same as a list of words
layer_types               the mixer of each layer, a word each
attn_type_list            1 for attention, 0 for linear attention
linear_attn_config        numbers from 1 of the layers with full and with delta attention
attn_layer_period         attention in layers n with n mod period = attn_layer_offset, Mamba in the others
full_attention_interval   attention in every n-th layer, the delta rule in the others
sliding_window_pattern    every n-th layer looks back all the way, the others through a window
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import MOST_LAYERS, MOST_OF_A_LAYER, MOST_WORDS, Fault, InputError, beyond, nearest
from .model import (
    Attention,
    Experts,
    FeedForward,
    Kind,
    LatentAttention,
    Mixer,
    Model,
    Recurrent,
    SelfAttention,
    Vision,
    check_sizes,
    model_of_layers,
    transformer,
)

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


# What the letters and words of published configurations mean.
PARTS = {"M": "recurrent", "*": "full", "-": "dense", "E": "experts"}
WORDS = {
    **{"mamba": "recurrent", "mamba2": "recurrent", "linear_attention": "recurrent", "attention": "full"},
    **{"full_attention": "full", "sliding_attention": "window", "chunked_attention": "window", "global": "full"},
    **{"moe": "experts", "mlp": "dense"},
}
PATTERNS = ("hybrid_override_pattern", "hybrid_layer_pattern")
FIELDS = frozenset({
    *PATTERNS, "layers_block_type", "layer_types", "attn_type_list", "linear_attn_config", "attn_layer_period",
    "attn_layer_offset", "full_attention_interval", "sliding_window_pattern", "sliding_window", "use_sliding_window",
    "max_window_layers", "attention_chunk_size",
    "mamba_num_heads", "mamba_n_heads", "mamba_head_dim", "mamba_d_head", "ssm_state_size", "mamba_d_state", "n_groups",
    "mamba_n_groups", "conv_kernel", "mamba_d_conv", "mamba_expand", "expand", "mamba_dt_rank", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
})  # fmt: skip

# How the field that Hugging Face calls by the first name is called here, and other names that it goes by.
_SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}
_MOST = {"layers": MOST_LAYERS, "hidden": MOST_OF_A_LAYER, "heads": MOST_OF_A_LAYER, "vocab": MOST_WORDS}
_OPTIONAL = {
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads", "kv_n_heads"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k"),
}
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
# Tables inside of a configuration whose fields are those of the model itself (DBRX, MPT).
_NESTED = ("attn_config", "ffn_config")
# Fields that a model's numbers come from if they are there, each a whole number.
_COUNTS = (
    *(name for names in _OPTIONAL.values() for name in names),
    *("head_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts", "kv_lora_rank"),
    *("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_positions", "max_position_embeddings"),
    *(
        *_SHARED,
        "num_nextn_predict_layers",
        "first_k_dense_replace",
        "decoder_sparse_step",
        "interleave_moe_layer_step",
    ),
    *("mamba_num_heads", "mamba_n_heads", "mamba_head_dim", "mamba_d_head", "ssm_state_size", "mamba_d_state"),
    *("n_groups", "mamba_n_groups", "conv_kernel", "mamba_d_conv", "mamba_expand", "linear_num_key_heads"),
    *("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    *("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset", "sliding_window"),
    *("full_attention_interval", "sliding_window_pattern", "moe_shared_expert_intermediate_size"),
)
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
    "nemotron_h",
    "starcoder2",
    "gpt_bigcode",
}
# Fields that name the activation, and types that gate one which elsewhere comes without a gate.
_ACTIVATIONS = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function", "feed_forward_proj")
_GATES = {"gemma3", "gemma3n_text", "recurrent_gemma", "modernbert-decoder", "bitnet"}
_LEARNED = {"gpt2", "gpt_bigcode", "opt"}
# Types whose every n-th layer looks back all the way though no field says so.
_WINDOWS = {"gemma2": 2, "gemma3_text": 6}
# Types that share the table of embeddings with the head unless a field says otherwise, as transformers' own base class
# of configurations does; most that set the field in their class do not.
_TIED = {"gemma", "gemma2", "gemma3_text", "cohere", "smollm3"}
_KNOWN = _PLAIN | {
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
    *("jamba", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "kimi_linear"),
    *("minimax_text_01", "minimax_m2", "glm4_moe", "ernie4_5_moe", "ernie4_5", "smollm3", "seed_oss", "olmo3"),
    *(
        "dbrx",
        "hunyuan_v1_moe",
        "deepseek_v2",
        "deepseek_v3",
        "kimi_k2",
        "gpt_oss",
        "llama4_text",
        "phi3",
        "olmo",
        "olmo2",
        "granite",
        "cohere",
    ),
}


def model_of_config(config: dict[str, Any], name: str, where: str) -> Model:
    """A model from a Hugging Face configuration; a nested ``text_config`` counts, and an encoder of pictures.

    Raises:
        InputError: every field that is missing or no positive whole number, by its name.
    """
    warnings: list[str] = []
    vision = None
    if isinstance(config.get("text_config"), dict):
        vision = _vision(config.get("vision_config"))
        told = "only its text_config is planned"
        if vision:
            told = "its encoder of pictures counts as parameters of the first stage, its time does not"
        warnings.append(f"a model of several towers: {told}")
    config = _of_one_level(config)
    kind = str(config.get("model_type", ""))
    gated, why = _gated(config, kind)
    if kind not in _KNOWN:
        form = "gated" if gated else "without a gate"
        warnings.append(f"model_type {kind!r} is not known here: read from generic fields, feed-forward {form}{why}")
    faults: list[Fault] = []
    sizes = {size: _size(config, names, where, faults, _MOST[size]) for size, names in _SIZES.items()}
    for name in _COUNTS:
        if config.get(name):
            _checked(f"{where}: {name}", config[name], MOST_OF_A_LAYER, faults)
    if faults:
        raise InputError(*faults)
    experts, mixed = _experts(config, kind, sizes["layers"], where)
    if experts:
        experts = replace(experts, gated=gated)
    ffn = _first(config, _OPTIONAL["ffn"])
    if ffn is None:
        ffn = 4 * sizes["hidden"]
        warnings.append("no intermediate_size: taken for 4 x hidden_size")
    kv_heads = _first(config, _OPTIONAL["kv_heads"])
    if kv_heads is None:
        kv_heads = sizes["heads"]
        if config.get("multi_query"):  # GPT-BigCode and Falcon: one head of keys and values for all queries
            kv_heads = 1
    check_sizes({**sizes, "ffn": int(ffn), "kv_heads": int(kv_heads)})
    hidden, heads, layers = sizes["hidden"], sizes["heads"], sizes["layers"]
    head_width = _head_width(config, hidden, heads, where)
    gate = bool(config.get("attn_output_gate", kind == "qwen3_next"))
    mixer = _latent(config, heads) or Attention(heads, int(kv_heads), head_width, gated=gate)
    said = mixers(config, layers, where) or ["full"] * layers
    state = recurrent(config, hidden, heads) if "recurrent" in said else None
    wide = [experts if experts and layer in mixed else FeedForward(int(ffn), gated) for layer in range(layers)]
    if experts and "dense" in said:
        wide = [experts, FeedForward(int(ffn), gated)] * layers  # each stands in layers of its own
    window = int(config.get("sliding_window") or config.get("attention_chunk_size") or 0)
    order = kinds_of_layers(said, mixer, state, wide[:layers], window)
    model = model_of_layers(str(config.get("_name_or_path") or name), hidden, sizes["vocab"], order)
    warnings += _unread(config)
    positions = 0
    if kind in _LEARNED:
        positions = int(config.get("n_positions") or config.get("max_position_embeddings") or 0)
    return replace(
        model,
        tied=bool(config.get("tie_word_embeddings", kind not in _KNOWN - _PLAIN - _TIED)),
        positions=positions,
        biases=kind in _PLAIN - {"falcon", "nemotron", "nemotron_h", "mpt"},
        next_heads=int(config.get("num_nextn_predict_layers") or 0),
        vision=vision,
        warnings=tuple(warnings),
    )


def _head_width(config: dict[str, Any], hidden: int, heads: int, where: str) -> int:
    """Columns of each head, from a field of its own or as its share of the hidden size."""
    width = config.get("head_dim") or config.get("attention_head_dim") or hidden // heads
    if not width:
        rule = f"{heads} heads share a hidden size of {hidden} without one column for each"
        raise InputError(Fault(f"{where}: heads = {heads}", rule, "correct one of them, or give head_dim"))
    return int(width)


def _of_one_level(config: dict[str, Any]) -> dict[str, Any]:
    """With the fields of tables inside as fields of its own, and one number where a list gives it to every layer."""
    if isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    for name in _NESTED:
        if isinstance(config.get(name), dict):
            config = {**config[name], **config}
    return {name: _of_all_layers(value) if name in _COUNTS else value for name, value in config.items()}


def _of_all_layers(value: Any) -> Any:
    """The number that a list gives every layer; a list of unlike numbers stays as it is, and is no size."""
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        return value[0]
    return value


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


def _size(config: dict[str, Any], names: tuple[str, ...], where: str, faults: list[Fault], most: int) -> int:
    value = _first(config, names)
    if value is None:
        remedy = f"add {names[0]}"
        if names[1:]:
            remedy += f" (or {', '.join(names[1:])})"
        faults.append(Fault(f"{where}: {names[0]}", "it is missing", remedy))
        return 0
    return _checked(f"{where}: {names[0]}", value, most, faults)


def _checked(what: str, value: object, most: int, faults: list[Fault]) -> int:
    """A size, if it is a whole number of a model that could be; else 0, and the fault."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        said = repr(value)
        if len(said) > 60:
            said = f"{said[:60]}.."
        faults.append(Fault(f"{what} = {said}", "a size is a whole number, 1 or more", "correct it"))
        return 0
    faults += beyond(what, value, most)
    return value


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[n] for n in names if config.get(n) is not None), None)


def _vision(config: Any) -> Vision | None:
    """The encoder of a ``vision_config``, if it says its sizes."""
    if not isinstance(config, dict):
        return None
    layers, hidden = _first(config, ("depth", "num_hidden_layers", "vt_num_hidden_layers")), config.get("hidden_size")
    if not isinstance(layers, int) or not isinstance(hidden, int):
        return None
    width = config.get("intermediate_size") or 4 * hidden
    side = config.get("patch_size") or 14
    patch = int(side) ** 2 * int(config.get("in_channels") or 3) * int(config.get("temporal_patch_size") or 1)
    return Vision(layers, hidden, int(width), patch, "silu" in str(config.get("hidden_act")))


# Fields whose names say that they size something, and those of them that are read here or change no count.
_SIZING = re.compile(r"(layer|expert|head|dim|size|rank|width|intermediate|group|period|freq|interval|kernel)s?$")
_READ = FIELDS | {
    *(name for names in (*_SIZES.values(), *_OPTIONAL.values()) for name in names),
    *("head_dim", "attention_head_dim", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
    *("v_head_dim", "qk_head_dim", "rotary_dim", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "shared_intermediate_size", "n_shared_experts", "num_shared_experts"),
    *(*_SHARED, "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layers"),
    *("first_k_dense_replace", "moe_layer_start_index", "mlp_only_layers", "expert_layer_period", "n_group"),
    *("expert_layer_offset", "moe_layer_interval", "num_nextn_predict_layers", "intermediate_size_mlp", "topk_group"),
    *("mamba_chunk_size", "chunk_size", "no_rope_layers", "no_rope_layer_interval", "image_size", "patch_size"),
}  # fmt: skip


def _unread(config: dict[str, Any]) -> list[str]:
    """A line for fields that may change the count and that nothing here reads."""
    names = []
    # Of tables inside, those that may be the model's own: others are of rotary positions, encoders, number formats.
    inside = {f"{name}.{key}": one for name in config for key, one in _table(config, name).items()}
    for name, value in {**config, **inside}.items():
        says_a_size = isinstance(value, int | list) and value not in (0, 1, False, [])
        if says_a_size and _SIZING.search(name) and name.split(".")[-1] not in _READ:
            names.append(name)
    if not names:
        return []
    return [f"fields of its configuration that may change the count are not read: {', '.join(sorted(names))}"]


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of sizes inside of a configuration that nothing here has read; empty for any other field."""
    value = config[name]
    of_others = name in (*_NESTED, *FIELDS) or any(
        word in name for word in ("text", "vision", "audio", "rope", "quant")
    )
    return {} if of_others or not isinstance(value, dict) else value


def _experts(config: dict[str, Any], kind: str, layers: int, where: str) -> tuple[Experts | None, frozenset[int]]:
    """A mixture of experts, and the layers that have it."""
    count = _first(config, _OPTIONAL["experts"])
    if not count or count == 1:
        return None, frozenset()
    active = _first(config, _OPTIONAL["active"])
    width = config.get("moe_intermediate_size") or _first(config, _OPTIONAL["ffn"])
    faults = []
    for name, value in (("num_experts_per_tok", active), ("moe_intermediate_size", width)):
        if not value:
            faults.append(Fault(f"{where}: {name}", "a mixture of experts needs it", f"add {name}"))
    if faults:
        raise InputError(*faults)
    # Some families count shared experts, others give their width together; Llama 4 has one as wide as a routed one.
    several = _first(config, _SHARED) or 0
    shared = several * width
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"):
        shared = config.get(name) or shared
    if kind == "llama4_text":
        shared = width
    experts = Experts(int(count), int(active), int(width), int(shared))
    listed = config.get("moe_layer_freq")
    if isinstance(listed, list):
        return experts, frozenset(layer for layer, on in enumerate(listed) if on)
    if config.get("expert_layer_period"):
        period, offset = config["expert_layer_period"], config.get("expert_layer_offset") or 0
        return experts, frozenset(layer for layer in range(layers) if layer % period == offset)
    # Every n-th layer from the first on, which DeepSeek calls its dense layers and Qwen and Llama 4 leave to follow.
    every = _first(config, ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"))
    if not isinstance(every, int) or every < 1:
        every = 1
    first = _first(config, ("first_k_dense_replace", "moe_layer_start_index")) or 0
    if not first and (config.get("decoder_sparse_step") or kind == "llama4_text"):
        first = every - 1
    only_dense = config.get("mlp_only_layers") or []
    if isinstance(only_dense, list) and only_dense == list(range(len(only_dense))):
        first = max(int(first), len(only_dense))
    return experts, frozenset(range(min(int(first), layers), layers, every))


def _latent(config: dict[str, Any], heads: int) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    return LatentAttention(
        heads,
        int(config["kv_lora_rank"]),
        int(config.get("q_lora_rank") or 0),
        int(config.get("qk_nope_head_dim") or 128),
        int(config.get("qk_rope_head_dim") or 64),
        int(config.get("v_head_dim") or 128),
    )


def mixers(config: Mapping[str, Any], layers: int, where: str) -> list[str] | None:
    """What each layer has: ``full``, ``window``, ``recurrent``, or ``dense`` and ``experts`` where parts stand alone.

    Returns:
        One word a layer, or None where all have the same full attention.

    Raises:
        InputError: a letter or word that is not known, or another number of them than layers.
    """
    said, name = _listed(config)
    if said is not None:
        unknown = sorted({each for each in said if each not in WORDS.values()})
        if unknown:
            rule = f"known: {', '.join(sorted({*PARTS, *WORDS}))}"
            raise InputError(Fault(f"{where}: {name} = {', '.join(unknown)}", "no such kind of layer", rule))
        if len(said) != layers:
            rule = f"it tells {len(said)} layers, and the model has {layers}"
            raise InputError(Fault(f"{where}: {name}", rule, "correct one of them"))
        return said
    return _counted(config, layers)


def _listed(config: Mapping[str, Any]) -> tuple[list[str] | None, str]:
    """The layers where a configuration lists each of them, and the field that does."""
    for name in PATTERNS:
        if isinstance(config.get(name), str):
            letters = config[name].split("/")[0].replace("|", "")  # bars cut stages, a slash precedes further heads
            return [PARTS.get(letter, letter) for letter in letters], name
    for name in ("layers_block_type", "layer_types"):
        if isinstance(config.get(name), list):
            return [WORDS.get(str(word), str(word)) for word in config[name]], name
    if isinstance(config.get("attn_type_list"), list):
        numbers = config["attn_type_list"]
        attention = {layer for layer, number in enumerate(numbers) if number}
        return _full_among(len(numbers), attention), "attn_type_list"
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full, delta = linear["full_attn_layers"], linear.get("kda_layers") or []
        return _full_among(len(full) + len(delta), {number - 1 for number in full}), "linear_attn_config"
    return None, ""


def _full_among(layers: int, full: Container[int], others: str = "recurrent") -> list[str]:
    """Full attention in some layers, counted from 0, and the others in all that are left."""
    return ["full" if layer in full else others for layer in range(layers)]


def _counted(config: Mapping[str, Any], layers: int) -> list[str] | None:
    """The layers where a configuration says every so-manieth."""
    period = config.get("attn_layer_period")
    if period:
        offset = config.get("attn_layer_offset") or 0
        return _full_among(layers, range(offset, layers, period))
    interval = config.get("full_attention_interval")
    if interval:
        return _full_among(layers, range(interval - 1, layers, interval))
    # Many configurations print a window that is switched off.
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return None
    pattern = config.get("sliding_window_pattern") or _WINDOWS.get(str(config.get("model_type")), 0)
    if pattern:
        return _full_among(layers, range(pattern - 1, layers, pattern), "window")
    return ["window"] * layers


def recurrent(config: Mapping[str, Any], hidden: int, heads: int) -> Recurrent:
    """The recurrent mixer of a hybrid, by the fields that its family has.

    The gated delta rule (Qwen3-Next) has ``linear_num_value_heads``, Kimi's delta attention ``linear_attn_config``,
    Mamba-2 its own heads, Mamba-1 (Jamba) a rank of steps; linear attention alone (MiniMax) has heads as attention has.
    """
    linear = config.get("linear_attn_config")
    if config.get("linear_num_value_heads"):
        return Recurrent(
            heads=config["linear_num_value_heads"],
            value=config.get("linear_value_head_dim") or 128,
            key=config.get("linear_key_head_dim") or 128,
            groups=config.get("linear_num_key_heads") or config["linear_num_value_heads"],
            scalars=2,
            conv=config.get("linear_conv_kernel_dim") or 4,
        )
    if isinstance(linear, dict):
        count, width = linear.get("num_heads") or heads, linear.get("head_dim") or 128
        conv = linear.get("short_conv_kernel_size") or 4
        return Recurrent(count, width, width, count, conv=conv, rank=width, delta=True)
    state = _first_of(config, "ssm_state_size", "mamba_d_state") or 128
    conv = _first_of(config, "conv_kernel", "mamba_d_conv") or 4
    count = _first_of(config, "mamba_num_heads", "mamba_n_heads")
    if count:
        width = _first_of(config, "mamba_head_dim", "mamba_d_head") or 64
        groups = _first_of(config, "n_groups", "mamba_n_groups") or 1
        return Recurrent(count, width, state, groups, conv=conv)
    if config.get("mamba_dt_rank"):
        inner = (_first_of(config, "mamba_expand", "expand") or 2) * hidden
        return Recurrent(inner, 1, state, 1, scalars=0, conv=conv, rank=config["mamba_dt_rank"])
    width = config.get("head_dim") or hidden // heads
    return Recurrent(heads, width, width, heads, scalars=0, conv=0)


def _first_of(config: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there and not 0."""
    for name in names:
        if config.get(name):
            return config[name]
    return None


def kinds_of_layers(
    said: Sequence[str],
    mixer: SelfAttention,
    state: Recurrent | None,
    wide: Sequence[FeedForward | Experts],
    window: int,
) -> list[Kind]:
    """The kind of each layer.

    Args:
        said: as ``mixers`` gives it.
        mixer: attention that looks back all the way.
        state: the recurrent mixer, if there is one.
        wide: the feed-forward of each layer, where it has a mixer too.
        window: tokens that windowed attention looks back at.
    """
    narrow: Mixer = mixer
    if isinstance(mixer, Attention):
        narrow = replace(mixer, window=window)
    of_word: dict[str, Mixer | None] = {"full": mixer, "window": narrow, "recurrent": state}
    if not {"dense", "experts"} & set(said):
        return [Kind(of_word[word], own) for word, own in zip(said, wide, strict=True)]
    dense = next((own for own in wide if isinstance(own, FeedForward)), None)
    experts = next((own for own in wide if isinstance(own, Experts)), None)
    alone: dict[str, Kind] = {word: Kind(each) for word, each in of_word.items()}
    alone |= {"dense": Kind(feed_forward=dense), "experts": Kind(feed_forward=experts)}
    return [alone[word] for word in said]
