"""A model: the kinds of layer that it is made of, and the order in which they come.

A *kind* is a mixer (how tokens see each other) and a feed-forward. Most models have one kind, mixtures of experts often
two (the first layers keep a dense feed-forward). Parameters, FLOPs and bytes follow from kinds; a stage of a pipeline
is described by how many layers of each kind it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.errors import Fault, InputError


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention in which groups of query heads share a head of keys and values.

    Args:
        heads: query heads, a.
        kv_heads: heads of keys and values; equal to ``heads`` without grouping.
        head_width: numbers of one head.
    """

    heads: int
    kv_heads: int
    head_width: int

    @property
    def value_width(self) -> int:
        """Numbers of one value head."""
        return self.head_width


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values pass through a narrow layer (DeepSeek-V2, https://arxiv.org/abs/2405.04434).

    Args:
        heads: query heads, a.
        kv: width of the compressed keys and values (``kv_lora_rank``).
        query: width of the compressed queries (``q_lora_rank``); 0 if queries are not compressed.
        plain: part of a head that carries no position (``qk_nope_head_dim``).
        rotary: part of a head that carries the position (``qk_rope_head_dim``).
        value: width of a value head (``v_head_dim``).
    """

    heads: int
    kv: int
    query: int = 0
    plain: int = 128
    rotary: int = 64
    value: int = 128

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values after they are unpacked: one for each query head."""
        return self.heads

    @property
    def head_width(self) -> int:
        """Numbers of one head of queries and keys."""
        return self.plain + self.rotary

    @property
    def value_width(self) -> int:
        """Numbers of one value head."""
        return self.value


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A dense feed-forward.

    Args:
        width: intermediate size, f.
        gated: whether it has three matrices (SwiGLU) or two (GELU).
    """

    width: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of a dense feed-forward.

    Args:
        count: routed experts in a layer.
        active: of them, how many a token passes.
        width: intermediate size of one expert.
        shared: width of what every token passes beside them, summed over shared experts; 0 for none.
        gated: whether each expert has three matrices or two.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    gated: bool = True


Mixer = Attention | LatentAttention


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of layer: how its tokens see each other, and what each passes afterwards."""

    mixer: Mixer
    feed_forward: FeedForward | Experts

    @property
    def experts(self) -> Experts | None:
        """Its mixture of experts, or None if its feed-forward is dense."""
        if isinstance(self.feed_forward, Experts):
            return self.feed_forward
        return None


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Args:
        name: what reports call it.
        hidden: width of the residual stream, h.
        vocab: entries of the vocabulary, V, as padded.
        kinds: the kinds of layer that it has, in the order in which they first come.
        pattern: for each layer its position in ``kinds``.
        tied: whether input and output embedding are one matrix.
        causal: whether attention looks back only.
        positions: entries of a learned position embedding; 0 if positions are computed.
        biases: whether linear layers have biases.
        dropout: whether dropout masks are kept for the backward.
        next_heads: extra layers that predict further tokens (DeepSeek-V3's multi-token prediction), on the last stage.
        warnings: what was guessed when it was read.
    """

    name: str
    hidden: int
    vocab: int
    kinds: tuple[Kind, ...]
    pattern: tuple[int, ...]
    tied: bool = False
    causal: bool = True
    positions: int = 0
    biases: bool = False
    dropout: bool = False
    next_heads: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Transformer layers, L."""
        return len(self.pattern)

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return self.counts_between(0, self.layers)

    def counts_between(self, first: int, last: int) -> tuple[int, ...]:
        """Layers of each kind among those from ``first`` up to, not including, ``last``."""
        held = self.pattern[first:last]
        return tuple(held.count(position) for position in range(len(self.kinds)))

    @property
    def last_kind(self) -> Kind:
        """The kind of the last layer, of which extra prediction heads are too."""
        return self.kinds[self.pattern[-1]]

    @property
    def experts(self) -> Experts | None:
        """Its mixture of experts, or None if no layer has one."""
        return next((kind.experts for kind in self.kinds if kind.experts), None)

    @property
    def expert_layers(self) -> int:
        """Layers that hold a mixture of experts."""
        return sum(count for kind, count in zip(self.kinds, self.counts, strict=True) if kind.experts)

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.last_kind.mixer.heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values of a layer."""
        return self.last_kind.mixer.kv_heads

    @property
    def ffn(self) -> int:
        """Width of the dense feed-forward; of one expert if no layer is dense."""
        dense = (kind.feed_forward.width for kind in self.kinds if not kind.experts)
        return next(dense, self.kinds[0].feed_forward.width)

    def with_layers(self, layers: int) -> Model:
        """The same model cut or continued to so many layers: the last kind repeats."""
        pattern = self.pattern[:layers] + self.pattern[-1:] * (layers - self.layers)
        return replace(self, pattern=pattern)

    def with_dense_first(self, layers: int) -> Model:
        """The same model with a dense feed-forward in so many leading layers, and experts in the others."""
        dense = next((place for place, kind in enumerate(self.kinds) if not kind.experts), None)
        mixed = next((place for place, kind in enumerate(self.kinds) if kind.experts), None)
        if dense is None or mixed is None:
            return self
        return replace(self, pattern=(dense,) * layers + (mixed,) * (self.layers - layers))


def transformer(
    name: str,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    head_size: int | None = None,
    gated: bool = True,
    latent: LatentAttention | None = None,
    experts: Experts | None = None,
    dense_first: int = 0,
    every: int = 1,
) -> Model:
    """A model all of whose layers have the same attention, and some or all of them experts.

    Args:
        name: what reports call it.
        layers: transformer layers, L.
        hidden: width of the residual stream, h.
        ffn: intermediate size of the dense feed-forward, f.
        heads: attention heads, a.
        kv_heads: heads of keys and values.
        vocab: entries of the vocabulary.
        head_size: width of one head; None for hidden / heads.
        gated: whether the feed-forward has three matrices or two.
        latent: multi-head latent attention in place of the usual one.
        experts: mixture of experts, or None.
        dense_first: leading layers that keep a dense feed-forward.
        every: from there on every n-th layer has experts.

    Raises:
        InputError: sizes that are not positive, or that do not divide; all faults at once.
    """
    check_sizes({"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": kv_heads, "vocab": vocab})
    mixer: Mixer = latent or Attention(heads, kv_heads, head_size or hidden // heads)
    dense = Kind(mixer, FeedForward(ffn, gated))
    order = []
    for layer in range(layers):
        mixed = experts is not None and layer >= dense_first and (layer - dense_first) % every == 0
        order.append(Kind(mixer, experts) if experts and mixed else dense)
    return model_of_layers(name, hidden, vocab, order)


def model_of_layers(name: str, hidden: int, vocab: int, order: Sequence[Kind]) -> Model:
    """A model from the kind of each of its layers, first to last."""
    kinds = tuple(dict.fromkeys(order))
    return Model(name, hidden, vocab, kinds, tuple(kinds.index(kind) for kind in order))


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Refuse sizes of which no model can be made.

    Args:
        sizes: by name; ``heads`` and ``kv_heads`` are among them.

    Raises:
        InputError: sizes that are not positive, or that do not divide; all faults at once.
    """
    faults = []
    for size, value in sizes.items():
        if value < 1:
            rule = f"a model has at least one of its {size}"
            faults.append(Fault(f"{size} = {value}", rule, f"give {size} 1 or more"))
    if not faults and sizes["heads"] % sizes["kv_heads"]:
        both = f"heads = {sizes['heads']}, kv_heads = {sizes['kv_heads']}"
        faults.append(Fault(both, "each key-value head serves equally many heads", "make kv_heads divide heads"))
    if faults:
        raise InputError(*faults)
