"""The job that is recorded: a file or a module of the user's, run as Python would run it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import Fault, InputError


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

    def run(self, ended: Callable[[], None]) -> None:
        """Be that program: its arguments, its main module, its exit status and its exceptions.

        Args:
            ended: called when it is over, whatever it raised.
        """
        sys.argv = [self.name, *self.args]
        try:
            if self.module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(self.name))
                runpy.run_path(self.name, run_name="__main__")
        finally:
            ended()
