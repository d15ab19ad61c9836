"""Counting: parameters of a model and FLOPs of a token, exactly as its matrices say."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Model


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


def attention_products(model: Model) -> tuple[Product, ...]:
    """Projections around the attention core, in the order in which a token passes them."""
    h, a, latent = model.hidden, model.heads, model.latent
    if latent is None:
        width = model.head_width
        grouped = (a + 2 * model.kv_heads) * width
        return Product(h, grouped, "outer"), Product(a * width, h, "inner")
    head = latent.plain + latent.rotary
    query = (
        (Product(h, latent.query, "none"), Product(latent.query, a * head, "outer"))
        if latent.query
        else (Product(h, a * head, "outer"),)
    )
    return (
        *query,
        Product(h, latent.kv + latent.rotary, "none"),
        Product(latent.kv, a * (latent.plain + latent.value), "outer"),
        Product(a * latent.value, h, "inner"),
    )


def dense_products(model: Model) -> tuple[Product, ...]:
    """The dense feed-forward; gate and up projection count as one product of twice the width."""
    up = model.ffn * (2 if model.gated else 1)
    return Product(model.hidden, up, "outer"), Product(model.ffn, model.hidden, "inner")


def expert_products(model: Model) -> tuple[Product, ...]:
    """Router, shared and routed experts; none where the model has no experts."""
    e = model.experts
    if e is None:
        return ()
    gate = 2 if model.gated else 1
    shared = (
        (Product(model.hidden, e.shared * gate, "outer"), Product(e.shared, model.hidden, "inner")) if e.shared else ()
    )
    routed = (
        Product(model.hidden, e.width * gate, "outer", e.active, e.count),
        Product(e.width, model.hidden, "inner", e.active, e.count),
    )
    return Product(model.hidden, e.count, "none"), *shared, *routed


def layer_parameters(model: Model, *, experts: bool) -> int:
    """Parameters of one layer: matrices, norms and biases."""
    products = attention_products(model) + (expert_products(model) if experts else dense_products(model))
    matrices = sum(p.weights for p in products)
    biases = sum(p.outer * p.held for p in products) if model.biases else 0
    latent = model.latent
    inner_norms = latent.query + latent.kv if latent else 0
    return matrices + biases + inner_norms + 2 * model.hidden * (2 if model.biases else 1)


def routed_parameters(model: Model) -> int:
    """Parameters of one layer that expert parallelism spreads out."""
    return sum(p.weights for p in expert_products(model) if p.held > 1)


def embedding_parameters(model: Model) -> int:
    """Parameters of the input embedding, with learned positions."""
    return (model.vocab + model.positions) * model.hidden


def parameters(model: Model) -> int:
    """All parameters; a tied embedding counts once, extra prediction heads are left out as their authors do."""
    dense = model.layers - model.expert_layers
    body = dense * layer_parameters(model, experts=False) + model.expert_layers * layer_parameters(model, experts=True)
    head = 0 if model.tied else model.vocab * model.hidden
    return body + embedding_parameters(model) + head + model.hidden * (2 if model.biases else 1)


def active_parameters(model: Model) -> int:
    """Parameters that one token meets: of the routed experts only those that it is sent to."""
    e = model.experts
    if e is None:
        return parameters(model)
    idle = routed_parameters(model) * (e.count - e.active) // e.count
    return parameters(model) - model.expert_layers * idle


def core_flops(model: Model, sequence: float) -> float:
    """FLOPs of scores and values, forward, of one token of one layer; half of them where attention looks back only.

    ``12 s h`` dense and ``6 s h`` causal over forward and backward, where heads x head width is h.
    """
    value = model.latent.value if model.latent else model.head_width
    return 2 * sequence * model.heads * (model.head_width + value) * (0.5 if model.causal else 1)


def layer_flops(model: Model, sequence: float, *, experts: bool) -> float:
    """FLOPs of one token in one layer, forward."""
    products = attention_products(model) + (expert_products(model) if experts else dense_products(model))
    return sum(2.0 * p.inner * p.outer * p.copies for p in products) + core_flops(model, sequence)


def flops_per_token(model: Model, sequence: float) -> float:
    """Model FLOPs of one token, forward and backward, recomputation not counted; the head once, the embedding never."""
    moe = model.expert_layers
    last = model.has_experts(model.layers - 1)
    extra = model.next_heads * (layer_flops(model, sequence, experts=last) + 4.0 * model.hidden**2)
    body = (model.layers - moe) * layer_flops(model, sequence, experts=False)
    if moe:
        body += moe * layer_flops(model, sequence, experts=True)
    head = 2.0 * model.hidden * model.vocab * (1 + model.next_heads)
    return 3 * (body + extra + head)
