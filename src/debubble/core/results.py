"""Results and nouns that show themselves: as JSON, text and pages, and as pictures in a notebook.

A result is what a verb returns: a frozen dataclass that derives from ``Result``, whose attributes are the keys of its
JSON. It lives in the room that computes it:

    @dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
    class Show(Result):
        schema: ClassVar[str] = "show/1"

        schedule: str
        makespan_ms: float                                    # keys carry their unit
        per_rank: tuple[RankTime, ...]                        # rows are frozen dataclasses too
        memory: MemoryFit | None = field(metadata=SPARSE)     # no key where it is None
        timeline: Timeline = field(metadata=HIDDEN)           # for pictures and reports: no key

What it looks like is the business of ``report/`` (one function a result, named in ``report/render.py``) and of
``drawing/``. This room knows neither: the package names who makes what in ``RENDERERS`` and ``MAKERS``, as text, so
that none is imported before it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

__version__ = "0.1.0"


HIDDEN: Mapping[str, bool] = MappingProxyType({"hidden": True})
SPARSE: Mapping[str, bool] = MappingProxyType({"sparse": True})

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

RENDERERS: dict[str, str] = {}  # what is wanted of a result -> "module:function" that makes it


class Result:
    """What a verb returns: the keys of its JSON as attributes, and what it looks like.

    ``schema`` names the set of keys and counts its versions: a key that changes its meaning or goes raises the number,
    a new key does not.
    """

    __slots__ = ()
    schema: ClassVar[str]

    @property
    def version(self) -> str:
        """The version of the package that computed it."""
        return __version__

    @property
    def exit_status(self) -> int:
        """Exit status of the command line: 0, or 1 where the answer is no."""
        return 0

    @property
    def refused(self) -> str:
        """Why the answer is no, a line for stderr; empty if it is none, or if the report says so itself."""
        return ""

    @property
    def undrawn(self) -> str:
        """Why there is no picture of it, for who asks for a figure in vain."""
        return "there is no timeline to draw"

    def document(self) -> dict[str, Json]:
        """What ``--json`` prints: every key with plain values; what is infinite or not a number is None."""
        return {"version": __version__, "schema": self.schema, **_keys(self)}

    def json(self) -> str:
        """The document as text."""
        return encoded(self.document())

    def text(self, width: int = 80, *, utf8: bool = True, colour: bool = False) -> str:
        """What the command line prints.

        Args:
            width: columns of the terminal.
            utf8: whether it shows block characters; letters are drawn if not.
            colour: whether it shows colours.
        """
        return str(_rendered("text", self, width=width, utf8=utf8, colour=colour))

    def markdown(self) -> str:
        """The same for a pull request or an issue."""
        return str(_rendered("markdown", self))

    def html(self) -> str:
        """The same as a page to explore in a browser: one file that needs no network."""
        return str(_rendered("html", self))

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the page.

        Raises:
            InputError: the path cannot be written.
        """
        self.write("html", path)

    def write(self, kind: str, path: str | PathLike[str]) -> None:
        """Write a file of the result.

        Args:
            kind: ``html``, ``svg``, ``png``, ``pdf``, ``perfetto`` or ``torch-csv``.
            path: where to; it is replaced whole, or left as it was.

        Raises:
            InputError: no such kind, nothing to draw, no package that draws it, or a path that cannot be written.
        """
        _rendered("file", self, kind=kind, path=path)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return str(_rendered("notebook", self))


def plain(value: object) -> Json:
    """A value as JSON has it.

    Raises:
        TypeError: a value of a type that no key may have.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):  # JSON has neither infinity nor nan
            return None
        return float(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _keys(value)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is no value of a JSON key")


def encoded(document: dict[str, Json]) -> str:
    """A document as text: what the command line prints under ``--json``."""
    return str(_rendered("json", document))


def _keys(value: Any) -> dict[str, Json]:
    """The fields of a dataclass that are keys."""
    keys = {}
    for field in fields(value):
        held = getattr(value, field.name)
        absent = field.metadata.get("sparse") and held is None
        if not field.metadata.get("hidden") and not absent:
            keys[field.name] = plain(held)
    return keys


def _rendered(what: str, shown: object, **given: object) -> object:
    module, function = RENDERERS[what].split(":")
    make: Callable[..., object] = getattr(import_module(module), function)
    return make(shown, **given)


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
