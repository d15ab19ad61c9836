"""Time of kernels: matrix products by their shape, attention by its length, element-wise work by its bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .constants import Constants
from .hardware import Hardware

Column = NDArray[np.float64]
TILE = 128  # rows and columns of the result that one multiprocessor works on at a time
ALIGNED = 8  # elements of 2 bytes in 16: widths that are no multiple of it leave the matrix units idle (cuBLAS guide)


def product_time(
    device: Hardware, constants: Constants, sides: tuple[Column, Column, Column], rate: Column, count: Column
) -> Column:
    """Seconds of ``count`` products of [rows, inner] by [inner, outer] that run as one batch, on one device.

    The device's achievable rate, less what the last wave of tiles and the ends of each tile's loop leave idle, or the
    traffic of operands and result where that takes longer; and one launch.

    Args:
        device: on what.
        constants: of the generic model.
        sides: rows, inner (summed over) and outer of each product.
        rate: peak FLOP/s of the precision.
        count: products in the batch.
    """
    rows, inner, outer = sides
    waves = np.ceil(rows / TILE) * np.ceil(outer / TILE) * count / device.units
    full = waves / (waves + constants.half_units)
    deep = inner / (inner + constants.half_inner)
    arithmetic = 2 * rows * inner * outer / (rate * device.achievable * device.sustained * full * deep)
    moved = 2 * (rows * inner + inner * outer + rows * outer) / (device.memory_rate * constants.stream)
    busy: Column = count * np.maximum(arithmetic, moved) + constants.launch
    return busy


def stream_time(device: Hardware, constants: Constants, moved: Column, kernels: int) -> Column:
    """Seconds of so many element-wise kernels that together move these bytes to and from memory, on one device."""
    return moved / (device.memory_rate * constants.stream) + kernels * constants.launch
