"""One thing, one name: options of the command line, keywords of Python, and what a result holds."""

import inspect
from importlib import import_module
from keyword import iskeyword
from typing import get_args, get_type_hints

import click
import pytest

import debubble
from debubble.cli.main import VERBS
from debubble.cli.options import FILES
from debubble.core.results import Result

PORTED = ("show", "diagnose", "run", "profile", "why", "fit", "check", "validate", "plan", "split", "synth")
OF_THE_ANSWER = {kind.replace("-", "_") for kind in FILES} | {"json", "markdown", "ascii", "no_color", "help"}
OTHER_VERBS = {"show": {"list"}}  # options that ask for something else than the verb


def command_of(verb: str) -> click.Command:
    file, _ = VERBS[verb]
    return getattr(import_module(f"debubble.cli.{file}"), verb)


def long_options(command: click.Command) -> set[str]:
    """Names of options as Python has them, and of arguments."""
    found = set()
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if not parameter.hidden:
                name = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
                found.add(f"{name}_" if iskeyword(name) else name)
        else:
            found.add(parameter.name)
    return found


@pytest.mark.parametrize("verb", PORTED)
def test_long_options_are_the_keywords_of_the_verb(verb):
    options = long_options(command_of(verb)) - OF_THE_ANSWER - OTHER_VERBS.get(verb, set())
    assert options == set(inspect.signature(getattr(debubble, verb)).parameters)


@pytest.mark.parametrize("verb", PORTED)
def test_a_verb_returns_a_public_result(verb):
    returned = get_type_hints(getattr(debubble, verb))["return"]
    results = {each for each in get_args(returned) or (returned,) if each is not type(None)}
    assert results
    for result in results:
        assert issubclass(result, Result)
        assert getattr(debubble, result.__name__) is result


def test_attributes_are_the_keys_of_json():
    shown = debubble.show("1f1b", ranks=4, microbatches=8)
    for key, value in shown.document().items():
        assert getattr(shown, key) == value or key in ("per_rank", "warnings")
    assert [row["compute_ms"] for row in shown.document()["per_rank"]] == [rank.compute_ms for rank in shown.per_rank]


@pytest.mark.parametrize(
    ("former", "present"),
    [(("show", "--memory", "4"), ("show", "--cap", "4")), (("show", "--hop", "1ms"), ("show", "--transfer", "1ms"))],
)
def test_former_names_work_and_are_not_in_help(cli, former, present):
    size = ("zb-auto", "-p", 4, "-m", 8, "--json")
    assert cli(*former, *size).json == cli(*present, *size).json
    words = cli(former[0], "--help").out.split()
    assert present[1] in words
    assert former[1] not in words
