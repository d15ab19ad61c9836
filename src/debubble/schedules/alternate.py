"""The pattern that many schedules share: some forwards, then one forward and one backward in turn, then the rest.

warm-up 3, n = 5             F F F  F B F B  B B B
the same, split, lag 1       F F F  F I F I W  I W I W I W  W
"""

from __future__ import annotations

from .rows import B, F, I, W


def alternate(warm_up: int, n: int, lag: int | None = None) -> bytes:
    """The row of a rank with n forwards and n backwards.

    Args:
        warm_up: forwards before forwards and backwards alternate; all of them where that is more than n.
        n: forwards, and backwards.
        lag: split the backward, and let the j-th W follow the (j + lag)-th I, so that at most lag of them are
            waiting; None for full backwards.
    """
    w = min(warm_up, n)
    if lag is None:
        return w * F + (n - w) * (F + B) + w * B
    waiting = min(lag, n)
    early = min(waiting, n - w)  # the first I, which no W follows, may end among the forwards or behind them
    steady = early * (F + I) + (n - w - early) * (F + I + W)
    cool_down = (waiting - early) * I + (w - waiting + early) * (I + W)
    return w * F + steady + cool_down + waiting * W
