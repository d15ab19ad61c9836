"""Starts recording a process: from ``debubble.record``, from the verb, and from DEBUBBLE_RECORD in the environment.

DEBUBBLE_RECORD=DIR is for launchers that take no module: a line in site-packages (``debubble_record.pth``, which does
nothing unless it is set) imports this file. Options follow the folder: ``DIR,steps=10:20,every=5,keep=100``. Engines
are hooked when the job imports them, so that nothing of them is imported here.

The verb runs the job itself: ``Program`` is the user's file or module, run as Python would run it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError, in_one_line
from .hooks import Arrivals, Mismatch, Patches, version_of

if TYPE_CHECKING:  # numpy comes with it, and a process that records nothing should not import that
    from .session import Recorded, Session
    from .wishes import Wish

VARIABLE = "DEBUBBLE_RECORD"
_ENGINES = {  # module whose import is waited for: our adapter, its function, and the package that says the version
    "torch.distributed.pipelining.schedules": ("torch_pipelining", "install", "torch"),
    "megatron.core.pipeline_parallel.schedules": ("megatron", "install", "megatron-core"),
    "deepspeed.runtime.pipe.engine": ("deepspeed", "install", "deepspeed"),
    "deepspeed.runtime.pipe.dualpipev": ("deepspeed", "install_dual", "deepspeed"),
    "nanotron.parallel.pipeline_parallel.engine": ("hooks", "refuse_nanotron", "nanotron"),
}
_running: list[Recording] = []


@dataclass(frozen=True, slots=True)
class Program:
    """What to run.

    Args:
        name: of the file, or of the module.
        args: its own.
        module: whether it is a module.
    """

    name: str
    args: tuple[str, ...] = ()
    module: bool = False

    def check(self) -> None:
        """Say no to a file that is not there, before anything is hooked.

        Raises:
            InputError: it is not.
        """
        if not self.module and not os.path.isfile(self.name):
            rule = "it is no file of Python's"
            raise InputError(Fault(self.name, rule, "give FILE ARGS, or -m MODULE ARGS, after the options of record"))

    def run(self, ended: Callable[[bool], None]) -> None:
        """Be that program: its arguments, its main module, its exit status and its exceptions.

        Args:
            ended: called when it is over, and told whether it raised.
        """
        sys.argv = [self.name, *self.args]
        raised = True
        try:
            if self.module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(self.name))
                runpy.run_path(self.name, run_name="__main__")
            raised = False
        except SystemExit:
            raised = False
            raise
        finally:
            ended(raised)


class Recording:
    """A recording that is under way; it ends with the process, or with ``close``, or at the end of a ``with``.

    Args:
        wish: makes what is to be recorded, once an engine is there.
        follow: gets the folder and follows it, for ``on_step``; returns what ends that.
        say: takes a line for people; by default it goes to the standard error.
    """

    def __init__(
        self,
        wish: Callable[[], Wish],
        follow: Callable[[], Callable[[], None]] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.session: Session | None = None
        self._wish, self._follow, self._say = wish, follow, say
        self._unfollow: Callable[[], None] | None = None
        self._patches = Patches()
        self._arrivals = Arrivals({module: self._adapter(*of) for module, of in _ENGINES.items()})
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        _running.append(self)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(raised=kind is not None)

    def close(self, *, raised: bool = False) -> None:
        """End the recording, put the engines' functions back, and say what was recorded.

        Args:
            raised: whether the job ends by an exception in this process.
        """
        if self not in _running:
            return
        _running.remove(self)
        self._arrivals.leave()
        self._patches.undo()
        if self.session is not None and not (multiprocessing.parent_process() and not self.session.seen):
            self.session.close(raised=raised)
        if self._unfollow is not None:
            self._unfollow()

    def result(self) -> Recorded | None:
        """What was recorded; None in all processes but the first, and where nothing was."""
        if self.session is None:
            return None
        return self.session.result()

    def _adapter(self, name: str, function: str, package: str) -> Callable[[ModuleType], None]:
        def arrived(module: ModuleType) -> None:
            from importlib import import_module

            from .session import Session

            if self.session is None:
                self.session = Session(self._wish(), self._say)
                if self._follow is not None and os.environ.get("RANK", "0") == "0":
                    self._unfollow = self._follow()
            engine = f"{package} {version_of(package)}".strip()
            try:
                install = getattr(import_module(f".{name}", __package__), function)
                install(self.session, module, self._patches)
            except Mismatch as error:
                self.session.warn(f"{engine} is not recorded: {error}")
            except Exception as error:  # an engine that is put together otherwise is not a reason to end a job
                self.session.warn(f"{engine} is not recorded: {in_one_line(error)}")

        return arrived

    def _forked(self) -> None:
        """In a child, a data loader's worker say: nothing is recorded and nothing is said."""
        if self.session is not None:
            self.session.on = self.session.open = False
        if self in _running:
            _running.remove(self)


def running() -> Recording | None:
    """The recording that is under way in this process."""
    if not _running:
        return None
    return _running[-1]


def from_environment(environment: Mapping[str, str] = os.environ) -> Recording | None:
    """Record this process, if the environment says so."""
    said = environment.get(VARIABLE, "")
    if not said or running() is not None:
        return None
    folder, *options = said.split(",")
    given = dict(option.partition("=")[::2] for option in options)

    def wish() -> Any:
        from .wishes import wish_of

        return wish_of(folder, **given)

    return Recording(wish)


def launched(folder: Path) -> None:
    """Tell children that are started as programs of their own, as accelerate and spawn do, to record as well."""
    os.environ.setdefault(VARIABLE, str(folder.absolute()))


if os.environ.get(VARIABLE):
    from_environment()
