"""Profile: how long one layer of a transformer, and the model's ends, take on the device here, forward and backward.

The layer is built from its sizes as one device of a tensor group holds it, without its collectives: attention with
grouped heads or latent ones, a plain or gated feed-forward or a mixture of experts, each behind a norm and around a
residual. Every device of a group works on the whole residual and on its share of heads and widths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import Refusal


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
        self.mix: nn.Module = _Grouped(sizes)
        if sizes.latent:
            self.mix = _Latent(sizes, sizes.latent)
        self.feed: nn.Module = _FeedForward(sizes, sizes.ffn)
        if sizes.experts:
            self.feed = _Mixture(sizes, sizes.experts)
        self.norms = nn.ModuleList([norm(sizes), norm(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward."""
        x = x + self.mix(self.norms[0](x))
        out: Tensor = x + self.feed(self.norms[1](x))
        return out


def norm(sizes: LayerSizes) -> nn.Module:
    """A norm over the residual."""
    if sizes.biases:
        return nn.LayerNorm(sizes.hidden)
    return nn.RMSNorm(sizes.hidden)


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
        if sizes.rotary:
            q, k = _turned(q), _turned(k)
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
        self.up = nn.Linear(sizes.hidden, width * _halves(sizes), bias=sizes.biases)
        self.down = nn.Linear(width, sizes.hidden, bias=sizes.biases)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(activated(self.up(x), self.gated))
        return out


def _halves(sizes: LayerSizes) -> int:
    """Matrices of the way up: a gated feed-forward has the gate's beside it, in one product."""
    return 2 if sizes.gated else 1


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
        self.up = nn.Parameter(torch.randn(experts.held, sizes.hidden, experts.width * _halves(sizes)) * 0.02)
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
        if self.shared is not None:
            out = out + self.shared(x)
        return out


WARM_UP = 3
FEW = 5  # repeats of what is timed as a check alone
USUAL = 1.48  # standard deviation over the median distance from the median
ROOM = 0.25  # of the memory that is free, which logits may take up
LOGIT = 16  # bytes of a logit in 16 bits, in 32, its gradient and the softmax
SEED = 20
_FULL = ("out of memory", "allocate memory")  # what torch says of a GPU, and of a CPU


@dataclass(frozen=True, slots=True)
class Shape:
    """What is timed: so many samples of so many tokens, repeated, after some that are not measured."""

    samples: int
    tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a forward and of a backward, medians; ``spread`` is the relative standard error of their sum."""

    forward: float
    backward: float
    spread: float


def name_of(device: str) -> str:
    """What the device calls itself; ``CPU`` where it is one."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return "CPU"


def time_layer(sizes: LayerSizes, shape: Shape, device: str) -> Timed:
    """Time one layer.

    Args:
        sizes: of the layer.
        shape: of a micro-batch.
        device: ``cpu``, in 32 bits, or ``cuda``, in bfloat16.

    Raises:
        Refusal: the device has no room for it.
    """
    made: Timed = _guarded(lambda: _timed(_built(Layer(sizes), device), _residual(sizes, shape, device), shape.repeats))
    return made


def time_ends(sizes: LayerSizes, shape: Shape, device: str) -> tuple[Timed, Timed] | None:
    """Time the embedding, and the head with the loss; None where logits would take up much of the memory.

    Raises:
        Refusal: the device has no room for it.
    """
    logits = LOGIT * shape.samples * shape.tokens * sizes.vocab
    if logits > ROOM * _free(device):
        return None
    shape = replace(shape, repeats=min(shape.repeats, FEW))
    words = torch.randint(sizes.vocab, (shape.samples, shape.tokens), device=device)

    def both() -> tuple[Timed, Timed]:
        table = _timed(_built(nn.Embedding(sizes.vocab, sizes.hidden), device), words, shape.repeats)
        return table, _timed(_built(_Head(sizes, words), device), _residual(sizes, shape, device), shape.repeats)

    made: tuple[Timed, Timed] = _guarded(both)
    return made


class _Head(nn.Module):
    """The last norm, the product with the vocabulary, and the loss over logits in 32 bits."""

    def __init__(self, sizes: LayerSizes, words: Tensor) -> None:
        super().__init__()
        self.norm, self.out, self.words = norm(sizes), nn.Linear(sizes.hidden, sizes.vocab, bias=False), words

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(logits, self.words.flatten())


def _built(module: nn.Module, device: str) -> nn.Module:
    return module.to(device, _precision(device))


def _precision(device: str) -> torch.dtype:
    """GPUs are timed in what models are trained in; few CPUs have units for it, and would show their emulation."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def _residual(sizes: LayerSizes, shape: Shape, device: str) -> Tensor:
    torch.manual_seed(SEED)
    made = torch.randn(shape.samples, shape.tokens, sizes.hidden, device=device, dtype=_precision(device))
    return made.requires_grad_()


def _timed(module: nn.Module, given: Tensor, repeats: int) -> Timed:
    """One after the other without a pause, as a pipeline's rank runs them, so that a slow host shows."""
    gradient = torch.ones_like(module(given))  # and the first call, in which kernels are chosen, is not timed
    clock: _Events | _Clock = _Events() if given.is_cuda else _Clock()
    for _ in range(WARM_UP + repeats):
        clock.mark()
        out = module(given)
        clock.mark()
        out.backward(gradient)
        clock.mark()
    forward, backward = clock.seconds()[WARM_UP:].T
    total = forward + backward
    scatter = USUAL * float(np.median(np.abs(total - np.median(total))))
    of_median = 1.25 / repeats**0.5  # its standard error over the standard deviation
    return Timed(float(np.median(forward)), float(np.median(backward)), of_median * scatter / float(np.median(total)))


class _Clock:
    """Moments on the host."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def mark(self) -> None:
        self.moments.append(time.perf_counter())

    def seconds(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Of each forward and each backward, [repeats, 2]."""
        marks = np.array(self.moments).reshape(-1, 3)
        return np.diff(marks, axis=1)


class _Events:
    """Moments on the device's own queue, read once all is done."""

    def __init__(self) -> None:
        self.moments: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.moments.append(event)

    def seconds(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Of each forward and each backward, [repeats, 2]."""
        torch.cuda.synchronize()
        since = [self.moments[0].elapsed_time(event) / 1e3 for event in self.moments]
        return np.diff(np.array(since).reshape(-1, 3), axis=1)


def _free(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    pages = "SC_AVPHYS_PAGES"
    if pages not in os.sysconf_names:
        pages = "SC_PHYS_PAGES"  # macOS does not say what is free, only what there is
    return float(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE"))


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RuntimeError as error:
        if not any(words in str(error) for words in _FULL):
            raise
        raise Refusal("the device has no room for one layer: give --tensor, or a smaller --micro-batch") from error
