"""Documentation is executed: Python blocks run, and every `$ debubble` block prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.M | re.S)


def blocks(language: str) -> list[pytest.param]:
    return [
        pytest.param(match[2], id=f"{page.name}-{page.read_text()[: match.start()].count(chr(10)) + 2}")
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
        if match[1] == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(code, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("text", blocks("console"))
def test_console_blocks_print_what_they_show(text, tmp_path):
    command, *shown = text.splitlines()
    assert command.startswith("$ debubble "), "a console block opens with its command"
    words = shlex.split(command[2:])
    run = subprocess.run(
        [sys.executable, "-m", "debubble", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip().splitlines() == [line.rstrip() for line in shown]


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_changes_that_users_see_are_listed():
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
