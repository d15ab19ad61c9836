"""What a verb says while it works, and files that it has written: the command line listens, nobody else has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("debubble_listener", default=None)


def tell(sentence: str) -> None:
    """Say a sentence to whoever listens."""
    listener = heard_by()
    if listener is not None:
        listener(sentence)


def heard_by() -> Listener | None:
    """Who listens, to be handed to another process; None for nobody."""
    return _LISTENER.get()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what verbs say while a block runs."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
