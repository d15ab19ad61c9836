"""Hybrids: the kind of each layer of a model whose layers are not alike, from the fields that say so in a config.json.

hybrid_override_pattern   "M-M*", a letter a layer of one part: recurrent, attention, feed-forward, Experts
layers_block_type         the same as a list of words
layer_types               the mixer of each layer, a word each
attn_type_list            1 for attention, 0 for linear attention
linear_attn_config        numbers from 1 of the layers with full and with delta attention
attn_layer_period         attention in layers n with n mod period = attn_layer_offset, Mamba in the others
full_attention_interval   attention in every so-manieth layer, the delta rule in the others
sliding_window_pattern    every so-manieth layer looks back all the way, the others through a window
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import Fault, InputError
from .model import Attention, Experts, FeedForward, Kind, Mixer, Recurrent, SelfAttention

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
        return ["full" if number else "recurrent" for number in config["attn_type_list"]], "attn_type_list"
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full, delta = linear["full_attn_layers"], linear.get("kda_layers") or []
        count = len(full) + len(delta)
        return ["full" if number in full else "recurrent" for number in range(1, count + 1)], "linear_attn_config"
    return None, ""


def _counted(config: Mapping[str, Any], layers: int) -> list[str] | None:
    """The layers where a configuration says every so-manieth."""
    period = config.get("attn_layer_period")
    if period:
        offset = config.get("attn_layer_offset") or 0
        return ["full" if layer % period == offset else "recurrent" for layer in range(layers)]
    interval = config.get("full_attention_interval")
    if interval:
        return ["recurrent" if (layer + 1) % interval else "full" for layer in range(layers)]
    # Many configurations print a window that is switched off.
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return None
    pattern = config.get("sliding_window_pattern") or 0
    if pattern:
        return ["window" if (layer + 1) % pattern else "full" for layer in range(layers)]
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
    state = _first(config, "ssm_state_size", "mamba_d_state") or 128
    conv = _first(config, "conv_kernel", "mamba_d_conv") or 4
    count = _first(config, "mamba_num_heads", "mamba_n_heads")
    if count:
        width = _first(config, "mamba_head_dim", "mamba_d_head") or 64
        groups = _first(config, "n_groups", "mamba_n_groups") or 1
        return Recurrent(count, width, state, groups, conv=conv)
    if config.get("mamba_dt_rank"):
        inner = (_first(config, "mamba_expand", "expand") or 2) * hidden
        return Recurrent(inner, 1, state, 1, scalars=0, conv=conv, rank=config["mamba_dt_rank"])
    width = config.get("head_dim") or hidden // heads
    return Recurrent(heads, width, width, heads, scalars=0, conv=0)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name)), None)


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
