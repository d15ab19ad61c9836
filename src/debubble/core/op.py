"""An op: one kind of work on one stage for one micro-batch, written ``2F0``.

Letters are PyTorch's. Papers and frameworks use others for the same things:

    here                           zero bubble, V    DualPipe README   Megatron, GPipe, DeepSpeed, Chimera
    F  forward                     F                 F                 F
    I  gradient of the input       B                 -                 -
    W  gradient of the weights     W                 W                 -
    B  both at once                BW                B                 B
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from .errors import Fault, InputError


class Kind(IntEnum):
    """What an op computes; the number is its row in every table of durations."""

    F = 0
    I = 1  # noqa: E741 - PyTorch's letter
    W = 2
    B = 3


KINDS = len(Kind)

_TEXT = re.compile(r"(\d+)([FIWB])(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Op:
    """One op, as people and error messages see it; arrays hold the same three numbers as columns.

    ``microbatch`` is a *unit*: with sliced sequences unit ``u`` is slice ``u % slices`` of micro-batch
    ``u // slices``, written ``2F0.1``; without slices a unit is a micro-batch.
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    def text(self, slices: int = 1) -> str:
        """The text form, with the slice behind a point where sequences are sliced."""
        if slices == 1:
            return str(self)
        return f"{self.stage}{self.kind.name}{self.microbatch // slices}.{self.microbatch % slices}"

    @classmethod
    def parse(cls, text: str, slices: int = 1) -> Op:
        """Read ``2F0`` or, with slices, ``2F0.1``; the whole text must match.

        Raises:
            InputError: the text is not an op.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (match[4] is not None) != (slices > 1) or (slices > 1 and int(match[4]) >= slices):
            form = "2F0: stage, one of F I W B, micro-batch"
            if slices > 1:
                form = f"2F0.1 with a slice below {slices}"
            raise InputError(Fault(f"op = {text!r}", "this is not an op", f"write it as {form}"))
        unit = int(match[3]) * slices + int(match[4] or 0)  # no slice is written where a sequence is whole
        return cls(Kind[match[2]], int(match[1]), unit)
