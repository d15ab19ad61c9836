"""A model: the kinds of layer that it is made of, and the order in which they come.

A *kind* is a mixer (how tokens see each other) and a feed-forward, or one of the two alone. Most models have one kind,
mixtures of experts often two (the first layers keep a dense feed-forward), hybrids three or more (attention, a
recurrent mixer, experts). Parameters, FLOPs and bytes follow from kinds; a stage of a pipeline is described by how many
layers of each kind it holds.
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
