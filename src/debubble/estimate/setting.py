"""The setting: a model, where it runs and how it lies there; and a pass, the three times of all that runs in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.layout import PRECISIONS, Layouts
from .constants import CONSTANTS, Constants
from .factors import GENERIC, Calibration
from .hardware import Cluster
from .model import Model
from .network import Network, Ring

Column = NDArray[np.float64]


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
class Setting:
    """What every function of this room needs: the model, where it runs, how it lies there, and the constants."""

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
    def rate(self) -> Column:
        """Peak FLOP/s of the precision of each layout."""
        peaks = np.array([self.cluster.device.peak(name) for name in PRECISIONS])
        found: Column = peaks[self.layouts.precision.astype(np.int64)]
        return found

    @property
    def rate16(self) -> Column:
        """Peak FLOP/s at 16 bits: attention and the head stay there."""
        return np.full(len(self.layouts), self.cluster.device.peak("bf16"))

    @property
    def spread(self) -> Column:
        """Devices among which norms and dropout are split: the tensor group with sequence parallelism, else 1."""
        return np.where(self.layouts.sequence_parallel > 0, self.layouts.tensor, 1.0)

    @property
    def blocking(self) -> NDArray[np.bool_]:
        """Where a hop takes up both of its ranks and passes no other."""
        return self.layouts.blocking_sends > 0

    @property
    def network(self) -> Network:
        """Links and cards."""
        return Network(self.cluster, self.constants)

    def ring(self, members: Column, stride: Column | float = 1.0) -> Ring:
        """A group whose members are ``stride`` devices apart."""
        return Ring(members, np.clip(np.floor(self.cluster.gpus_per_node / stride), 1, members))
