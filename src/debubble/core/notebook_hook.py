"""The hook for pictures in notebooks: nouns show themselves through what the package puts here; they know no drawing.

``debubble/__init__.py`` names the maker of pictures, as text, so that nothing is imported until a notebook asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

MAKERS: dict[str, str] = {}  # name of a noun -> "module:function" that takes it and returns text for each MIME type


class Pictured:
    """What can be shown in a notebook, if the package has named a maker of its pictures."""

    __slots__ = ()

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002 - asked for by IPython; it picks from what it gets
        exclude: object = None,  # noqa: ARG002
    ) -> Mapping[str, str]:
        if (maker := MAKERS.get(type(self).__name__)) is None:
            return {"text/plain": repr(self)}
        module, function = maker.split(":")
        draw: Callable[[Any], Mapping[str, str]] = getattr(import_module(module), function)
        return draw(self)
