"""Documents: what ``--json`` prints, with keys that scripts may rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .console import put

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..config.layout import Layout
    from ..core.account import Account

MILLISECOND = 1_000_000  # nanoseconds
PARTS = ("compute", "warm_up", "waiting", "transfer", "cool_down")


def per_rank(account: Account, peak: NDArray[np.float64]) -> list[dict[str, float]]:
    """One line a rank: its five parts, which sum to the window, and the most activations it holds.

    Args:
        account: where time went.
        peak: activations in micro-batches of the rank, float64[ranks].
    """
    parts = {f"{part}_ms": getattr(account, part) / MILLISECOND for part in PARTS}
    return [
        {"rank": rank, **{name: float(column[rank]) for name, column in parts.items()}, "peak_activations": float(most)}
        for rank, most in enumerate(peak)
    ]


def bubbles(account: Account) -> dict[str, float | str]:
    """The three numbers called bubble, each by its name, and where they come from."""
    return {
        "idle_share": account.idle_share,
        "bubble_ratio": account.bubble_ratio,
        "span_idle_share": account.span_idle_share,
        "evidence": account.evidence,
    }


def emit(document: dict[str, Any]) -> None:
    """Print one JSON object; what is infinite or not a number becomes null."""
    import msgspec

    put(msgspec.json.format(msgspec.json.encode(document)).decode())


def layout_row(layout: Layout) -> dict[str, Any]:
    """The sizes of a layout, with which every row of ``candidates`` begins."""
    names = ("gpus", "tensor", "pipeline", "data", "context", "expert", "chunks")
    batch = ("micro_batch", "microbatches", "global_batch", "schedule")
    return {name: getattr(layout, name) for name in (*names, *batch)}
