"""What a verb says while it works, and files that it has written: the command line listens, nobody else has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("debubble_listener", default=None)


def tell(sentence: str) -> None:
    """Say a sentence to whoever listens."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(sentence)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Hear what verbs say while a block runs."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
