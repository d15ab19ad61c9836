"""All frameworks by name, whose configuration a file is, what it holds whatever its format, and which parts say a job.

The content decides, not the name: JSON, TOML, YAML, Python, a launch script, or the arguments that a log begins with.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path

from ..config.config import OF_THE_MODEL, Config
from ..core.errors import MOST_KEYS, Fault, InputError, entries, nearest
from .deepspeed import DEEPSPEED
from .framework import Framework
from .internevo import INTERNEVO
from .keys import (
    Pairs,
    Said,
    Unresolved,
    dump_pairs,
    fields_known,
    keys_known,
    marks_known,
    open_text,
    pairs_of,
    read_config,
    typed,
)
from .maxtext import MAXTEXT
from .megatron import MEGATRON
from .nanotron import NANOTRON
from .shell import Command, run
from .torch_pipelining import TORCH
from .torchtitan import TORCHTITAN
from .wrappers import NEMO, WRAPPERS

LARGEST = 4_000_000  # bytes
SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".log", ".txt"})
SUFFIXES = SCRIPTS | {".json", ".yaml", ".yml", ".toml", ".py"}

# ${X:8} and ${oc.env:X,8} have a default; ${a.b} names another key of the file.
_INTERPOLATED = re.compile(r"\$\{(?:oc\.env:)?([\w.]+)(?:(?::-?|,\s*)([^${}]*))?\}")

DEEPEST = 6  # functions of a Python file that call each other
MOST = 20_000  # keys of a Python file
_KEPT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
        reason = next(iter(str(error).splitlines()), type(error).__name__)
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
    if not documents:
        return _table(None, file)
    if len(documents) == 1:
        return _table(documents[0], file)
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
            waiting += [(f"{path}.{key}".removeprefix("."), value[key]) for key in reversed(value)]
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
        if other is None or open_text(other):
            return match[0]
        return str(other)

    text = _INTERPOLATED.sub(one, value)
    if "${" in text:
        return Unresolved(text)
    return typed(text)


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
    program = " ".join((*takewhile(_leads, command.words), *_launched(command.words)))
    said = (*shared, *devices, *pairs_of(command.words, place))
    return Block(f"line {command.line}", said, launched=True, program=program)


def _leads(word: str) -> bool:
    """Whether a word belongs to the program in front of its flags."""
    return not word.startswith("--") and "=" not in word


def _launched(words: Sequence[str]) -> Iterator[str]:
    """Files of Python and modules, ``-m name``, which a launcher runs and which stand behind its own flags."""
    for before, word in pairwise(words):
        if word.endswith(".py") or before == "-m":
            yield word


def _document(text: str, place: str) -> list[Said]:
    """The keys of a text that a script writes, where it is JSON or YAML."""
    import yaml

    with suppress(ValueError, RecursionError, yaml.YAMLError):
        table = json.loads(text) if text.lstrip()[:1] == "{" else yaml.safe_load(text)
        return [replace(said, place=place) for said in _flat(table, place)]
    return []


def script_pairs(text: str) -> tuple[Said, ...]:
    """The keys of the first job of a launch script, or of the arguments of a log."""
    blocks = _script(text, "")
    return max(blocks, key=lambda block: len(block.pairs)).pairs


def _python(text: str, file: str) -> Sequence[Block]:
    """Every function of a file that says something, or the file itself where none does.

    Args:
        text: of the file.
        file: its name, for places.

    Raises:
        SyntaxError: it is not Python.
    """
    tree = ast.parse(text)
    reader = _Reader(file, {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)})
    outside = _Scope({}, reader.arguments(tree))
    top = list(reader.statements(tree.body, outside))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = dict(reader.functions)
    for kind in classes:
        top += reader.statements(kind.body, outside.inner({}))
        methods = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
        named |= {f"{kind.name}.{node.name}": node for node in methods}
    said = {name: tuple(reader.function(node, outside, {}, 0)) for name, node in named.items()}
    saying = [name for name, pairs in said.items() if pairs]
    # Recipes are called without arguments; what wants one, as set_layout(config), is a part of those that call it.
    recipes = [name for name in saying if not _wants_arguments(named[name])]
    blocks = [Block(name, (*top, *said[name])) for name in recipes or saying]
    return blocks or [Block("", tuple(top))]


def _wants_arguments(node: ast.FunctionDef) -> bool:
    """Whether a function cannot be called without arguments; that of a method stands for its object."""
    positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    if positional[:1] in (["self"], ["cls"]):
        del positional[0]
    return len(positional) > len(node.args.defaults) or None in node.args.kw_defaults


@dataclass(frozen=True, slots=True)
class _Scope:
    """Names with the constants that they stand for, and the defaults of the command line."""

    names: dict[str, object]
    options: Mapping[str, object] = field(default_factory=dict)
    inside: bool = False  # a function, whose names are variables

    def inner(self, names: Mapping[str, object], *, inside: bool = False) -> _Scope:
        """The same with further names."""
        return _Scope({**self.names, **names}, self.options, inside)


class _Reader:
    """Walks statements in order."""

    __slots__ = ("file", "functions", "many")

    def __init__(self, file: str, functions: dict[str, ast.FunctionDef]) -> None:
        self.file, self.functions, self.many = file, functions, 0

    def arguments(self, tree: ast.Module) -> dict[str, object]:
        """Defaults of ``add_argument`` and of ``click`` options, by the name under which they are read."""
        found: dict[str, object] = {}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("add_argument", "option"))):
                continue
            flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            words = {word.arg: word.value for word in node.keywords}
            named = [flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("-")]
            if named and "default" in words:
                value = _constant(words["default"], _Scope({}))
                found |= dict.fromkeys(named, value)
            elif named and isinstance(words.get("action"), ast.Constant):
                found |= dict.fromkeys(named, False)
        return found

    def function(
        self, node: ast.FunctionDef, outside: _Scope, given: Mapping[str, object], deep: int
    ) -> Iterator[Said]:
        """What a function says, with the values of its arguments where they are given or have a default."""
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        first = len(names) - len(node.args.defaults)
        defaults = dict(zip(names[first:], node.args.defaults, strict=True))
        only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        defaults |= {a.arg: value for a, value in only if value is not None}
        known = {name: _constant(value, outside) for name, value in defaults.items()}
        yield from self.statements(node.body, outside.inner({**known, **given}, inside=True), deep)

    def statements(self, body: list[ast.stmt], scope: _Scope, deep: int = 0) -> Iterator[Said]:
        """What statements say, in order; names that they set are remembered."""
        for node in body:
            if isinstance(node, _KEPT):
                continue
            for inner in _bodies(node):
                yield from self.statements(inner, scope, deep)
            yield from self.statement(node, scope, deep)

    def statement(self, node: ast.stmt, scope: _Scope, deep: int) -> Iterator[Said]:
        """What one statement says."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from self.assigned(ast.unparse(target), node.value, scope, deep)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from self.assigned(ast.unparse(node.target), node.value, scope, deep)
        elif isinstance(node, ast.Return | ast.Expr) and node.value is not None:
            yield from self.expression("", node.value, scope, deep)

    def assigned(self, target: str, value: ast.expr, scope: _Scope, deep: int) -> Iterator[Said]:
        """A name, attribute or item with its value."""
        path = target.replace("['", ".").replace("']", "").replace('["', ".").replace('"]', "")
        if isinstance(value, ast.Dict | ast.Call):
            yield from self.expression(path, value, scope, deep)
            constant = _constant(value, scope)
            if not isinstance(constant, Unresolved):
                scope.names[target] = constant
            elif isinstance(value, ast.Call) and ast.unparse(value.func) in self.functions and "." in path:
                yield from self.leaf(path, constant, value.lineno)  # what a function of this file works out is open
            return
        constant = _constant(value, scope)
        if target.isidentifier():
            scope.names[target] = constant
            if scope.inside and (deep or "_" not in target):
                return  # a variable such as layout or pp, not a key under that name
        yield from self.leaf(path, constant, value.lineno)

    def expression(self, path: str, value: ast.expr, scope: _Scope, deep: int) -> Iterator[Said]:
        """Keywords of calls and items of dictionaries, at any depth, by their path."""
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if key is None:  # ** of another table
                    yield from self.expression(path, item, scope, deep)
                elif isinstance(key, ast.Constant):
                    yield from self.expression(f"{path}.{key.value!s}".lstrip("."), item, scope, deep)
        elif isinstance(value, ast.Call) and not _reads_environment(value):
            yield from self.call(path, value, scope, deep)
        elif path:
            yield from self.leaf(path, _constant(value, scope), value.lineno)

    def call(self, path: str, value: ast.Call, scope: _Scope, deep: int) -> Iterator[Said]:
        """A call: what a function of this file says, then what the call itself does."""
        name = ast.unparse(value.func)
        if name.endswith("add_argument"):
            yield from self.option(value)
            return
        called = self.functions.get(name)
        if called is not None and deep < DEEPEST:
            names = [a.arg for a in called.args.args]
            given = {n: _constant(a, scope) for n, a in zip(names, value.args, strict=False)}
            given |= {word.arg: _constant(word.value, scope) for word in value.keywords if word.arg}
            yield from self.function(called, _Scope(dict(scope.names), scope.options), given, deep + 1)
            return
        for argument in value.args:
            if isinstance(argument, ast.Call | ast.Dict):
                yield from self.expression(path, argument, scope, deep)
        for word in value.keywords:
            inner = f"{path}.{word.arg}".lstrip(".") if word.arg else path
            yield from self.expression(inner, word.value, scope, deep)
        if path and name.endswith(".Config"):  # a choice among classes of configurations: FullAC.Config()
            yield from self.leaf(path, name.removesuffix(".Config").rsplit(".", 1)[-1], value.lineno)
            return
        plain = not value.keywords and not any(isinstance(a, ast.Call | ast.Dict) for a in value.args)
        if path and plain and name not in ("dict",):
            yield from self.leaf(path, _constant(value, scope), value.lineno)

    def option(self, value: ast.Call) -> Iterator[Said]:
        """The default of an option of the command line, under its own name."""
        flags = [a.value for a in value.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        default = next((word.value for word in value.keywords if word.arg == "default"), None)
        if default is not None:
            for flag in flags:
                if flag.startswith("--"):
                    yield from self.leaf(flag, _constant(default, _Scope({})), value.lineno)

    def leaf(self, path: str, value: object, line: int) -> Iterator[Said]:
        """One key with its value."""
        self.many += 1
        if self.many > MOST:
            raise ValueError(f"it says more than {MOST:,} keys")
        yield Said(path, value, f"{self.file}:{line}")


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks inside a statement, of which all are looked at."""
    names = ("body", "orelse", "finalbody")
    blocks = [inner for name in names if isinstance(inner := getattr(node, name, None), list)]
    return [*blocks, *(handler.body for handler in getattr(node, "handlers", []))]


def _reads_environment(value: ast.Call) -> bool:
    return ast.unparse(value.func).endswith(("environ.get", "getenv", "int", "float", "bool", "str"))


def _constant(node: ast.expr, scope: _Scope) -> object:
    """The value of an expression, ``Unresolved`` where it is not a constant that the file tells."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Name) and node.id in scope.names:
        return scope.names[node.id]
    if isinstance(node, ast.Attribute) and node.attr in scope.options and ast.unparse(node.value).endswith("args"):
        return scope.options[node.attr]
    if isinstance(node, ast.Call):
        return _called(node, scope)
    if isinstance(node, ast.BinOp):
        return _worked_out(node, scope)
    return Unresolved(ast.unparse(node)[:80])


def _called(node: ast.Call, scope: _Scope) -> object:
    """``int(x)``, ``os.environ.get(x, default)``, ``dict(a=1)``, and the text of anything else."""
    name = ast.unparse(node.func)
    if name in ("int", "float", "str") and len(node.args) == 1:
        inner = _constant(node.args[0], scope)
        text = str(inner)
        if name == "int" and re.fullmatch(r"-?\d{1,15}", text):
            return int(text)
        if isinstance(inner, int | float | Unresolved):
            return inner
    if name.endswith(("environ.get", "getenv")) and len(node.args) == 2:
        return _constant(node.args[1], scope)
    return Unresolved(ast.unparse(node)[:80])


def _worked_out(node: ast.BinOp, scope: _Scope) -> object:
    """Sums and products of whole numbers that are known."""
    left, right = _constant(node.left, scope), _constant(node.right, scope)
    if type(left) is int and type(right) is int and abs(left) < 10**9 and abs(right) < 10**9:
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
    return Unresolved(ast.unparse(node)[:80])


FRAMEWORKS = {
    one.name: one for one in (MEGATRON, TORCHTITAN, TORCH, DEEPSPEED, NEMO, NANOTRON, *WRAPPERS, INTERNEVO, MAXTEXT)
}
OFFERED = tuple(one for one in FRAMEWORKS.values() if one.offered)
# Fields by which a part of a file is known to say a job.
_TELLING = frozenset(
    (
        *("tensor", "pipeline", "data", "sharded", "copies", "context", "expert", "layers", "heads", "experts"),
        *("chunks", "chunk_layers", "split", "layout", "pattern", "micro_batch", "microbatches", "local_batch"),
        *("global_batch", "schedule", "zero", "recompute"),
    )
)


def framework_of(name: str) -> Framework:
    """The framework of this name.

    Raises:
        InputError: no framework has it; the nearest names are given.
    """
    if name.lower() not in FRAMEWORKS:
        raise nearest(name, FRAMEWORKS, "framework")
    return FRAMEWORKS[name.lower()]


def recognised(pairs: Pairs, where: str, program: str = "") -> Framework:
    """The framework whose program is launched, else the one whose own keys a configuration has most of.

    Args:
        pairs: what it says.
        where: what errors call it.
        program: the words of its command in front of the first flag; empty where no command says it.

    Raises:
        InputError: none, or several alike.
    """
    for one in FRAMEWORKS.values():
        if one.programs and re.search(one.programs, program):
            return one
    pairs = tuple({said.key: said for said in pairs}.values())  # a key is one sign, however often it is said
    counts = {name: keys_known(one, pairs) for name, one in FRAMEWORKS.items()}
    # The same words are Megatron-LM's as flags and a model provider's as fields.
    if counts[NEMO.name] and not any(said.key.startswith("--") and keys_known(MEGATRON, [said]) for said in pairs):
        counts[NEMO.name] = max(counts[NEMO.name], counts.pop(MEGATRON.name))
    most = max(counts.values(), default=0)
    best = [name for name, count in counts.items() if count == most]
    if most and len(best) > 1:  # keys that many have; those of one alone decide
        marked = {name: marks_known(FRAMEWORKS[name], pairs) for name in best}
        best = [name for name in best if marked[name] == max(marked.values())]
    if not most and any(said.key == "layout" for said in pairs):
        return MEGATRON  # nobody else writes stages as a string
    if not most:
        rule = "it has no key by which its framework could be told"
        raise InputError(Fault(where, rule, f"give --framework {'|'.join(FRAMEWORKS)}"))
    if set(best) == {MEGATRON.name, NEMO.name}:
        return MEGATRON
    if len(best) > 1:
        rule = f"it could be {' or '.join(best)}"
        raise InputError(Fault(where, rule, f"give --framework {'|'.join(best)}"))
    return FRAMEWORKS[best[0]]


def jobs_in(blocks: Sequence[Block], framework: Framework | None = None) -> tuple[Block, ...]:
    """The parts of a file that say a job: of a script its launch lines, of a program its configurations.

    A part that says less than half of what another one says is no job of its own: a command that prepares data, or that
    converts a checkpoint.

    Args:
        blocks: of one file.
        framework: whose words count; None for any.
    """
    asked = [framework] if framework else list(FRAMEWORKS.values())
    telling = [max(len(fields_known(one, block.pairs) & _TELLING) for one in asked) for block in blocks]
    most = max(telling, default=0)
    if not most:
        return tuple(blocks[:1])
    chosen: dict[tuple[tuple[str, str], ...], Block] = {}
    for block, many in zip(blocks, telling, strict=True):
        if many and (many * 2 >= most or not block.launched) and not block.name.startswith("_"):
            chosen.setdefault(tuple((said.key, str(said.value)) for said in block.pairs), block)
    return tuple(chosen.values()) or (blocks[telling.index(most)],)


def configurations_of(path: Path, framework: Framework | None = None) -> tuple[Config, ...]:
    """Every job that a launch configuration says, as it was said, each with its framework's name.

    Args:
        path: of a script, YAML, JSON, TOML or Python; ``file.py:function`` for one of several.
        framework: whose it is; None to be recognised.

    Raises:
        InputError: what cannot be read, of no known framework, or has no key that is known.
    """
    found = []
    blocks = blocks_of(path, framework)
    for block in blocks:
        whose = framework or recognised(signs_of(block, blocks), str(path), block.program)
        if not fields_known(whose, block.pairs):
            raise unknown_keys(path, whose)
        if OF_THE_MODEL.issuperset(fields_known(whose, block.pairs)):
            raise only_a_model(path)
        name = f"{path.name}:{block.name}".removesuffix(":")
        found.append(read_config(whose, block.pairs, name, whole=block.whole))
    return tuple(found)


def signs_of(block: Block, blocks: Sequence[Block]) -> Pairs:
    """What tells whose a part of a file is: of a script its own command, else the whole file, which is one framework's.

    One recipe of many may say too little by itself.
    """
    if block.launched:
        return block.pairs
    return tuple(said for one in blocks for said in one.pairs)


def blocks_of(path: Path, framework: Framework | None = None) -> tuple[Block, ...]:
    """The parts of a file that say a job; a part alone is named by nothing.

    Raises:
        InputError: the file cannot be read, or it has no part of the name that stands behind a colon.
    """
    name = ""
    if not path.exists() and ":" in path.name:
        path, name = path.with_name(path.name.rsplit(":", 1)[0]), path.name.rsplit(":", 1)[1]
    if not path.is_file():
        raise InputError(Fault(str(path), "no such file", "give a configuration or a launch script"))
    blocks = read_file(path)
    if name:
        named = tuple(block for block in blocks if block.name == name)
        if not named:
            raise nearest(name, [block.name for block in blocks], f"{path.name}: part")
        return named
    jobs = jobs_in(blocks, framework)
    if len(jobs) == 1:
        return (replace(jobs[0], name=""),)
    return jobs


def only_a_model(where: Path | str) -> InputError:
    """The fault of a file that says a model and nothing of how it is trained."""
    rule = "it says a model and nothing of a job: neither devices, degrees nor a batch"
    return InputError(Fault(str(where), rule, "give the launch configuration, or --pipeline and other flags beside it"))


def unknown_keys(where: Path | str, framework: Framework) -> InputError:
    """The fault of a file that says nothing to a framework, which is therefore never legal."""
    rule = f"no key of it is known to {framework.title}"
    return InputError(Fault(str(where), rule, "give the configuration itself, or another --framework"))
