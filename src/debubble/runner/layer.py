"""One layer of a transformer by its sizes, as one device of a tensor group holds it, without its collectives.

Attention with grouped heads or latent ones, a plain or gated feed-forward or a mixture of experts, each behind a norm
and around a residual; every device of a group works on the whole residual and on its share of heads and widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Latent:
    """Widths of latent attention: of the compressed keys and values, of the compressed queries (0: not), of a head."""

    kv: int
    query: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: in all, held here, passed by a token, width of one, width that every token passes."""

    count: int
    held: int
    active: int
    width: int
    shared: int


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What a layer on one device is made of.

    Args:
        hidden: width of the residual.
        heads: query heads on this device; ``kv_heads`` likewise.
        kv_heads: see ``heads``.
        head: width of a head of queries and keys.
        ffn: intermediate width on this device, of a layer without experts.
        vocab: entries of the vocabulary on this device.
        gated: whether the feed-forward has three matrices.
        biases: whether products have biases, and norms subtract the mean.
        rotary: whether positions are turned into heads.
        latent: latent attention, or None.
        experts: a mixture of experts in place of the feed-forward, or None.
    """

    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int
    gated: bool = True
    biases: bool = False
    rotary: bool = True
    latent: Latent | None = None
    experts: Experts | None = None


class Layer(nn.Module):
    """The layer; takes and returns the residual, [samples, tokens, hidden]."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.mix: nn.Module = _Latent(sizes, sizes.latent) if sizes.latent else _Grouped(sizes)
        self.feed: nn.Module = _Mixture(sizes, sizes.experts) if sizes.experts else _FeedForward(sizes, sizes.ffn)
        self.norms = nn.ModuleList([norm(sizes), norm(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward."""
        x = x + self.mix(self.norms[0](x))
        out: Tensor = x + self.feed(self.norms[1](x))
        return out


def norm(sizes: LayerSizes) -> nn.Module:
    """A norm over the residual."""
    return nn.LayerNorm(sizes.hidden) if sizes.biases else nn.RMSNorm(sizes.hidden)


@lru_cache(maxsize=8)  # as every framework keeps them
def _angles(tokens: int, width: int, device: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position and frequency, [tokens, width] both."""
    slow = 10_000 ** (torch.arange(0, width, 2, device=device) / width)
    angle = (torch.arange(tokens, device=device)[:, None] / slow).repeat(1, 2)
    return angle.cos().to(kind), angle.sin().to(kind)


def _turned(x: Tensor) -> Tensor:
    """Rotary positions on [samples, heads, tokens, width]."""
    cos, sin = _angles(x.shape[-2], x.shape[-1], x.device, x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class _Grouped(nn.Module):
    """Attention whose keys and values serve several heads of queries each."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.into = nn.Linear(sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * sizes.head, bias=sizes.biases)
        self.out = nn.Linear(sizes.heads * sizes.head, sizes.hidden, bias=sizes.biases)

    def forward(self, x: Tensor) -> Tensor:
        sizes, (samples, tokens, _) = self.sizes, x.shape
        heads = self.into(x).view(samples, tokens, -1, sizes.head).transpose(1, 2)
        q, k, v = heads.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), dim=1)
        q, k = (_turned(q), _turned(k)) if sizes.rotary else (q, k)
        grouped = sizes.kv_heads < sizes.heads
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(samples, tokens, -1))
        return out


class _Latent(nn.Module):
    """Attention whose keys and values pass through a narrow layer (https://arxiv.org/abs/2405.04434, section 2.1)."""

    def __init__(self, sizes: LayerSizes, latent: Latent) -> None:
        super().__init__()
        self.sizes, self.latent = sizes, latent
        narrow = latent.query or sizes.hidden
        self.down_q = nn.Linear(sizes.hidden, narrow, bias=False) if latent.query else nn.Identity()
        self.up_q = nn.Linear(narrow, sizes.heads * sizes.head, bias=False)
        self.down_kv = nn.Linear(sizes.hidden, latent.kv + latent.rotary, bias=False)
        self.up_kv = nn.Linear(latent.kv, sizes.heads * (sizes.head - latent.rotary + latent.value), bias=False)
        self.out = nn.Linear(sizes.heads * latent.value, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sizes, latent, (samples, tokens, _) = self.sizes, self.latent, x.shape
        plain = sizes.head - latent.rotary
        q = self.up_q(self.down_q(x)).view(samples, tokens, sizes.heads, sizes.head).transpose(1, 2)
        narrow, turning = self.down_kv(x).split((latent.kv, latent.rotary), dim=-1)
        wide = self.up_kv(narrow).view(samples, tokens, sizes.heads, -1).transpose(1, 2)
        k, v = wide.split((plain, latent.value), dim=-1)
        q = torch.cat((q[..., :plain], _turned(q[..., plain:])), dim=-1)
        k = torch.cat((k, _turned(turning[:, None]).expand(-1, sizes.heads, -1, -1)), dim=-1)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(samples, tokens, -1))
        return out


class _FeedForward(nn.Module):
    def __init__(self, sizes: LayerSizes, width: int) -> None:
        super().__init__()
        self.gated = sizes.gated
        self.up = nn.Linear(sizes.hidden, width * (2 if sizes.gated else 1), bias=sizes.biases)
        self.down = nn.Linear(width, sizes.hidden, bias=sizes.biases)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(activated(self.up(x), self.gated))
        return out


def activated(x: Tensor, gated: bool) -> Tensor:
    """GELU, or SiLU of one half times the other."""
    if not gated:
        return functional.gelu(x)
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


class _Mixture(nn.Module):
    """Experts that all get as many tokens: the router's product is done, its choice is not followed.

    An even load is what routers are trained for, and what the cost model assumes.
    """

    def __init__(self, sizes: LayerSizes, experts: Experts) -> None:
        super().__init__()
        self.experts, self.gated = experts, sizes.gated
        self.router = nn.Linear(sizes.hidden, experts.count, bias=False)
        wide = experts.width * (2 if sizes.gated else 1)
        self.up = nn.Parameter(torch.randn(experts.held, sizes.hidden, wide) * 0.02)
        self.down = nn.Parameter(torch.randn(experts.held, experts.width, sizes.hidden) * 0.02)
        self.shared = _FeedForward(sizes, experts.shared) if experts.shared else None

    def forward(self, x: Tensor) -> Tensor:
        e, flat = self.experts, x.reshape(-1, x.shape[-1])
        weight = self.router(flat).softmax(dim=-1).topk(e.active, dim=-1).values.reshape(-1, 1)
        rows = -(-len(flat) * e.active // e.held)  # of each expert; the last may be filled up with tokens once more
        sent = torch.arange(e.held * rows, device=x.device) % (len(flat) * e.active)
        token = sent // e.active
        inner = activated(torch.bmm(flat[token].view(e.held, rows, -1), self.up), self.gated)
        back = torch.bmm(inner, self.down).view(len(sent), -1) * weight[sent]
        out = torch.zeros_like(flat).index_add(0, token, back).view_as(x)
        return out if self.shared is None else out + self.shared(x)
