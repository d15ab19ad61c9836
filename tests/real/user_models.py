"""Models as users write them: tied embeddings, frozen parts, layers that are views, and what no pipeline can train."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

WIDTH, WORDS, LENGTH = 16, 24, 6


class Block(nn.Module):
    """A residual block, with dropout where asked for."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Dropout(drop)

    def forward(self, x):
        return x + self.drop(self.narrow(functional.gelu(self.wide(x))))


class Lookup(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, words):
        return functional.embedding(words, self.table)


class Logits(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, x):
        return x @ self.table.T


class Fails(nn.Module):
    """Does something wrong in its n-th forward."""

    def __init__(self, how: str, after: int) -> None:
        super().__init__()
        self.line, self.how, self.left = nn.Linear(WIDTH, WIDTH), how, after

    def forward(self, x):
        self.left -= 1
        out = self.line(x)
        if self.left >= 0:
            return out
        if self.how == "leaves":
            import os

            os._exit(7)
        if self.how == "hangs":
            import time

            time.sleep(10_000)
        if self.how == "cuts":
            return out[..., :8].contiguous()
        if self.how == "nan":
            return out * float("nan")
        if self.how == "detached":
            return out.detach()
        raise ValueError("boom \x1b[31m in the middle")


def vectors(step, samples):
    dice = torch.Generator().manual_seed(step)
    return torch.randn(samples, LENGTH, WIDTH, generator=dice), torch.randn(samples, LENGTH, WIDTH, generator=dice)


def words(step, samples):
    text = torch.randint(WORDS, (samples, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def squares(output, target):
    return (output - target).square().mean()


def surprise(output, target):
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def plain(stages):
    """As many blocks as stages: another model for another number of stages."""
    torch.manual_seed(3)
    return [Block() for _ in range(stages)], squares, vectors


def tied(stages):
    """The first and the last stage share one table; eight blocks, however they are cut."""
    torch.manual_seed(3)
    table = nn.Parameter(torch.randn(WORDS, WIDTH) / 4)
    layers = [Lookup(table), *(Block() for _ in range(8)), Logits(table)]
    cuts = [round(len(layers) * k / stages) for k in range(stages + 1)]
    return [nn.Sequential(*layers[a:b]) for a, b in pairwise(cuts)], surprise, words


def linear(stages):
    """Stages that are one product each; its output is a view."""
    torch.manual_seed(3)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(stages)], squares, vectors


def frozen_middle(stages):
    made = plain(stages)
    made[0][1].requires_grad_(False)
    return made


def frozen_first(stages):
    made = plain(stages)
    made[0][0].requires_grad_(False)
    return made


def dropout(stages):
    torch.manual_seed(3)
    return [Block(0.3) for _ in range(stages)], squares, vectors


def unseeded(stages):
    return [nn.Linear(WIDTH, WIDTH).requires_grad_(True) for _ in range(stages) if torch.seed()], squares, vectors


def no_loss(stages):
    return plain(stages)[0], lambda output, target: None, vectors


def loss_of_each(stages):
    return plain(stages)[0], lambda output, target: (output - target).square(), vectors


def raises(stages):
    raise KeyError("no such corpus")


def leaves(stages):
    raise SystemExit(9)


def _failing(how, after):
    def make(stages):
        made = plain(stages)
        if stages > 2:
            made[0][2] = Fails(how, after)
        return made

    return make


cuts_at_once, detached_at_once, nan_at_once = (_failing(how, 0) for how in ("cuts", "detached", "nan"))
boom_at_once = _failing("raises", 0)
boom_later, exits_later, hangs_later = (_failing(how, 12) for how in ("raises", "leaves", "hangs"))
cuts_later, nan_later = _failing("cuts", 12), _failing("nan", 12)
