"""Ops as a reader of one file finds them: plain columns that all three ways from events to ops share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN
from .tables import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Ops of one file, in the order of their launch.

    Args:
        kind: uint8[ops].
        stage: int32[ops]; -1 where the file does not say.
        unit: micro-batch, int32[ops]; -1 where only the order tells.
        launched: the moment on the CPU by which steps are told, int64[ops], nanoseconds.
        start: int64[ops], nanoseconds.
        end: int64[ops], nanoseconds.
        remarks: what was left out, a clause each.
    """

    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]
    launched: Ints
    start: Ints
    end: Ints
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)


def column(values: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """A column, or None where no row of it is known."""
    return None if not len(values) or (values == UNKNOWN).all() else values


def after_receive(received: Ints, start: Ints, end: Ints) -> Ints:
    """Where the last receive that ends inside each span ends, or the span's start."""
    received = np.sort(received)
    at = np.searchsorted(received, end, side="right") - 1
    last = np.concatenate([[np.iinfo(np.int64).min], received])[at + 1]
    later: Ints = np.maximum(start, last)
    return later


def before_send(sent: Ints, worked: Ints, end: Ints) -> Ints:
    """Where the first send behind the first work of each span is posted, or the span's end.

    Args:
        sent: when sends were posted, nanoseconds.
        worked: when the first piece of work inside each span was done.
        end: of each span.
    """
    sent = np.sort(sent)
    first = np.append(sent, np.iinfo(np.int64).max)[np.searchsorted(sent, worked)]
    earlier: Ints = np.minimum(end, first)
    return earlier
