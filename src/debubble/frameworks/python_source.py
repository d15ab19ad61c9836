"""Python: what a configuration written in Python says, read from its syntax tree; nothing is run.

Constants are followed through names, default arguments, ``argparse`` defaults and calls of functions in the same file.
What is worked out in any other way is open. Each function that says something is a configuration by itself, with what
the file says outside of functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .keys import Said, Unresolved

DEEPEST = 6  # functions that call each other
MOST = 20_000  # keys of a file
_KEPT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Block:
    """What one function, or the file outside of functions, says.

    Args:
        name: of the function; empty outside of any.
        pairs: keys with their values, in order.
    """

    name: str
    pairs: tuple[Said, ...]


def blocks_of(text: str, file: str) -> list[Block]:
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
    blocks = [Block(name, (*top, *pairs)) for name, pairs in said.items() if pairs]
    return blocks or [Block("", tuple(top))]


@dataclass(frozen=True, slots=True)
class _Scope:
    """Names with the constants that they stand for, and the defaults of the command line."""

    names: dict[str, object]
    options: Mapping[str, object] = field(default_factory=dict)

    def inner(self, names: Mapping[str, object]) -> _Scope:
        """The same with further names."""
        return _Scope({**self.names, **names}, self.options)


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
        yield from self.statements(node.body, outside.inner({**known, **given}), deep)

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
            if not isinstance(_constant(value, scope), Unresolved):
                scope.names[target] = _constant(value, scope)
            return
        constant = _constant(value, scope)
        if target.isidentifier():
            scope.names[target] = constant
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
        return inner if isinstance(inner, int | float | Unresolved) else Unresolved(ast.unparse(node)[:80])
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
