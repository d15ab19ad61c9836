"""A model: the kinds of layer that it is made of, their order, and what they count: parameters, FLOPs of a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention in which groups of query heads share a head of keys and values.

    Args:
        heads: query heads, a.
        kv_heads: heads of keys and values; equal to ``heads`` without grouping.
        head_width: numbers of one head.
        window: tokens that each looks back at; 0 for all.
        gated: whether queries come with a gate of their width for the result (Qwen3-Next).
    """

    heads: int
    kv_heads: int
    head_width: int
    window: int = 0
    gated: bool = False

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
class Recurrent:
    """A mixer that carries a state from token to token and no scores: Mamba, gated delta rule, linear attention.

    Each head reads values into a state of ``key`` x ``value`` numbers. What Mamba-2 (https://arxiv.org/abs/2405.21060)
    calls x, B, C are values, keys and queries here; heads of a group share keys and queries.

    Args:
        heads: of values.
        value: width of a value head.
        key: width of a key head, the size of the state for each number of a value.
        groups: heads of keys and queries.
        gated: whether a gate as wide as all values is projected too (z).
        scalars: numbers a head that are projected from each token: a step (Mamba-2), decay and strength (delta rule).
        conv: tokens over which values, keys and queries are convolved first; 0 for none.
        rank: width through which steps of each number of a value are projected (Mamba-1's ``dt_rank``), or through
            which gate and decay are (Kimi's delta attention); 0 if they are not.
        delta: whether the rank is that of a gate and a decay rather than of Mamba-1's steps.
    """

    heads: int
    value: int
    key: int
    groups: int
    gated: bool = True
    scalars: int = 1
    conv: int = 4
    rank: int = 0
    delta: bool = False

    @property
    def inner(self) -> int:
        """Numbers of all value heads of a token."""
        return self.heads * self.value

    @property
    def convolved(self) -> int:
        """Numbers of a token that are convolved: values, keys and queries; values alone in Mamba-1."""
        if self.rank and not self.delta:  # Mamba-1 makes keys and queries from the convolved values
            return self.inner
        return self.inner + 2 * self.groups * self.key

    @property
    def numbers(self) -> int:
        """Numbers of a token between the projections."""
        return self.inner * (2 if self.gated else 1) + 2 * self.groups * self.key + self.heads * self.scalars


@dataclass(frozen=True, slots=True)
class Vision:
    """A vision encoder before the first layer.

    Args:
        layers: of it.
        hidden: its width.
        width: of its feed-forward.
        patch: numbers of a patch of the picture.
        gated: whether its feed-forward has three matrices.
    """

    layers: int
    hidden: int
    width: int
    patch: int
    gated: bool = False

    @property
    def parameters(self) -> int:
        """Of its layers and of the projection of patches; some 1 % of biases and positions are left out."""
        layer = 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.width
        return self.layers * layer + self.patch * self.hidden


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


SelfAttention = Attention | LatentAttention
Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of layer: how its tokens see each other, and what each passes afterwards; either may be None."""

    mixer: Mixer | None = None
    feed_forward: FeedForward | Experts | None = None

    @property
    def parts(self) -> int:
        """Mixer and feed-forward, each with a norm, a residual and collectives of the tensor group: 2, or 1 alone."""
        return (self.mixer is not None) + (self.feed_forward is not None)

    @property
    def attention(self) -> SelfAttention | None:
        """Its mixer if it keeps scores, else None."""
        if isinstance(self.mixer, Recurrent):
            return None
        return self.mixer

    @property
    def is_gated(self) -> bool:
        """Whether its feed-forward has a gate."""
        return self.feed_forward is not None and self.feed_forward.gated

    @property
    def letter(self) -> str:
        """As Megatron-LM writes it in a pattern of layers of one part each; empty if it has both parts."""
        if self.parts == 2:
            return ""
        if self.mixer is not None:
            return "M" if isinstance(self.mixer, Recurrent) else "*"
        return "E" if self.experts else "-"

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
        vision: an encoder of pictures before the first layer, or None.
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
    vision: Vision | None = None
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
        """The kind of the last layer."""
        return self.kinds[self.pattern[-1]]

    @property
    def next_kinds(self) -> tuple[Kind, ...]:
        """The kinds of layer that each extra prediction head has: the last one, or where parts stand alone, both."""
        if self.last_kind.parts == 2:
            return (self.last_kind,)
        mixers = [kind for kind in self.kinds if kind.attention] or [kind for kind in self.kinds if kind.mixer]
        others = [kind for kind in self.kinds if kind.feed_forward]
        return (*mixers[-1:], *others[-1:])

    @property
    def whole_kind(self) -> Kind:
        """A layer with both parts: the last one, or its mixer of scores and its feed-forward put together."""
        if self.last_kind.parts == 2 and self.last_kind.attention:
            return self.last_kind
        mixers = [kind.mixer for kind in self.kinds if kind.attention] or [kind.mixer for kind in self.kinds]
        return Kind(mixers[-1], self.next_kinds[-1].feed_forward)

    @property
    def is_hybrid(self) -> bool:
        """Whether layers are unlike by more than their feed-forward: recurrent ones, or parts that stand alone."""
        return any(kind.parts == 1 or isinstance(kind.mixer, Recurrent) for kind in self.kinds)

    @property
    def letters(self) -> str:
        """Its layers as Megatron-LM writes those of a hybrid; empty if they have both parts."""
        letters = [self.kinds[place].letter for place in self.pattern]
        return "".join(letters) if all(letters) else ""

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
        return _heads(self.whole_kind.mixer)[0]

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values of a layer."""
        return _heads(self.whole_kind.mixer)[1]

    @property
    def ffn(self) -> int:
        """Width of the dense feed-forward; of one expert if no layer is dense."""
        wide = [kind.feed_forward for kind in self.kinds if kind.feed_forward]
        dense = [each for each in wide if isinstance(each, FeedForward)]
        return (dense or wide)[0].width if wide else 0

    def with_layers(self, layers: int) -> Model:
        """The same model cut or continued to so many layers: the last kind repeats."""
        # A table of runs often has a published model with fewer layers: leading ones are the unlike ones, so they stay.
        pattern = self.pattern[:layers] + self.pattern[-1:] * (layers - self.layers)
        return replace(self, pattern=pattern)

    def with_dense_first(self, layers: int) -> Model:
        """The same model with a dense feed-forward in so many leading layers, and experts in the others."""
        dense = next((place for place, kind in enumerate(self.kinds) if not kind.experts), None)
        mixed = next((place for place, kind in enumerate(self.kinds) if kind.experts), None)
        if dense is None or mixed is None:
            return self
        return replace(self, pattern=(dense,) * layers + (mixed,) * (self.layers - layers))


def _heads(mixer: Mixer | None) -> tuple[int, int]:
    """Heads of queries, and of keys and values, over which a tensor group can share a mixer."""
    if mixer is None:
        return 1, 1
    if isinstance(mixer, Recurrent):
        return mixer.heads, mixer.groups
    return mixer.heads, mixer.kv_heads


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


CHUNK = 256  # tokens that a recurrent mixer takes at once: what Mamba-2's kernels do
Lengths = TypeVar("Lengths", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product of a layer for each token: ``inner`` numbers in, ``outer`` out.

    Args:
        inner: width that is summed over.
        outer: width of the result.
        split: which of the two the tensor group shares: ``outer`` (column), ``inner`` (row) or ``none``.
        copies: how many such products a token passes (the experts that it is sent to).
        held: how many such matrices exist (all experts).
    """

    inner: int
    outer: int
    split: str
    copies: int = 1
    held: int = 1

    @property
    def weights(self) -> int:
        """Elements of all its matrices."""
        return self.inner * self.outer * self.held


def layer_products(hidden: int, kind: Kind) -> tuple[Product, ...]:
    """Every matrix product of a layer, in the order in which a token passes them."""
    found: tuple[Product, ...] = ()
    if kind.mixer is not None:
        found += mixer_products(hidden, kind.mixer)
    if kind.feed_forward is not None:
        found += feed_forward_products(hidden, kind.feed_forward)
    return found


def mixer_products(hidden: int, mixer: Mixer) -> tuple[Product, ...]:
    """Projections around the attention core."""
    if isinstance(mixer, LatentAttention):
        return _latent_products(hidden, mixer)
    if isinstance(mixer, Recurrent):
        return _recurrent_products(hidden, mixer)
    queries, keys_and_values = mixer.heads * mixer.head_width, 2 * mixer.kv_heads * mixer.head_width
    into = queries * (2 if mixer.gated else 1) + keys_and_values
    return Product(hidden, into, "outer"), Product(queries, hidden, "inner")


def _recurrent_products(hidden: int, mixer: Recurrent) -> tuple[Product, ...]:
    """Into the state and out of it.

    Mamba-1 projects values and gate, and from the values keys, queries and steps; Kimi's delta attention projects gate
    and decay through a narrow layer each.
    """
    out = Product(mixer.inner, hidden, "inner")
    if not mixer.rank:
        return Product(hidden, mixer.numbers, "outer"), out
    if mixer.delta:
        into = mixer.inner + 2 * mixer.groups * mixer.key + mixer.heads * mixer.scalars
        narrow = Product(hidden, 2 * mixer.rank, "none")
        return Product(hidden, into, "outer"), narrow, Product(mixer.rank, 2 * mixer.inner, "outer"), out
    steps = Product(mixer.inner, mixer.rank + 2 * mixer.key, "inner")
    return Product(hidden, 2 * mixer.inner, "outer"), steps, Product(mixer.rank, mixer.inner, "outer"), out


def _latent_products(hidden: int, mixer: LatentAttention) -> tuple[Product, ...]:
    """Down and up projections of queries and of keys and values; only what is unpacked is shared by heads."""
    queries = mixer.heads * mixer.head_width
    if mixer.query:
        query = [Product(hidden, mixer.query, "none"), Product(mixer.query, queries, "outer")]
    else:
        query = [Product(hidden, queries, "outer")]
    return (
        *query,
        Product(hidden, mixer.kv + mixer.rotary, "none"),
        Product(mixer.kv, mixer.heads * (mixer.plain + mixer.value), "outer"),
        Product(mixer.heads * mixer.value, hidden, "inner"),
    )


def feed_forward_products(hidden: int, feed_forward: FeedForward | Experts) -> tuple[Product, ...]:
    """The feed-forward: gate and up projection count as one product of twice the width."""
    into = 2 if feed_forward.gated else 1
    if isinstance(feed_forward, FeedForward):
        width = feed_forward.width
        return Product(hidden, width * into, "outer"), Product(width, hidden, "inner")
    e = feed_forward
    router = Product(hidden, e.count, "none")
    routed = (
        Product(hidden, e.width * into, "outer", e.active, e.count),
        Product(e.width, hidden, "inner", e.active, e.count),
    )
    if not e.shared:
        return router, *routed
    return router, Product(hidden, e.shared * into, "outer"), Product(e.shared, hidden, "inner"), *routed


def layer_parameters(model: Model, kind: Kind) -> int:
    """Parameters of one layer: matrices, norms and biases.

    A norm for each part: a weight for RMSNorm, weight and bias for the LayerNorm of models with biases. Latent
    attention normalises what it compresses too, a recurrent mixer its result.
    """
    products = layer_products(model.hidden, kind)
    matrices = sum(product.weights for product in products)
    norms = kind.parts * model.hidden
    if isinstance(kind.mixer, LatentAttention):
        norms += kind.mixer.query + kind.mixer.kv
    if isinstance(kind.mixer, Recurrent):
        norms += _state_parameters(kind.mixer)
    if not model.biases:
        return matrices + norms
    biases = sum(product.outer * product.held for product in products)
    return matrices + biases + norms + kind.parts * model.hidden


def _norm_parameters(model: Model) -> int:
    """A weight for RMSNorm; weight and bias for the LayerNorm of models with biases."""
    return 2 * model.hidden if model.biases else model.hidden


def _state_parameters(mixer: Recurrent) -> int:
    """What a recurrent mixer has beside its matrices: the convolution, the decay, skip and step of each head, a norm.

    Mamba-1 has a decay for each number of the state, and a skip and a step for each number of a value.
    """
    convolution = mixer.convolved * (mixer.conv + 1) if mixer.conv else 0
    if mixer.rank and not mixer.delta:
        return convolution + mixer.inner * (mixer.key + 2)
    return convolution + 3 * mixer.heads + mixer.inner


def routed_parameters(model: Model, kind: Kind) -> int:
    """Parameters of one layer that expert parallelism spreads out; 0 for a dense layer."""
    if kind.experts is None:
        return 0
    products = feed_forward_products(model.hidden, kind.experts)
    return sum(product.weights for product in products if product.held > 1)


def embedding_parameters(model: Model) -> int:
    """Parameters of the input embedding, with learned positions and what encodes pictures."""
    table = (model.vocab + model.positions) * model.hidden
    if model.vision is None:
        return table
    return table + model.vision.parameters + model.vision.hidden * model.hidden  # and the projection to the residual


def parameters(model: Model) -> int:
    """All parameters; a tied embedding counts once, extra prediction heads are left out as their authors do."""
    total = embedding_parameters(model)
    if not model.tied:
        total += model.vocab * model.hidden
    total += _norm_parameters(model)  # after the last layer
    for kind, layers in zip(model.kinds, model.counts, strict=True):
        total += layers * layer_parameters(model, kind)
    return total


def active_parameters(model: Model) -> int:
    """Parameters that one token meets: of the routed experts only those that it is sent to."""
    met = parameters(model)
    for kind, layers in zip(model.kinds, model.counts, strict=True):
        if kind.experts:
            others = kind.experts.count - kind.experts.active
            met -= layers * (routed_parameters(model, kind) * others // kind.experts.count)
    return met


def core_flops(model: Model, mixer: Mixer | None, sequence: Lengths) -> Lengths:
    """FLOPs of scores and values, forward, of one token of one layer; half of them if attention looks back only.

    ``12 s h`` dense and ``6 s h`` causal over forward and backward, if heads x head width is h. Within a window of w a
    causal token sees w - w^2/(2 s) others on average. A recurrent mixer works in chunks of tokens: products inside a
    chunk of Q, Q (key + value) numbers, and 4 key x value of the state, whatever the length (Mamba-2, section 6).

    Args:
        model: of the mixer.
        mixer: or None, which costs nothing.
        sequence: tokens, one length or float64[n].
    """
    if mixer is None:
        return 0.0 * sequence
    if isinstance(mixer, Recurrent):
        inside = CHUNK * (mixer.groups * mixer.key + mixer.heads * mixer.value)
        return inside + 4.0 * mixer.inner * mixer.key + 0.0 * sequence
    # For each token seen, a product of head_width for the score and one of value_width for the value: 2 FLOPs a number.
    width = 2 * mixer.heads * (mixer.head_width + mixer.value_width)
    if isinstance(mixer, Attention) and mixer.window:
        seen: Lengths = np.minimum(sequence, mixer.window)
        return width * (seen - seen**2 / (2 * sequence)) if model.causal else width * seen
    return width * sequence / 2 if model.causal else width * sequence


def product_flops(model: Model, kind: Kind) -> float:
    """FLOPs of one token in the matrix products of one layer, forward."""
    return sum(2.0 * p.inner * p.outer * p.copies for p in layer_products(model.hidden, kind))


def layer_flops(model: Model, kind: Kind, sequence: float) -> float:
    """FLOPs of one token in one layer, forward."""
    return product_flops(model, kind) + core_flops(model, kind.mixer, sequence)


def flops_per_token(model: Model, sequence: float) -> float:
    """Model FLOPs of one token, forward and backward, recomputation not counted; the head once, the embedding never.

    An extra prediction head is a layer, a projection of twice the hidden size to it, and the vocabulary once more.
    """
    forward = 2.0 * model.hidden * model.vocab * (1 + model.next_heads)
    for kind, layers in zip(model.kinds, model.counts, strict=True):
        forward += layers * layer_flops(model, kind, sequence)
    head = sum(layer_flops(model, kind, sequence) for kind in model.next_kinds) + 4.0 * model.hidden**2
    forward += model.next_heads * head
    return 3 * forward
