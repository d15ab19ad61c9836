"""The setting: a model, where it runs and how it is laid out; and a pass, the three times of all that runs in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.layout import PRECISIONS, Layouts
from .constants import CONSTANTS, GENERIC, Calibration, Constants
from .hardware import Cluster
from .model import Model

Column = NDArray[np.float64]  # one number for each layout


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Seconds of the forward, the backward and the forward that is run again, float64[n] each."""

    forward: Column
    backward: Column
    again: Column

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def scaled(self, factor: Column | float) -> Pass:
        """All three times a factor."""
        return Pass(self.forward * factor, self.backward * factor, self.again * factor)

    @property
    def both(self) -> Column:
        """Forward and backward, without what is run again."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Devices that reduce, gather or exchange together.

    Args:
        members: devices in it, float64[n].
        near: of them, how many share a node: their cards carry its traffic together.
    """

    members: Column
    near: Column

    @property
    def crossings(self) -> Column:
        """Steps of a ring over it that leave a node."""
        return np.where(self.members > self.near, self.members / self.near, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What every function of this room needs: the model, where it runs, its layouts, and the constants."""

    model: Model
    cluster: Cluster
    layouts: Layouts
    constants: Constants = CONSTANTS
    factors: Calibration = GENERIC

    @property
    def tokens(self) -> Column:
        """Tokens of a micro-batch on one tensor group."""
        return self.layouts.micro_batch * self.layouts.sequence / self.layouts.context

    @property
    def peak(self) -> Column:
        """Peak FLOP/s of the precision of each layout."""
        peaks = np.array([self.cluster.device.peak(name) for name in PRECISIONS])
        chosen: Column = peaks[self.layouts.precision.astype(np.int64)]
        return chosen

    @property
    def peak_16bit(self) -> Column:
        """Peak FLOP/s at 16 bits: attention and the head stay there whatever the precision."""
        return np.full(len(self.layouts), self.cluster.device.peak("bf16"))

    @property
    def residual_shards(self) -> Column:
        """Devices among which the residual is split between products: the tensor group with sequence parallelism."""
        return np.where(self.layouts.sequence_parallel > 0, self.layouts.tensor, 1.0)

    @property
    def is_fp16(self) -> NDArray[np.bool_]:
        """Which layouts accumulate gradients in 16 bits (fp16); all others do in fp32."""
        chosen: NDArray[np.bool_] = self.layouts.precision == PRECISIONS.index("fp16")
        return chosen

    def group(self, members: Column, stride: Column | float = 1.0) -> Group:
        """A group whose members are ``stride`` devices apart."""
        return Group(members, np.clip(np.floor(self.cluster.gpus_per_node / stride), 1, members))
