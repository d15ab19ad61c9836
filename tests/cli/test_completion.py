"""What a shell is offered: verbs, options, and names of schedules, frameworks, models and devices."""

import pytest
from click.shell_completion import ShellComplete

from debubble.cli.main import debubble, main
from debubble.estimate.hardware import known_hardware
from debubble.estimate.read_model import known_models
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.schedules.catalog import CATALOG


def offered(words: str) -> list[str]:
    """What a shell offers for the last word."""
    *before, typed = words.split(" ")
    found = ShellComplete(debubble, {}, "debubble", "_DEBUBBLE_COMPLETE").get_completions(before, typed)
    return [item.value for item in found]


def test_verbs_and_options():
    assert offered("s") == ["show", "synth", "split"]
    assert offered("show 1f1b --micro") == ["--microbatches", "--microbatch-scale"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("show ", CATALOG),
        ("run --schedule ", CATALOG),
        ("diagnose --expect ", CATALOG),
        ("split --schedule ", CATALOG),
        ("plan --framework ", FRAMEWORKS),
        ("plan --emit ", FRAMEWORKS),
        ("check --framework ", FRAMEWORKS),
        ("why --framework ", FRAMEWORKS),
        ("plan --model ", known_models()),
        ("profile --model ", known_models()),
        ("plan --gpu ", known_hardware()),
    ],
)
def test_every_name_is_offered(words, names):
    assert offered(words) == list(names)


def test_names_that_begin_alike():
    assert offered("show zb-") == [name for name in CATALOG if name.startswith("zb-")]
    assert offered("plan --schedule gpipe,1f1b-") == ["gpipe,1f1b-v"]


def test_a_path_is_left_to_the_shell():
    """A schedule and a model may be files too: then the shell completes them."""
    found = ShellComplete(debubble, {}, "debubble", "_DEBUBBLE_COMPLETE").get_completions(["show"], "./sched")
    assert [(item.value, item.type) for item in found] == [("./sched", "file")]


def test_the_shell_gets_a_script(capsys, monkeypatch):
    monkeypatch.setenv("_DEBUBBLE_COMPLETE", "zsh_source")
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert "_DEBUBBLE_COMPLETE=zsh_complete debubble" in capsys.readouterr().out
