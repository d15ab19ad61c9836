"""What a verb says while it works, and files that it has written: the command line listens, nobody else has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pickle import PicklingError, dumps

Listener = Callable[[str], None]

# A context variable and no global: two threads of a notebook server each hear their own.
_LISTENER: ContextVar[Listener | None] = ContextVar("debubble_listener", default=None)


def tell(sentence: str) -> None:
    """Say a sentence to whoever listens."""
    listener = heard_by()
    if listener is not None:
        listener(sentence)


def heard_by(*, elsewhere: bool = False) -> Listener | None:
    """Who listens; None for nobody.

    Args:
        elsewhere: whether it is to be handed to another process, which only what can be pickled survives: a function of
            a module, but no closure and no object that holds a stream or a lock.
    """
    listener = _LISTENER.get()
    if elsewhere and listener is not None:
        try:  # only trying tells; a run that says nothing while it works is better than none
            dumps(listener)
        except (AttributeError, TypeError, PicklingError):
            return None
    return listener


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what verbs say while a block runs."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
