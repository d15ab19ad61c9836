"""Former spellings of verbs: ``run --profile`` is ``profile``, ``plan --weights`` is ``split``. They go on working."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from ..core.errors import Fault, InputError

# Verb and option that once asked for what is a verb now: the verb, whether it keeps the option, and what it is made of.
FORMER = {
    ("run", "--profile"): ("profile", False, "--profile times a layer and no pipeline"),
    ("plan", "--weights"): ("split", True, "blocks and their weights are all that a split is made of"),
}


def present(words: Sequence[str], command_of: Callable[[str], click.Command]) -> list[str]:
    """The words of a command line as they are written now.

    Args:
        words: the verb and what follows it.
        command_of: the command of a verb.

    Raises:
        InputError: options of the former verb that have no place in the present one, all of them.
    """
    for (verb, option), (now, keeps, why) in FORMER.items():
        if words and words[0] == verb and any(word.partition("=")[0] == option for word in words):
            _refuse_others(words[1:], command_of(verb), command_of(now), why)
            return [now, *(word for word in words[1:] if keeps or word != option)]
    return list(words)


def _refuse_others(words: Sequence[str], former: click.Command, now: click.Command, why: str) -> None:
    kept = {name for parameter in now.params for name in _names(parameter)}
    faults = []
    for word in words:
        name = word.partition("=")[0]
        for parameter in former.params:
            if name in _names(parameter) and name not in kept:
                faults.append(Fault(max(parameter.opts, key=len), why, "leave it out"))
    if faults:
        raise InputError(*faults)


def _names(parameter: click.Parameter) -> list[str]:
    if not isinstance(parameter, click.Option):
        return []
    return [*parameter.opts, *getattr(parameter, "former", ())]
