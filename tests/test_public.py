"""The public face: small, sorted, and the same for readers, type checkers and the interpreter."""

import ast
import doctest
import subprocess
import sys
from pathlib import Path

import debubble


def test_public_names_are_sorted_and_all_there():
    assert debubble.__all__ == sorted(debubble.__all__)
    assert set(debubble.__all__) == set(debubble._HOME)
    for name in debubble.__all__:
        assert getattr(debubble, name).__module__.startswith("debubble.")


def test_a_type_checker_sees_the_same_names():
    tree = ast.parse(Path(debubble.__file__).read_text())
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {(node.module, alias.name) for node in guard.body for alias in node.names}
    assert typed == {(module, name) for name, module in debubble._HOME.items()}


def test_importing_the_package_loads_nothing_heavy():
    code = "import debubble, sys; print([m for m in ('numpy', 'torch', 'rich', 'numba', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(debubble).failed == 0
