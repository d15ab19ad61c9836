"""Files: what a configuration holds, whatever its format, as one list of keys with values for each job in it.

The content decides, not the name: JSON, TOML, YAML, Python, a launch script, or the arguments that a log begins with.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from ..core.errors import MOST_KEYS, Fault, InputError, entries
from .keys import Said, Unresolved, open_text
from .python_source import blocks_of
from .shell import Command, run

LARGEST = 4_000_000  # bytes
SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".log", ".txt"})
SUFFIXES = SCRIPTS | {".json", ".yaml", ".yml", ".toml", ".py"}

_DUMP = re.compile(r"^\s*(?:\[.*?\]:?\s*)?(\w+) \.{3,} (.+?)\s*$", re.MULTILINE)
_OVERRIDE = re.compile(r"([+~]{0,2}[A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)
# ${X:8} and ${oc.env:X,8} have a default; ${a.b} names another key of the file.
_INTERPOLATED = re.compile(r"\$\{(?:oc\.env:)?([\w.]+)(?:(?::-?|,\s*)([^${}]*))?\}")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}


@dataclass(frozen=True, slots=True)
class Block:
    """The keys of one job in a file.

    Args:
        name: what tells it from others of the file: a function, a line; empty where there is one alone.
        pairs: keys with values, in order.
        launched: whether a command of a script says it.
        program: words of that command in front of its first flag.
        whole: whether all of it was read; not where a script reads another file that is not there.
    """

    name: str
    pairs: tuple[Said, ...]
    launched: bool = False
    program: str = ""
    whole: bool = True


def read_file(path: Path) -> tuple[Block, ...]:
    """Every job that a file says, tables flattened to ``outer.inner``.

    Raises:
        InputError: not what its name says, or too large.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"a configuration has less than {LARGEST:,} bytes", "give the configuration"))
    text = raw.decode("utf-8", errors="replace")
    return read_text(text, path.suffix.lower(), path.name, str(path), _beside(path.parent))


def _beside(folder: Path) -> Callable[[str], str | None]:
    """What reads a file that a script names: from its own folder, whatever variable stands in front."""

    def text_of(named: str) -> str | None:
        plain = re.sub(r"^\$(\{[^}]*\}|\(.*\)|\w+)/", "", named)
        path = folder / plain
        if "$" in plain or not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return path.read_text(encoding="utf-8", errors="replace")

    return text_of


def read_text(
    text: str, suffix: str, file: str, path: str, beside: Callable[[str], str | None] = lambda _: None
) -> tuple[Block, ...]:
    """The same of a text.

    Args:
        text: of the file.
        suffix: of its name, tried first.
        file: its name, for places.
        path: what errors call it.
        beside: reads a file that a script names; None for one that is not there.

    Raises:
        InputError: it cannot be read.
    """
    formats: dict[str, Callable[[str, str], Sequence[Block]]] = {
        ".json": _json,
        ".toml": _toml,
        ".yaml": _yaml,
        ".yml": _yaml,
        ".py": _python,
    }
    try:
        if suffix in formats:
            return tuple(formats[suffix](text, file))
        return tuple(_unnamed(text, file, beside))
    except (ValueError, RecursionError, SyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(Fault(path, f"it cannot be read: {reason}", "mend the file")) from None


def _unnamed(text: str, file: str, beside: Callable[[str], str | None]) -> Sequence[Block]:
    """A file whose name does not tell its format."""
    if text.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            return _json(text, file)
    return _script(text, file, beside)


def _json(text: str, file: str) -> Sequence[Block]:
    return _table(json.loads(text), file)


def _toml(text: str, file: str) -> Sequence[Block]:
    return _table(tomllib.loads(text), file)


def _yaml(text: str, file: str) -> Sequence[Block]:
    import yaml

    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if len(documents) < 2:
        return _table(documents[0] if documents else None, file)
    blocks = [block for one in documents for block in _table(one, file)]
    return [replace(block, name=f"document {number}") for number, block in enumerate(blocks, start=1)]


def _table(table: object, file: str) -> Sequence[Block]:
    pairs = _flat(table, file)
    values = {said.key: said.value for said in pairs}
    return [Block("", tuple(replace(said, value=_resolved(said.value, values)) for said in pairs))]


def _flat(table: object, file: str) -> list[Said]:
    """Leaves of nested tables in order; a list is a leaf."""
    if not isinstance(table, dict):
        raise ValueError("it holds no table of keys")
    if entries(table, MOST_KEYS) > MOST_KEYS:
        raise ValueError(f"it has more than {MOST_KEYS:,} keys")
    found: list[Said] = []
    waiting: list[tuple[str, object]] = [("", table)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}" if path else str(key), value[key]) for key in reversed(value)]
        else:
            found.append(Said(path, value, file))
    return found


def _resolved(value: object, values: Mapping[str, object]) -> object:
    """A value with the defaults of its variables and other keys of the file filled in."""
    if not (isinstance(value, str) and "${" in value):
        return value

    def one(match: re.Match[str]) -> str:
        if match[2]:
            return match[2]
        other = values.get(match[1])
        return match[0] if other is None or open_text(other) else str(other)

    text = _INTERPOLATED.sub(one, value)
    return Unresolved(text) if "${" in text else _typed(text)


def _typed(text: str) -> object:
    """A word as YAML would read it: a number, a switch, or itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def _python(text: str, file: str) -> Sequence[Block]:
    return [Block(block.name, block.pairs) for block in blocks_of(text, file)]


def _script(text: str, file: str, beside: Callable[[str], str | None] = lambda _: None) -> Sequence[Block]:
    """Each command with flags or overrides, and texts that the script writes; else the arguments of a log."""
    script = run(text, beside)
    held = [pair for document, line in script.documents for pair in _document(document, f"{file}:{line}")]
    header = pairs_of(script.header, file)
    blocks = [_command(command, file, (*header, *held)) for command in script.commands]
    blocks = [block for block in blocks if len(block.pairs) > len(header) + len(held)]
    if blocks:
        return [replace(block, whole=not script.unread) for block in blocks]
    loose = [pair for command in script.lists for pair in pairs_of(command.words, f"{file}:{command.line}")]
    if held or loose:
        return [Block("", (*header, *held, *loose), whole=bool(held))]  # flags that some other script takes
    return [Block("", dump_pairs(text, file))]


def _command(command: Command, file: str, shared: tuple[Said, ...]) -> Block:
    place = f"{file}:{command.line}"
    devices = tuple(Said(f"--{name.lower()}", value, place) for name, value in command.surroundings)
    program = " ".join(takewhile(lambda word: not word.startswith("--") and "=" not in word, command.words))
    said = (*shared, *devices, *pairs_of(command.words, place))
    return Block(f"line {command.line}", said, launched=True, program=program)


def _document(text: str, place: str) -> list[Said]:
    """The keys of a text that a script writes, where it is JSON or YAML."""
    import yaml

    with suppress(ValueError, RecursionError, yaml.YAMLError):
        table = json.loads(text) if text.lstrip()[:1] == "{" else yaml.safe_load(text)
        return [replace(said, place=place) for said in _flat(table, place)]
    return []


def dump_pairs(text: str, file: str = "") -> tuple[Said, ...]:
    """The arguments that Megatron-LM prints into its log before it starts, ``name ..... value``."""
    words: dict[str, object] = {"True": True, "False": False, "None": None}
    return tuple(Said("--" + k.replace("_", "-"), words.get(v, v), file) for k, v in _DUMP.findall(text))


def pairs_of(words: Sequence[str], place: str = "") -> tuple[Said, ...]:
    """``--key value``, ``--key=value``, ``--key a b c``, ``--switch`` (True), ``key=value``, ``++key=value``, ``~key``.

    ``--`` ends the values of a flag, as do a list that was not filled in, a flag of one dash, an override, and the
    program that is launched. Other words are left out.
    """
    found: list[Said] = []
    key, values = "", list[str]()

    def close() -> None:
        if key:
            found.append(Said(key, " ".join(values) if values else True, place))

    for word in words:
        override = _override(word, place)
        if override is not None:
            close()
            key, values = "", []
            found.append(override)
            continue
        ends = word == "--" or word.endswith(("[@]}", "[*]}")) or _starts_another(word, values)
        if not ends and not re.match(r"--[A-Za-z]", word):
            values.append(word)
            continue
        close()
        if ends:
            key, values = "", []
            continue
        key, equals, value = word.partition("=")
        values = [value] if equals else []
    close()
    return tuple(found)


def _override(word: str, place: str) -> Said | None:
    """Hydra's ``key=value``, ``+key=value``, ``++key=value`` and ``~key``; None for any other word."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or match[1].isupper() or "/" in match[1].split("@")[0]:
        return None
    if match[1].startswith("~"):
        return Said(match[1].lstrip("~"), None, place)
    if match[2] is None:
        return None
    return Said(match[1].lstrip("+"), _listed(match[2]), place)


def _listed(text: str) -> object:
    """The value of an override: a list in brackets, a number, a switch or a word."""
    if text.startswith("["):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(text)
    return _typed(text.strip("'\"")) if text else True


def _starts_another(word: str, values: Sequence[str]) -> bool:
    """Whether a word cannot be one more value: ``--nnodes 16 train.py``, ``--nproc-per-node 8 -m train``."""
    return bool(re.match(r"-[A-Za-z]", word)) or (bool(values) and word.endswith(".py"))


def script_pairs(text: str) -> tuple[Said, ...]:
    """The keys of the first job of a launch script, or of the arguments of a log."""
    blocks = _script(text, "")
    return max(blocks, key=lambda block: len(block.pairs)).pairs


def split_words(text: str) -> list[str]:
    """A command line as words; an open quote is passed over."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.replace('"', " ").replace("'", " ").split()
