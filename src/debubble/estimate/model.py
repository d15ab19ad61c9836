"""A model: the sizes of a transformer from which parameters, FLOPs and bytes follow."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..core.errors import Fault, InputError


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values pass through a narrow layer (DeepSeek-V2, arXiv:2405.04434).

    Args:
        kv: width of the compressed keys and values (``kv_lora_rank``).
        query: width of the compressed queries (``q_lora_rank``); 0 where queries are not compressed.
        plain: part of a head that carries no position (``qk_nope_head_dim``).
        rotary: part of a head that carries the position (``qk_rope_head_dim``).
        value: width of a value head (``v_head_dim``).
    """

    kv: int
    query: int = 0
    plain: int = 128
    rotary: int = 64
    value: int = 128


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of some feed-forward layers.

    Args:
        count: routed experts in a layer.
        active: of them, how many a token passes.
        width: intermediate size of one expert.
        shared: width of what every token passes beside them, summed over shared experts; 0 for none.
        dense_first: leading layers that keep a dense feed-forward.
        every: from there on every n-th layer has experts.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    dense_first: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Args:
        name: what reports call it.
        layers: transformer layers, L.
        hidden: width of the residual stream, h.
        ffn: intermediate size of the dense feed-forward, f.
        heads: attention heads, a.
        kv_heads: heads of keys and values; equal to ``heads`` without grouping.
        vocab: entries of the vocabulary, V, as padded.
        head_size: width of one head; None for hidden / heads.
        gated: whether the feed-forward has three matrices (SwiGLU) or two (GELU).
        tied: whether input and output embedding are one matrix.
        causal: whether attention looks back only.
        positions: entries of a learned position embedding; 0 where positions are computed.
        biases: whether linear layers have biases.
        dropout: whether dropout masks are kept for the backward.
        next_heads: extra layers that predict further tokens (DeepSeek-V3's multi-token prediction), on the last stage.
        latent: multi-head latent attention, or None.
        experts: mixture of experts, or None.
        warnings: what was guessed when it was read.

    Raises:
        InputError: sizes that are not positive, or that do not divide; all faults at once.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    head_size: int | None = None
    gated: bool = True
    tied: bool = False
    causal: bool = True
    positions: int = 0
    biases: bool = False
    dropout: bool = False
    next_heads: int = 0
    latent: Latent | None = None
    experts: Experts | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")
        faults = [
            Fault(f"{n} = {getattr(self, n)}", f"a model has at least one of its {n}", f"give {n} 1 or more")
            for n in sizes
            if getattr(self, n) < 1
        ]
        if not faults and self.heads % self.kv_heads:
            value = f"heads = {self.heads}, kv_heads = {self.kv_heads}"
            faults.append(Fault(value, "each key-value head serves equally many heads", "make kv_heads divide heads"))
        if faults:
            raise InputError(*faults)

    @property
    def head_width(self) -> int:
        """Width of one head of queries and keys."""
        if self.latent:
            return self.latent.plain + self.latent.rotary
        return self.head_size or self.hidden // self.heads

    @property
    def expert_layers(self) -> int:
        """Layers that hold a mixture of experts."""
        return sum(self.has_experts(layer) for layer in range(self.layers))

    def has_experts(self, layer: int) -> bool:
        """Whether this layer (from 0) holds a mixture of experts."""
        e = self.experts
        return e is not None and layer >= e.dense_first and (layer - e.dense_first) % e.every == 0


SIZES = tuple(f.name for f in fields(Model))
