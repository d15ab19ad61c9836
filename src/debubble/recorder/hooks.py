"""Hooks: functions of an engine wrapped where the engine looks them up, at once or when it is imported.

A hook never raises into the job, calls no collective and holds no tensor. What an engine's functions are called and
take is checked before the first of them is wrapped: an engine of another version is named in one line and left alone.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Function = Callable[..., Any]
Wrapped = tuple[Any, str, Function]  # owner, name, and what takes the place of it


class Mismatch(Exception):
    """An engine is not built as its adapter expects; says what is missing."""


class Patches:
    """What was wrapped, so that it can be put back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []
        self.removers: list[Callable[[], None]] = []  # of hooks that an engine takes by itself

    def put_all(self, wrapped: Iterable[Wrapped]) -> None:
        """Replace many, once all of them are known to be there: an engine is hooked as a whole or not at all."""
        for owner, name, function in list(wrapped):
            self.put(owner, name, function)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class, or an entry of a dict."""
        if isinstance(owner, dict):
            self._originals.append((owner, name, owner[name]))
            owner[name] = value
        else:
            self._originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        for remove in self.removers:
            remove()
        self.removers.clear()
        for owner, name, original in reversed(self._originals):
            if isinstance(owner, dict):
                owner[name] = original
            else:
                setattr(owner, name, original)
        self._originals.clear()


def refuse_nanotron(*_: Any) -> None:
    """Refuse nanotron: 0.4 asks for inputs inside the model (PipelineBlock) and autograd, where no hook sees it wait.

    Raises:
        Mismatch: always.
    """
    raise Mismatch(
        "its receives lie inside its forwards and backwards, so hooks cannot tell work from waiting; "
        "profile some steps and name their ops with debubble.annotate"
    )


def demand(owner: Any, name: str, *parameters: str) -> Function:
    """A function of an engine, once it is sure that it is there and takes certain parameters.

    Raises:
        Mismatch: it does not.
    """
    function: Any = getattr(owner, name, None)
    where = getattr(owner, "__name__", type(owner).__name__).rpartition(".")[2]  # of a module the last word says enough
    if not callable(function):
        raise Mismatch(f"{where} has no {name}")
    taken = inspect.signature(function).parameters
    if lost := [parameter for parameter in parameters if parameter not in taken]:
        raise Mismatch(f"{where}.{name} takes no {', '.join(lost)}")
    found: Function = function
    return found


def around(original: Function, before: Function, after: Function, failed: Callable[[Exception], None]) -> Function:
    """A function that tells when it begins and ends.

    Args:
        original: what it does.
        before: gets its arguments; what it returns, if anything, is given to ``after``.
        after: gets that and the result, unless the original raised.
        failed: told of an error in one of the two, which goes no further.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        token = None
        try:
            token = before(*args, **kwargs)
        except Exception as error:  # whatever goes wrong here is ours, and the job goes on
            failed(error)
        result = original(*args, **kwargs)
        if token is not None:
            try:
                after(token, result)
            except Exception as error:
                failed(error)
        return result

    return call


def version_of(package: str) -> str:
    """The version of an installed package; empty if it does not say."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


class Arrivals(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after its import, or at once if it is there already.

    Args:
        wanted: functions by the module's name.
    """

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self._wanted = dict(wanted)
        for name in list(self._wanted):
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._wanted.pop(name)(module)
        sys.meta_path.insert(0, self)  # first: the finder that knows the module would end the search

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Let the others find a module that is waited for, and have its loader tell when it has run."""
        tell = self._wanted.pop(fullname, None)
        if tell is None:
            return None
        spec = importlib.util.find_spec(fullname)  # asks this finder again, which waits for it no more
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, tell)
        return spec

    def leave(self) -> None:
        """Wait for nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Telling(importlib.abc.Loader):
    """A loader that tells when its module has run; to everybody else it is the loader that it holds."""

    def __init__(self, loader: Any, tell: Callable[[ModuleType], None]) -> None:
        self._loader, self._tell = loader, tell

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Some ask a module's loader for its source or its data: they get the real one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._tell(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
