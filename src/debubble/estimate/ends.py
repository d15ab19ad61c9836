"""The ends of a pipeline: seconds that the embedding adds to the first stage, and the head and loss to the last."""

from __future__ import annotations

import numpy as np

from .layer import Pass, Setting
from .network import ring_time
from .products import product_time, stream_time


def embedding_time(at: Setting) -> Pass:
    """Rows gathered from a table that the tensor group shares, an all-reduce, and a scatter backward."""
    moved = 4 * at.tokens * at.model.hidden
    gathered = stream_time(at.cluster.device, at.constants, moved, 3)
    tensor = at.layouts.tensor
    reduced = ring_time(at.cluster, at.constants, tensor, at.near(np.ones_like(tensor), tensor), moved / 2, halves=2)
    return Pass(gathered + reduced, 2 * gathered, np.zeros_like(gathered))


def head_time(at: Setting) -> tuple[Pass, Pass]:
    """Kernels and collectives of the product with the vocabulary and of the loss over fp32 logits."""
    device, constants, tensor = at.cluster.device, at.constants, at.layouts.tensor
    heads = 1 + at.model.next_heads
    hidden, outer = np.full_like(tensor, at.model.hidden), at.model.vocab / tensor
    one = np.ones_like(tensor)
    forward = product_time(device, constants, at.tokens, (hidden, outer), at.rate16, one)
    inputs = product_time(device, constants, at.tokens, (outer, hidden), at.rate16, one)
    weight = product_time(device, constants, hidden, (at.tokens, outer), at.rate16, one)
    logits = at.tokens * outer
    loss = stream_time(device, constants, 20 * logits, 6)  # cast, largest, exponentials, sum
    gradient = stream_time(device, constants, 12 * logits, 4)
    nothing = np.zeros_like(forward)
    near = at.near(one, tensor)
    reduced = ring_time(at.cluster, constants, tensor, near, 2 * at.tokens * at.model.hidden, halves=2)
    kernels = Pass(heads * (forward + loss), heads * (inputs + weight + gradient), nothing)
    return kernels, Pass(nothing, heads * reduced, nothing)
