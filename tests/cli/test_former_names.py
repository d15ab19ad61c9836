"""Names that options and verbs had before: each goes on working, and help says nothing of it."""

import re

import click
import pytest

from debubble.cli.main import FORMER, VERBS, command_of
from debubble.cli.options import Option
from figures import OPTION

FILE = "pyproject.toml"
# verb, what else it needs, the former words, the present ones
NAMES = [
    ("show", "zb-auto -p 2 -m 2", "--memory 4", "--cap 4"),
    ("show", "1f1b -p 2 -m 2", "--hop 35us", "--transfer 35us"),
    ("run", "--schedule 1f1b --out DIR", "--hop 35us", "--transfer 35us"),
    ("run", "--schedule 1f1b --out DIR", "--batch 16", "--global-batch 16"),
    ("run", "--schedule 1f1b --out DIR", "--memory 4", "--cap 4"),
    ("check", "1f1b -p 2 -m 2", "--hop 35us", "--transfer 35us"),
    ("check", "1f1b -p 2 -m 2", "--batch 34", "--local-batch 34"),
    ("check", "--layers 64", "--backend megatron", "--framework megatron"),
    ("diagnose", FILE, "--record DIR", "--distil DIR"),
    ("plan", "--gpus 8 --microbatches 8", "--ranks 4", "--pipeline 4"),
    ("split", "--weights 1*8 -m 8", "--ranks 4", "--pipeline 4"),
]
VERBS_OF_BEFORE = [("run", "--profile", "profile"), ("plan", "--weights", "split")]


def parsed(verb: str, words: str) -> dict:
    return command_of(verb).make_context(verb, words.split()).params


@pytest.mark.parametrize(("verb", "rest", "former", "present"), NAMES)
def test_a_former_name_is_the_present_one(verb, rest, former, present):
    assert parsed(verb, f"{rest} {former}") == parsed(verb, f"{rest} {present}")
    assert present.split()[1] in re.findall(r"[\w.]+", repr(parsed(verb, f"{rest} {present}")))


@pytest.mark.parametrize(("verb", "rest", "former", "present"), NAMES)
def test_help_tells_the_present_name_alone(cli, verb, rest, former, present):
    words = {found.partition(" ")[0] for found in OPTION.findall(cli(verb, "--help").out)}
    assert present.split()[0] in words
    assert former.split()[0] not in words


def test_no_former_name_is_without_a_row():
    listed = {(verb, former.split()[0]) for verb, _, former, _ in NAMES}
    known = {
        (verb, name)
        for verb in VERBS
        for option in command_of(verb).params
        if isinstance(option, Option)
        for name in option.former
    }
    assert known == listed
    assert [(verb, option, now) for (verb, option), (now, _, _) in FORMER.items()] == VERBS_OF_BEFORE


def test_plan_with_weights_is_split(cli):
    sizes = ("--weights", "1.5,1*6,1.5", "--pipeline", 4, "--microbatches", 8, "--json")
    assert cli("plan", *sizes).json == cli("split", *sizes).json
    refused = cli("plan", *sizes, "--model", "llama3-8b", "--gpus", 8)
    assert refused.status == 2
    assert "model" in refused.err
    assert "gpus" in refused.err


def test_run_with_profile_is_profile(cli):
    refused = cli("run", "--profile", "--schedule", "1f1b")
    assert refused.status == 2
    assert "--schedule: --profile times a layer and no pipeline; leave it out" in refused.err


def test_a_name_stands_for_one_thing_in_every_verb():
    """Each long option of several verbs has one type, but for lists of it."""
    types: dict[str, set[str]] = {}
    for verb in VERBS:
        for option in command_of(verb).params:
            if isinstance(option, click.Option):
                types.setdefault(max(option.opts, key=len), set()).add(option.type.name.replace("n,n,..", "n"))
    several = {name: kinds for name, kinds in types.items() if len(kinds) > 1}
    # run makes so many steps, readers take those from a to b.
    # synth takes a duration for each stage, and is told a kind of placement and no ranks.
    assert several == {
        "--steps": {"n", "a:b"},
        **{f"--{name}": {"text", "duration"} for name in ("forward", "input", "weight")},
        "--placement": {"choice", "loop|v|0,1,.."},
    }
