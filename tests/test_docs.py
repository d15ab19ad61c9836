"""Documentation is executed: Python blocks run, and every `$ debubble` block prints what the page shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
refresh = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(refresh)


def blocks(language: str) -> list[pytest.param]:
    return [
        pytest.param(match[2], id=f"{page.name}-{page.read_text()[: match.start()].count(chr(10)) + 2}")
        for page in refresh.PAGES
        for match in refresh.BLOCK.finditer(page.read_text())
        if match[1] == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(code, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("text", blocks("console"))
def test_console_blocks_print_what_they_show(text):
    command, *shown = text.splitlines()
    assert command.startswith("$ debubble "), "a console block opens with its command"
    assert refresh.output(command.removeprefix("$ ")).splitlines() == shown


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_changes_that_users_see_are_listed():
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
