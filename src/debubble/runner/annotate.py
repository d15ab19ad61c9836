"""Our names in anybody's trace: a training loop that says which op it runs becomes readable to ``diagnose``.

    with annotate("F", stage=0, microbatch=3):          what runs inside is 0F3
        out = stage(x)

    @annotate("B", stage=0, microbatch="i")             the argument i says which micro-batch
    def backward(out, gradient, i): ...

    @annotate("F", stage=0, of=8)                       calls are counted: 0 to 7, then 0 again
    def forward(x): ...

The names are those that ``torch.distributed.pipelining`` writes (``PP:0F3``), so that every reader of its traces knows
them. They are ranges of ``torch.profiler``; under ``torch.autograd.profiler.emit_nvtx`` Nsight Systems sees them too.
Let sends and receives run outside the range where you can: what waits inside it counts as work on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from ..core.errors import Fault, InputError
from ..core.schedule import Kind, Op

if TYPE_CHECKING:
    from torch.profiler import record_function

P = ParamSpec("P")
R = TypeVar("R")


class annotate:  # noqa: N801 - used as a verb, like contextlib's suppress
    """Name what runs inside, as a context manager or as a decorator.

    Args:
        kind: ``F`` forward, ``I`` gradient of the input, ``W`` gradient of the weights, ``B`` both at once.
        stage: of the whole model, from 0.
        microbatch: which one, from 0; for a decorator also the name of the argument that says it, or None to count
            calls.
        of: micro-batches in a step, behind which counting begins at 0 again.

    Raises:
        InputError: no such kind, a negative number, or a context manager that does not say which micro-batch.
    """

    __slots__ = ("_calls", "_kind", "_microbatch", "_of", "_ranges", "_stage")

    def __init__(self, kind: str, stage: int, microbatch: int | str | None = None, *, of: int | None = None) -> None:
        if kind not in Kind.__members__:
            raise InputError(Fault(f"kind = {kind!r}", "an op is one of F, I, W, B", "give one of these letters"))
        numbers = {"stage": stage, "microbatch": microbatch, "of": of}
        for name, value in numbers.items():
            if isinstance(value, int) and value < (name == "of"):
                raise InputError(Fault(f"{name} = {value}", "it is counted from 0 up", "give another number"))
        self._kind, self._stage, self._microbatch, self._of = Kind[kind], stage, microbatch, of
        self._calls = 0
        self._ranges: list[record_function] = []  # a list: one annotation may be entered again inside itself

    def __enter__(self) -> Self:
        if not isinstance(self._microbatch, int):
            rule = "a block runs one micro-batch, and its number is not given"
            raise InputError(Fault(f"microbatch = {self._microbatch!r}", rule, "give the number"))
        self._ranges.append(self._range(self._microbatch))
        self._ranges[-1].__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._ranges.pop().__exit__(*error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Name every call of a function."""
        which = self._reader(function)

        @wraps(function)
        def named(*args: P.args, **given: P.kwargs) -> R:
            with self._range(which(*args, **given)):
                return function(*args, **given)

        return named

    def _range(self, microbatch: int) -> record_function:
        from torch.profiler import record_function  # here, so that every name of debubble loads without torch

        return record_function(f"PP:{Op(self._kind, self._stage, microbatch)}")

    def _reader(self, function: Callable[..., Any]) -> Callable[..., int]:
        """What tells the micro-batch of a call."""
        if isinstance(self._microbatch, int):
            fixed = self._microbatch
            return lambda *_args, **_given: fixed
        if self._microbatch is None:
            return self._count
        name, form = self._microbatch, signature(function)
        if name not in form.parameters:
            rule = f"{function.__name__} has no such argument"
            raise InputError(Fault(f"microbatch = {name!r}", rule, f"it has {', '.join(form.parameters) or 'none'}"))

        def argument(*args: Any, **given: Any) -> int:
            bound = form.bind(*args, **given)
            bound.apply_defaults()
            return int(bound.arguments[name])

        return argument

    def _count(self, *_args: Any, **_given: Any) -> int:
        number = self._calls if self._of is None else self._calls % self._of
        self._calls += 1
        return number
