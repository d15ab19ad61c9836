"""Held: what a device has of one layer, and the traffic of its gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..config.layout import PRECISIONS
from .count import layer_parameters, routed_parameters
from .setting import Setting

Column = NDArray[np.float64]


def parameters_on_device(at: Setting, experts: bool) -> Column:
    """Parameters of one layer that a device of the tensor and expert groups works on."""
    own, routed = own_and_routed(at, experts)
    return own + routed


def own_and_routed(at: Setting, experts: bool) -> tuple[Column, Column]:
    """Of those, what all of data x context hold, and what is of experts: 1 / (e et) of all."""
    routed = routed_parameters(at.model) if experts else 0
    own = layer_parameters(at.model, experts=experts) - routed
    return own / at.layouts.tensor, routed / (at.layouts.expert * at.layouts.expert_tensor)


def accumulated_bytes(at: Setting, own: Column) -> Column:
    """Traffic of adding one micro-batch's gradients: 12 bytes a parameter into fp32, 8 into 16 bits."""
    return np.where(at.layouts.precision == PRECISIONS.index("fp16"), 8.0, 12.0) * own
