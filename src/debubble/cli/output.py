"""Where the answer of a verb goes: text, Markdown or JSON on stdout, and the files that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ..core.results import Result
from .console import Look, look, put, say, warn, wrote
from .options import option

FILES = {
    "html": "Write a page to explore in a browser: one file, which needs no network.",
    "svg": "Write the picture as a figure.",
    "png": "Write the figure as PNG (the extra `plot`).",
    "pdf": "Write the figure as PDF (the extra `plot`).",
    "perfetto": "Write a trace that ui.perfetto.dev opens; gzipped where F ends in .gz.",
    "torch-csv": "Write the schedule in PyTorch's format.",
}
LOOKS = ("json", "markdown", "ascii", "no_color")


@dataclass(frozen=True, slots=True)
class Output:
    """What was asked of the answer.

    Args:
        as_json: one JSON object instead of text.
        as_markdown: Markdown instead of text.
        files: where to write what, by kind.
        look: what stdout can show.
    """

    as_json: bool
    as_markdown: bool
    files: Mapping[str, Path]
    look: Look

    def show(self, result: Result) -> int:
        """Write the files, print the answer, and return the exit status."""
        # Files first: a gate that fails must leave the page that tells why.
        for kind, path in self.files.items():
            result.write(kind, path)
            wrote(path)
        self.say(result)
        if result.refused:
            warn(f"debubble: {result.refused}")
        return result.exit_status

    def note(self, result: Result, sentence: str) -> int:
        """Say on stderr why there is no answer yet; what was done instead is the JSON."""
        warn(sentence)
        if self.as_json:
            self.say(result)
        return result.exit_status

    def say(self, result: Result, *, width: int | None = None) -> None:
        """Print the answer."""
        if self.as_json:
            put(result.json())  # escaped by JSON itself; say() would change its text
        elif self.as_markdown:
            say(result.markdown())
        else:
            say(result.text(width or self.look.width, utf8=self.look.utf8, colour=self.look.colour))


def output_options(*files: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add what every verb can do with its answer; the command takes it as ``output``, an ``Output``.

    Args:
        files: kinds of files that the verb can write, as ``FILES`` lists them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_output(
            *args: Any, as_json: bool, as_markdown: bool, as_ascii: bool, no_color: bool, **given: Any
        ) -> Any:
            # The verb takes no paths: files are written from its result.
            paths = {kind: given.pop(kind.replace("-", "_")) for kind in files}
            wanted = {kind: path for kind, path in paths.items() if path is not None}
            seen = look(ascii_only=as_ascii, no_colour=no_color)
            return command(*args, output=Output(as_json, as_markdown, wanted, seen), **given)

        for kind in reversed(files):  # decorators are applied from the last to the first
            # Not checked by click: a path that cannot be written is said by whoever writes it, with the reason.
            path = click.Path(path_type=Path)
            with_output = option(f"--{kind}", type=path, metavar="F", help=FILES[kind])(with_output)
        return with_output

    # Added last, the flags of looks are listed first: every verb has them, files only some.
    return lambda command: _looks(decorate(command))


def _looks(command: Callable[..., Any]) -> Callable[..., Any]:
    flags = (
        ("--ascii", "as_ascii", "Draw with letters only."),
        ("--no-color", "no_color", "Draw without colour, as NO_COLOR does."),
        ("--markdown", "as_markdown", "Print Markdown, for a pull request."),
        ("--json", "as_json", "Print one JSON object instead of text."),
    )
    for name, variable, sentence in reversed(flags):
        command = option(name, variable, is_flag=True, help=sentence)(command)
    return command


def warned(result: Result) -> None:
    """Print a result's warnings on stderr."""
    for sentence in getattr(result, "warnings", ()):
        warn(f"warning: {sentence}")
