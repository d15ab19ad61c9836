"""The reference of the site, made from the code whenever the site is built, so that it cannot fall behind.

    command line   from click: every verb, its options, its examples, the names that options had before
    Python         from the docstrings of the public face, by mkdocstrings
    JSON           from the results of the verbs: their fields are the keys, their docstrings say what each is
    job file       from the table of fields that holds job files to account
    GPU file       from a file of this repository and the comments in it

It is a hook of MkDocs (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

import debubble
from debubble.cli.main import VERBS, command_of
from debubble.config.config import FIGURES, Config
from debubble.config.fields import KINDS, Kind, short
from debubble.core.results import Result
from debubble.estimate import hardware

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "reference"
UNITS = {
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_share": "share of a whole, 0 to 1",
    "_ratio": "one number over another",
    "_percent": "per cent",
    "_ppm": "millionths",
}


def pages() -> dict[str, str]:
    """Every page of the reference: its file in the folder, and its text."""
    return {
        "command-line.md": "\n".join(command_line()),
        "python.md": "\n".join(python()),
        "json.md": "\n".join(json_keys()),
        "job-file.md": "\n".join(job_file()),
        "gpu-file.md": "\n".join(gpu_file()),
    }


def on_files(files: Any, *, config: Any) -> Any:
    """Called by MkDocs when it has listed the files of the site."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, f"{FOLDER}/{name}", content=text))
    return files


# The command line --------------------------------------------------------------------------------------------------


def command_line() -> Iterator[str]:
    """Each verb: what it does, how it is called, its options."""
    yield "# Command line\n"
    yield "Durations are `20ms`, `35us`, `1.5s`; a bare number is milliseconds. Sizes are `80GB`, `16GiB`."
    yield "Exit status: 0 done; 1 the answer is no; 2 bad input, a line each with value, rule and remedy; 70 a fault of"
    yield "debubble, with a report; 130 Ctrl-C. Under `--json` an error is one object too.\n"
    for verb, (_, sentence) in VERBS.items():
        command = command_of(verb)
        context = click.Context(command, info_name=f"debubble {verb}")
        yield f"## {verb}\n"
        yield f"{sentence}\n"
        yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
        yield from _help(inspect.cleandoc(command.help or ""))
        yield "| option | takes | what it does |\n|---|---|---|"
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and not parameter.hidden:
                yield _option(parameter, context)
        former = [name for each in command.params for name in getattr(each, "former", ())]
        if former:
            yield f"\nFormer names that go on working: {', '.join(f'`{name}`' for name in sorted(former))}."
        yield ""


def _help(text: str) -> Iterator[str]:
    """Paragraphs of a docstring; those that click must not wrap are commands."""
    for block in text.split("\n\n"):
        if block.startswith("\b"):
            yield "```text\n" + block.removeprefix("\b\n") + "\n```\n"
        else:
            yield _escaped(block) + "\n"


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    _, text = record if record is not None else ("", "")
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    metavar = "" if option.is_flag else option.make_metavar(context)
    return f"| {names} | {f'`{_cell(metavar)}`' if metavar else ''} | {_cell(_escaped(text))} |"


# Python ---------------------------------------------------------------------------------------------------------------


def python() -> Iterator[str]:
    """Every public name, verbs first; mkdocstrings puts the docstrings in."""
    yield "# Python\n"
    yield "Keyword names of the verbs are the long options of the command line, attributes of results are the keys of"
    yield "its JSON. Results show themselves in a terminal and in a notebook, and have `.to_html(path)`.\n"
    names = [name for name in debubble.__all__ if not name.startswith("_")]
    public = {name: getattr(debubble, name) for name in names}
    groups = {
        "Verbs and functions": [name for name in names if inspect.isroutine(public[name])],
        "Results": [name for name in names if _is_result(public[name])],
        "Nouns": [name for name in names if inspect.isclass(public[name]) and not _is_result(public[name])],
    }
    for title, members in groups.items():
        yield f"## {title}\n"
        for name in members:
            yield f"::: {public[name].__module__}.{public[name].__qualname__}\n"


def _is_result(public: object) -> bool:
    return inspect.isclass(public) and issubclass(public, Result)


# JSON -----------------------------------------------------------------------------------------------------------------


def json_keys() -> Iterator[str]:
    """The keys of each result, and below them those of the rows that stand in several."""
    yield "# JSON\n"
    yield "With `--json` a verb prints one object. Every object has `version`, the version of debubble, and `schema`,"
    yield "the name of its set of keys, with a number that rises when a key changes its meaning or goes. In Python the"
    yield "keys are attributes. What is infinite or not a number is `null`. A name ends in the unit of its value:\n"
    yield "| ending | unit |\n|---|---|"
    yield from (f"| `{ending}` | {unit} |" for ending, unit in UNITS.items())
    yield ""
    results = [each for name in debubble.__all__ if _is_result(each := getattr(debubble, name)) and each is not Result]
    rows: list[type] = []
    for result in sorted(results, key=lambda each: each.schema):
        yield f"## {result.schema}\n"
        yield f"{_escaped(_first(result))}\n"
        _rows(result, rows)
        yield from _keys(result, rows)
    yield "## Rows\n"
    for row in sorted(rows, key=lambda each: each.__name__):
        yield f"### {row.__name__}\n"
        yield f"{_escaped(_first(row))}\n"
        yield from _keys(row, rows)


def _keys(kind: type, rows: Sequence[type]) -> Iterator[str]:
    said = {name: text for base in reversed(kind.__mro__) for name, text in arguments_of(base).items()}
    yield "| key | type | what it is |\n|---|---|---|"
    for field in fields(kind):
        if not field.metadata.get("hidden"):
            sparse = " Left out where it is not known." if field.metadata.get("sparse") else ""
            what = _cell(_escaped(said.get(field.name, "") + sparse))
            yield f"| `{field.name}` | {_cell(_type(str(field.type), rows))} | {what} |"
    yield ""


def _type(text: str, rows: Sequence[type]) -> str:
    """A type of Python as JSON has it, with links to the rows."""
    words = {"tuple": "list", "str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    words |= {"None": "null", "Mapping": "object", "dict": "object", "Sequence": "list"}
    words |= {row.__name__: f"[{row.__name__}](#{row.__name__.lower()})" for row in rows}
    text = (
        re.sub(r"tuple\[(.+), \.\.\.\]", r"tuple[\1]", text)
        .replace("[", " of ")
        .replace("]", "")
        .replace(" | ", " or ")
    )
    return re.sub(r"\w+", lambda found: words.get(found[0], found[0]), text)


def _rows(kind: type, seen: list[type]) -> list[type]:
    """Dataclasses that stand in the keys of one, the first first."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.metadata.get("hidden"):
            continue
        for inner in _dataclasses(hints[field.name]):
            if inner not in seen:
                seen.append(inner)
                _rows(inner, seen)
    return seen


def _dataclasses(hint: object) -> Iterator[type]:
    if inspect.isclass(hint) and is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def arguments_of(documented: object) -> dict[str, str]:
    """What the ``Args:`` of a docstring of its own say of each name."""
    text = inspect.cleandoc(vars(documented).get("__doc__") or "")
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.M)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (section[1] if section else "").splitlines():
        if begins := re.match(r"    (\w[\w, ]*): (.*)", line):
            names = re.split(", ", begins[1])
            found |= dict.fromkeys(names, begins[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


# Files ----------------------------------------------------------------------------------------------------------------


def job_file() -> Iterator[str]:
    """The keys of a job TOML."""
    yield "# Job file\n"
    yield "What is known of a run, for `why`, `plan` and `check`. Every key is optional but what the question needs;"
    yield "what is missing for an answer is asked for by its name. A series for `why` is one file with `[[run]]`"
    yield "tables; keys above the first one hold for all.\n"
    said = arguments_of(Config)
    for title, names in (
        ("Above the tables", [name for name in KINDS if name not in FIGURES]),
        ("In `[measured]`: what was seen of it", list(FIGURES)),
    ):
        yield f"## {title}\n"
        yield "| key | takes | example | what it is |\n|---|---|---|---|"
        for name in names:
            what = _cell(_escaped(said.get(name) or _aside(name, said)))
            yield f"| `{name}` | {_takes(KINDS[name])} | `{name} = {_example(KINDS[name])}` | {what} |"
        yield ""


def _aside(name: str, said: dict[str, str]) -> str:
    """What is said of a field beside another: ``gpus: devices of the job; ``per_node`` of one host``."""
    return next((f"`{other}` {text}" for other, text in said.items() if f"``{name}``" in text), "")


def _takes(kind: Kind) -> str:
    if kind.words:
        return " or ".join(f'`"{word}"`' for word in kind.words)
    forms = {
        "count": "a whole number",
        "counts": "whole numbers",
        "number": "a number",
        "numbers": "numbers",
        "duration": "a duration, or milliseconds",
        "size": "a size, or bytes",
        "word": "text",
        "switch": "true or false",
    }
    bounds = [f"from {kind.least:g}"] if kind.least > 1 else []
    bounds += [f"above {kind.above:g}"] if kind.above == 0 else []
    bounds += [f"to {kind.most:g}"] if kind.most <= 100 else []
    return " ".join([forms[kind.form], *bounds])


def _example(kind: Kind) -> str:
    return short(kind.example) if kind.form not in ("counts", "numbers") else str(list(kind.example))


def gpu_file() -> Iterator[str]:
    """The words of a GPU TOML, as a file of this repository has them."""
    path = hardware.FOLDER / "h100.toml"
    known, table = path.read_text(), tomllib.loads(path.read_text())
    yield "# GPU file\n"
    yield "A device that debubble does not know is a TOML file for `--gpu`. Figures of a device are its vendor's;"
    yield "what is measured of it (shares of a peak) has the usual value if it is left out. That of the H100:\n"
    yield "| key | H100 | needed | what it is |\n|---|--:|---|---|"
    for word in (*hardware.NEEDED, *hardware.OPTIONAL):
        comment = re.search(rf"^{word} = [^#\n]*# (.*)$", known, re.M)
        what = comment[1] if comment else _FIGURES[word]
        yield f"| `{word}` | {table.get(word, '')} | {'yes' if word in hardware.NEEDED else ''} | {_cell(what)} |"
    yield "\n`name` is shown, `also` lists other names, and `[sources]` says where each figure comes from.\n"


# What the file of the H100 has no comment for, since its word says it.
_FIGURES = {
    "bf16_tflops": "peak of dense products in bfloat16, TFLOP/s",
    "fp8_tflops": "the same in 8 bits",
    "fp4_tflops": "the same in 4 bits",
    "tf32_tflops": "the same in TensorFloat-32, which fp32 training may take",
    "vector_tflops": "peak in fp32 outside the matrix units, TFLOP/s",
    "units": "multiprocessors, or compute units",
    "host_gb_s": "to the memory of the host, a device, one way, GB/s",
    "memory_mib": "memory that its driver shows, MiB",
    "memory_gb": "memory, GB",
    "memory_tb_s": "bytes to and from memory, TB/s",
}


# Text -----------------------------------------------------------------------------------------------------------------


def _first(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")


def _escaped(text: str) -> str:
    """Text of docstrings and helps as Markdown: ``code`` stays code, and nothing else is a mark."""
    parts = re.split(r"(``.+?``)", text)
    return "".join(f"`{p[2:-2]}`" if p.startswith("``") else re.sub(r"([\\*_<\[\]])", r"\\\1", p) for p in parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def names(page: str) -> Sequence[str]:
    """What stands in the first column of the tables of a page."""
    return re.findall(r"^\| `([^`]+)`", page, re.M)
