"""The eight steps that DualPipe and DualPipeV share: two pipelines cross a rank, and F of one overlaps B of the other.

Source: DeepSeek-AI, DeepSeek-V3 technical report, https://arxiv.org/abs/2412.19437, section 3.2.1, and
https://github.com/deepseek-ai/DualPipe.

A rank at distance h from the side where lane 0 enters, n-1-h from the end, runs k ops of each kind in each lane. In
front of the letter stands the lane; brackets hold an overlapped pair. Steps:
    (1) 2(n-h-1) × 0F
    (2) h+1 × (0F 1F)
    (3) n-h-1 × (1I 1W 1F)
    (4) k-2n+h+1 × ([0F & 1B] [1F & 0B]); where the lanes meet (h = n-1), the very first pair one after the other
    (5) n-h-1 × (1B [1F & 0B])
    (6) h+1 × (1B 0B), of which the second half are I instead of B
    (7) n-h-1 × (oldest W, 0I)
    (8) h+1 × oldest W
"""

from __future__ import annotations

from .rows import B1, F1, I1, W1, B, F, I, joined, weights_of


def eight_steps(n: int, h: int, k: int) -> bytes:
    """The row of a rank; k must be at least 2n."""
    end = n - 1 - h
    pair_0, pair_1 = joined(F, B1), joined(F1, B)
    first = F + B1 if end == 0 else pair_0
    ending = ((h + 1) * (B1 + B))[: h + 1] + ((h + 1) * (I1 + I))[h + 1 :]  # (6)
    weights = weights_of(ending + end * I)
    return (
        2 * end * F  # (1)
        + (h + 1) * (F + F1)  # (2)
        + end * (I1 + W1 + F1)  # (3)
        + first  # (4)
        + pair_1
        + (k - 2 * n + h) * (pair_0 + pair_1)
        + end * (B1 + pair_1)  # (5)
        + ending
        + b"".join(weights[i : i + 1] + I for i in range(end))  # (7)
        + weights[end:]  # (8)
    )
