"""The setting: a model, where it runs and how it is laid out; and a pass, the three times of all that runs in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.layout import PRECISIONS
from ..config.plan import Layouts
from .constants import CONSTANTS, GENERIC, Calibration, Constants
from .hardware import Cluster
from .model import Model

Column = NDArray[np.float64]  # one number for each layout

NUMBER_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 2.0, "fp4": 2.0, "tf32": 4.0, "fp32": 4.0}
# Blocks of fp4 share a scale: 16 numbers one of 8 bits, as in NVFP4.
OPERAND_BYTES = NUMBER_BYTES | {"fp8": 1.0, "fp4": 0.5 + 1 / 16}


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
        return self._by_precision({name: self.cluster.device.peak(name) for name in PRECISIONS})

    @property
    def peak_16bit(self) -> Column:
        """Peak FLOP/s at 16 bits, where attention and the head stay in fp8 and fp4; full precision stays full."""
        bf16 = self.cluster.device.peak("bf16")
        return np.where(self.number_bytes > 2, self.peak, bf16)

    @property
    def residual_shards(self) -> Column:
        """Devices among which the residual is split between products: the tensor group with sequence parallelism."""
        return np.where(self.layouts.sequence_parallel > 0, self.layouts.tensor, 1.0)

    @property
    def number_bytes(self) -> Column:
        """Bytes of a number of an activation: 2, or 4 in full precision."""
        return self._by_precision(NUMBER_BYTES)

    @property
    def operand_bytes(self) -> Column:
        """Bytes of a number that a product takes in, and keeps for its backward."""
        return self._by_precision(OPERAND_BYTES)

    def _by_precision(self, table: dict[str, float]) -> Column:
        chosen: Column = np.array([table[name] for name in PRECISIONS])[self.layouts.precision.astype(np.int64)]
        return chosen

    def group(self, members: Column, stride: Column | float = 1.0) -> Group:
        """A group whose members are ``stride`` devices apart."""
        return Group(members, np.clip(np.floor(self.cluster.gpus_per_node / stride), 1, members))
