"""The public face: small, sorted, and the same for readers, type checkers and the interpreter."""

import ast
import doctest
import inspect
import os
import pydoc
import re
import rlcompleter
import subprocess
import sys
from dataclasses import fields, is_dataclass
from itertools import count, takewhile
from pathlib import Path

import pytest

import debubble

ROOT = Path(__file__).parents[1]


def test_public_names_are_sorted_and_all_there():
    assert debubble.__all__ == sorted(debubble.__all__)
    assert set(debubble.__all__) == {*debubble._HOME, "__version__"}
    for name in debubble._HOME:
        assert getattr(debubble, name).__module__.startswith("debubble.")


def test_a_type_checker_sees_the_same_names():
    tree = ast.parse(Path(debubble.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    typed = {(node.module, alias.name, alias.asname) for node in imports for alias in node.names}
    homes = {(module, name, name) for name, module in debubble._HOME.items()}
    assert typed == homes | {("core.results", "__version__", "__version__")}


def test_importing_the_package_loads_nothing_heavy():
    code = "import debubble, sys; print([m for m in ('numpy', 'torch', 'rich', 'numba', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(debubble).failed == 0


def test_dir_and_completion_show_every_public_name():
    assert set(debubble.__all__) < set(dir(debubble))
    assert "__version__" in dir(debubble)
    completer = rlcompleter.Completer({"debubble": debubble})
    offered = set(takewhile(bool, (completer.complete("debubble.s", n) for n in count())))
    assert {"debubble.show(", "debubble.simulate("} <= offered


def test_version_is_that_of_the_package():
    assert debubble.__version__ == debubble.show("gpipe", ranks=1, microbatches=1).document()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", debubble.__version__)


def test_help_of_a_verb_tells_every_keyword():
    text = pydoc.render_doc(debubble.show, renderer=pydoc.plaintext)
    assert all(f"{name}: " in text for name in inspect.signature(debubble.show).parameters)


def test_nothing_public_returns_or_holds_what_is_not_public():
    for name in debubble._HOME:
        public = getattr(debubble, name)
        told = [each.type for each in fields(public) if "hidden" not in each.metadata] if is_dataclass(public) else []
        methods = [each.fget for each in vars(public).values() if isinstance(each, property)] if told else []
        calls = [public] if inspect.isfunction(public) else methods
        told += [inspect.signature(call).return_annotation for call in calls]
        for text in map(str, told):
            ours = {word for word in re.findall(r"\b[A-Z]\w+", text) if is_ours(public, word)}
            assert ours <= set(debubble.__all__), (name, text)


def is_ours(public: object, word: str) -> bool:
    """Whether a word of an annotation is a class of this package, in the module of what it annotates."""
    found = getattr(sys.modules[public.__module__], word, None)
    return inspect.isclass(found) and found.__module__.startswith("debubble.")


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # Our own settings, which are strict and more, so that what `make check` kept of this package serves here too.
    ours = ("--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache")
    command = [sys.executable, "-m", "mypy", *map(str, ours), str(script)]
    source = str(Path(debubble.__file__).parents[1])
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MYPYPATH": source}, cwd=tmp_path)
    assert ran.stdout == "Success: no issues found in 1 source file\n"


SCRIPT = """
import debubble
from debubble import Rates, Shape, account, build, costs_of, lower, simulate

shown = debubble.show("1f1b", ranks=4, microbatches=8, transfer="35us", stage_scale=[1, 1, 1, 1.6])
share: float = shown.idle_share
parts: list[float] = [rank.compute_ms + rank.waiting_ms for rank in shown.per_rank]
text: str = shown.text(width=100)
keys: list[str] = list(shown.document())
shown.to_html("page.html")
schedule = build("1f1b", Shape(ranks=4, microbatches=8))
timeline = simulate(lower(schedule), costs_of(Rates(), schedule))
again: float = account(timeline).idle_share
drawn: str = debubble.draw(timeline, shown.timeline, width=100)
version: str = debubble.__version__

found = debubble.diagnose("runs/now", gate="30%")
if isinstance(found, debubble.Diagnosis):
    lost: dict[str, float] = {row.cause: row.cost_ms for row in found.causes}
    first: str = found.what_if[0].change
compared = debubble.why("runs/before", "runs/now")
ratio: float | None = compared.throughput_ratio
chosen = debubble.plan(model="llama3-8b", gpu="h100", gpus=64, global_batch=[256], framework="megatron")
if isinstance(chosen, debubble.LayoutPlan):
    layout: debubble.Candidate = chosen.best
    step: float = layout.step_ms
fitted = debubble.fit("steps.log", ranks=4)
slot: float | None = fitted.slot_ms
heaviest: float = debubble.split(weights=[1, 2, 1], pipeline=2, microbatches=8).splits[0].heaviest
measured: debubble.Observation = debubble.read("runs/now")
"""
