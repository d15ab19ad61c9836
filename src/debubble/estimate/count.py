"""Counting: parameters of a model and FLOPs of a token, exactly as its matrices say."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Experts, FeedForward, Kind, LatentAttention, Mixer, Model


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
    return mixer_products(hidden, kind.mixer) + feed_forward_products(hidden, kind.feed_forward)


def mixer_products(hidden: int, mixer: Mixer) -> tuple[Product, ...]:
    """Projections around the attention core."""
    if isinstance(mixer, LatentAttention):
        return _latent_products(hidden, mixer)
    queries, keys_and_values = mixer.heads * mixer.head_width, 2 * mixer.kv_heads * mixer.head_width
    return Product(hidden, queries + keys_and_values, "outer"), Product(queries, hidden, "inner")


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

    Two norms a layer: a weight each for RMSNorm, weight and bias for the LayerNorm of models with biases. Latent
    attention normalises what it compresses too.
    """
    products = layer_products(model.hidden, kind)
    matrices = sum(product.weights for product in products)
    norms = 2 * model.hidden
    if isinstance(kind.mixer, LatentAttention):
        norms += kind.mixer.query + kind.mixer.kv
    if not model.biases:
        return matrices + norms
    biases = sum(product.outer * product.held for product in products)
    return matrices + biases + norms + 2 * model.hidden


def routed_parameters(model: Model, kind: Kind) -> int:
    """Parameters of one layer that expert parallelism spreads out; 0 for a dense layer."""
    if not kind.experts:
        return 0
    products = feed_forward_products(model.hidden, kind.feed_forward)
    return sum(product.weights for product in products if product.held > 1)


def embedding_parameters(model: Model) -> int:
    """Parameters of the input embedding, with learned positions."""
    return (model.vocab + model.positions) * model.hidden


def parameters(model: Model) -> int:
    """All parameters; a tied embedding counts once, extra prediction heads are left out as their authors do."""
    total = embedding_parameters(model)
    if not model.tied:
        total += model.vocab * model.hidden
    total += model.hidden * (2 if model.biases else 1)  # the norm after the last layer
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


def core_flops(model: Model, mixer: Mixer, sequence: float) -> float:
    """FLOPs of scores and values, forward, of one token of one layer; half of them if attention looks back only.

    ``12 s h`` dense and ``6 s h`` causal over forward and backward, if heads x head width is h.
    """
    dense = 2 * sequence * mixer.heads * (mixer.head_width + mixer.value_width)
    return dense / 2 if model.causal else dense


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
    forward += model.next_heads * (layer_flops(model, model.last_kind, sequence) + 4.0 * model.hidden**2)
    return 3 * forward
