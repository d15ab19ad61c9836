"""Puts into every page what its commands print now: run it after a change of output, and read the difference."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.M | re.S)


def output(command: str) -> str:
    """What a command of a page prints on 80 columns without colour.

    Raises:
        RuntimeError: the command fails.
    """
    run = subprocess.run(
        [sys.executable, "-m", "debubble", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
    )
    if run.returncode:
        raise RuntimeError(f"{command}: {run.stderr}")
    return "\n".join(line.rstrip() for line in run.stdout.rstrip().splitlines())


def refreshed(page: str) -> str:
    """The page with every console block filled anew."""

    def fill(block: re.Match[str]) -> str:
        if block[1] != "console":
            return block[0]
        command = block[2].splitlines()[0].removeprefix("$ ")
        return f"```console\n$ {command}\n{output(command)}\n```"

    return BLOCK.sub(fill, page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text()))
