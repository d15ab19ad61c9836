"""Counting: parameters of a model and FLOPs of a token, exactly as its matrices say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .model import Attention, Experts, FeedForward, Kind, LatentAttention, Mixer, Model, Recurrent

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
