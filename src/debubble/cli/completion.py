"""Shell completion: names that an option takes, read when the shell asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(where: str, *, files: bool = False) -> Completer:
    """Complete from a list of names.

    Args:
        where: ``module:function`` that returns the names, or ``module:NAME`` of a table with them as keys.
        files: whether the path of a file will do too.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
        # Imported when the shell asks: help must not wait for catalogs.
        module, name = where.split(":")
        known = getattr(import_module(module), name)
        listed: Iterable[str] = known() if callable(known) else known
        *before, last = typed.split(",")  # a list is completed at its last name
        found = [",".join([*before, each]) for each in listed if each.startswith(last)]
        items = [CompletionItem(each) for each in found]
        return items if items or not files else [CompletionItem(typed, type="file")]

    return complete


SCHEDULE = names("debubble.schedules.catalog:CATALOG", files=True)
FRAMEWORK = names("debubble.frameworks.catalog:FRAMEWORKS")
MODEL = names("debubble.estimate.read_model:known_models", files=True)
GPU = names("debubble.estimate.hardware:known_hardware", files=True)
ENGINE = names("debubble.frameworks.engines:ENGINES")
