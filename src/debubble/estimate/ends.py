"""The ends of a pipeline: seconds that the embedding adds to the first stage, and the head and loss to the last."""

from __future__ import annotations

import numpy as np

from .held import accumulated_bytes
from .network import ring_time
from .products import product_time, stream_time
from .setting import Pass, Setting


def embedding_time(at: Setting) -> Pass:
    """Rows gathered from a table that the tensor group shares, an all-reduce, and a scatter backward."""
    moved = 4 * at.tokens * at.model.hidden
    gathered = stream_time(at.cluster.device, at.constants, moved, 3)
    tensor = at.layouts.tensor
    reduced = ring_time(at.network, at.ring(tensor), moved / 2, reduce=True)
    table = accumulated_bytes(at, at.model.vocab * at.model.hidden / tensor)
    scattered = 2 * gathered + stream_time(at.cluster.device, at.constants, table, 2)
    return Pass(gathered + reduced, scattered, np.zeros_like(gathered))


def head_time(at: Setting) -> tuple[Pass, Pass]:
    """Kernels and collectives of the product with the vocabulary and of the loss over fp32 logits."""
    device, constants, tensor = at.cluster.device, at.constants, at.layouts.tensor
    heads = 1 + at.model.next_heads
    hidden, outer = np.full_like(tensor, at.model.hidden), at.model.vocab / tensor
    one = np.ones_like(tensor)
    forward = product_time(device, constants, (at.tokens, hidden, outer), at.rate16, one)
    inputs = product_time(device, constants, (at.tokens, outer, hidden), at.rate16, one)
    weight = product_time(device, constants, (hidden, at.tokens, outer), at.rate16, one)
    logits = at.tokens * outer
    loss = stream_time(device, constants, 36 * logits, 8)  # cast, largest, difference, exponential, sum, quotient
    summed = accumulated_bytes(at, hidden * outer)
    gradient = stream_time(device, constants, 22 * logits + summed, 4)  # copy, difference, cast; and its weights
    nothing = np.zeros_like(forward)
    reduced = ring_time(at.network, at.ring(tensor), 2 * at.tokens * at.model.hidden, reduce=True)
    kernels = Pass(heads * (forward + loss), heads * (inputs + weight + gradient), nothing)
    return kernels, Pass(nothing, heads * reduced, nothing)
