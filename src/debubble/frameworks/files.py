"""Files: a configuration as JSON, YAML, TOML, Python or a launch script becomes pairs of key and value."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import Fault, InputError
from .flags import Pairs, script_pairs

LARGEST = 4_000_000  # bytes
MOST_KEYS = 100_000  # a YAML file of nested aliases can stand for billions
SUFFIXES = frozenset({".json", ".yaml", ".yml", ".toml", ".py", ".sh", ".bash", ".slurm", ".sbatch", ".log", ".txt"})


def read_pairs(path: Path) -> Pairs:
    """Every key of a file with its value, tables flattened to ``outer.inner``.

    Raises:
        InputError: not what its name says, or too large.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"a configuration has less than {LARGEST:,} bytes", "give the configuration"))
    text = raw.decode("utf-8", errors="replace")
    try:
        return _parsed(path.suffix.lower(), text)
    except (ValueError, RecursionError, SyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(Fault(str(path), f"it cannot be read: {reason}", "mend the file")) from None


def _parsed(suffix: str, text: str) -> Pairs:
    if suffix == ".json":
        return _flat(json.loads(text))
    if suffix == ".toml":
        return _flat(tomllib.loads(text))
    if suffix in (".yaml", ".yml"):
        return _flat(_yaml(text))
    if suffix == ".py":
        return list(_python(ast.parse(text)))
    return script_pairs(text)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _flat(table: Any) -> Pairs:
    """Leaves of nested tables in order; a list is a leaf."""
    if not isinstance(table, dict):
        raise ValueError("it holds no table of keys")
    found: Pairs = []
    waiting: list[tuple[str, Any]] = [("", table)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        if seen > MOST_KEYS:
            raise ValueError(f"it has more than {MOST_KEYS:,} keys")
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}" if path else str(key), value[key]) for key in reversed(value)]
        else:
            found.append((path, value))
    return found


def _python(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Constants given as keywords of a call, or assigned to names and attributes; nothing is run."""
    for node in ast.walk(tree):
        for name, value in _named(node):
            with suppress(ValueError):  # not a constant
                yield name, ast.literal_eval(value)


def _named(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Call):
        return [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    if isinstance(node, ast.Assign):
        return [(ast.unparse(target), node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(ast.unparse(node.target), node.value)]
    return []
