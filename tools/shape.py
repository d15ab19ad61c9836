"""The figures of the house, from its syntax trees: ``make shape`` prints each beside what CONTRIBUTING asks for.

    python tools/shape.py [--list]

Figures show the plain form, they are not the aim: an expression that is unfolded without becoming clearer, or two
ideas glued into one file, is worse than a figure that is missed.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = 60  # code lines below which a file with one importer is half an idea
_NO_REMARK = ("noqa", "type: ignore", "pragma:", "fmt:")  # comments for tools
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_NAMED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class File:
    """One source file, read once.

    Args:
        path: where it is.
        module: its dotted name; that of the package for ``__init__``.
    """

    path: Path
    module: str

    @cached_property
    def text(self) -> str:
        """The file as text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its tree."""
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def remarks(self) -> set[int]:
        """Lines with a comment for people."""
        comments = [token for token in self._tokens() if token.type == tokenize.COMMENT]
        return {each.start[0] for each in comments if not any(word in each.string for word in _NO_REMARK)}

    @cached_property
    def code(self) -> set[int]:
        """Lines with code on them: no docstring, comment or blank line."""
        lines: set[int] = set()
        for token in self._tokens():
            if token.type != tokenize.COMMENT and token.type not in _LAYOUT:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            if isinstance(node, _NAMED) and ast.get_docstring(node, clean=False) is not None:
                lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        return {line for line in lines if self.text.splitlines()[line - 1].strip()}

    def _tokens(self) -> Iterator[tokenize.TokenInfo]:
        yield from tokenize.generate_tokens(io.StringIO(self.text).readline)

    def length(self, node: ast.stmt) -> int:
        """Code lines of a function."""
        return sum(line in self.code for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def imported(self, modules: Mapping[str, File]) -> set[str]:
        """Modules of the same house that it imports: on top, inside functions, for types, or by a name in a string."""
        found: set[str] = set()
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    found.add(f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in modules else origin)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # ".room.file:name", as a door or a launcher names what it loads late; "debubble" alone is a word.
                name = node.value.split(":")[0]
                if "." in name:
                    found.add(package + name if name.startswith(".") else name)
        return {name for name in found if name in modules} - {self.module}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Args:
        name: what is counted.
        value: how much of it there is.
        limit: what it is held to, None for none.
        most: whether the limit is the most, else the least.
    """

    name: str
    value: float
    limit: float | None = None
    most: bool = True

    @property
    def kept(self) -> bool:
        """Whether it is within its limit."""
        if self.limit is None:
            return True
        return self.value <= self.limit if self.most else self.value >= self.limit


def files_of(folder: Path) -> dict[str, File]:
    """All Python files below a folder, by module."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        files[module] = File(path, module)
    return files


def depth(imports: Mapping[str, set[str]]) -> list[str]:
    """The longest chain of files, each imported by the one before; files in a circle count once."""
    longest: dict[str, list[str]] = {}

    def chain(module: str, above: frozenset[str]) -> list[str]:
        if module not in longest:
            below = [chain(each, above | {module}) for each in sorted(imports[module]) if each not in above]
            longest[module] = [module, *max(below, key=len, default=[])]
        return longest[module]

    return max((chain(module, frozenset()) for module in sorted(imports)), key=len)


def single(files: Mapping[str, File], imports: Mapping[str, set[str]]) -> dict[str, str]:
    """Files that one other file imports, with that file."""
    importers = defaultdict(list)
    for module, names in imports.items():
        for name in names:
            importers[name].append(module)
    packages = {module for module, file in files.items() if file.path.name == "__init__.py"}
    return {name: by[0] for name, by in sorted(importers.items()) if len(by) == 1 and name not in packages}


def figures(source: Path, tests: Path) -> list[Figure]:
    """The whole table."""
    files = files_of(source)
    imports = {module: file.imported(files) for module, file in files.items()}
    count: Counter[str] = Counter()
    lengths = []
    for file in files.values():
        for node in file.nodes:
            count.update(_marks(node))
            if isinstance(node, _FUNCTIONS):
                lengths.append(file.length(node))
    code = sum(len(file.code) for file in files.values())
    tested = sum(len(file.code) for file in files_of(tests).values())
    small = [module for module in single(files, imports) if len(files[module].code) < SMALL]
    remarks = sum(len(file.remarks) for file in files.values())
    return [
        Figure("files", len(files), 200),
        Figure("code lines", code, 22_498),
        Figure("import depth", len(depth(imports)), 12),
        Figure("conditional expressions per 1,000 lines", 1000 * count["conditional"] / code, 20),
        Figure("comprehensions per 1,000 lines", 1000 * count["comprehension"] / code, 40),
        Figure(f"files below {SMALL} lines with one importer", len(small), 11),
        Figure("comments a code line", remarks / code, 0.06, most=False),
        Figure("test lines a code line", tested / code, 0.8, most=False),
        Figure("longest function", max(lengths), 70),
        Figure("functions", len(lengths)),
        Figure("asserts", count["assert"], 0),
        Figure("functions with all types, %", 100 * count["typed"] / len(lengths), 99, most=False),
        Figure("public names with a docstring, %", 100 * count["documented"] / count["public"], 92, most=False),
        Figure("open dictionaries in public signatures", count["open"], 0),
    ]


def _marks(node: ast.AST) -> Iterator[str]:
    """What is counted of one node."""
    if isinstance(node, ast.IfExp):
        yield "conditional"
    elif isinstance(node, _COMPREHENSIONS):
        yield "comprehension"
    elif isinstance(node, ast.Assert):
        yield "assert"
    elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        public = not node.name.startswith("_")
        if public:
            yield "public"
        if public and ast.get_docstring(node) is not None:
            yield "documented"
    if isinstance(node, _FUNCTIONS):
        annotations = _annotations(node)
        if all(each is not None for each in annotations):
            yield "typed"
        if not node.name.startswith("_"):
            yield from ("open" for each in annotations if each is not None and "dict[str, Any]" in ast.unparse(each))


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr | None]:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [node.returns, *(each.annotation for each in arguments if each.arg not in ("self", "cls"))]


def _lists(source: Path) -> Iterator[str]:
    """The files behind the figures: where to look first."""
    files = files_of(source)
    imports = {module: file.imported(files) for module, file in files.items()}
    yield "longest chain: " + " > ".join(depth(imports))
    for module, importer in single(files, imports).items():
        if len(files[module].code) < SMALL:
            yield f"{len(files[module].code):4} lines, only for {importer}: {module}"
    functions = [(f.length(n), f.module, n.name) for f in files.values() for n in f.nodes if isinstance(n, _FUNCTIONS)]
    for length, module, name in sorted(functions, reverse=True)[:10]:
        yield f"{length:4} lines: {module}.{name}"


def main(arguments: Sequence[str]) -> None:
    """Print the table, and with ``--list`` what is behind it."""
    source = ROOT / "src" / "debubble"
    for each in figures(source, ROOT / "tests"):
        value = f"{each.value:,.0f}" if each.value >= 100 or each.value == int(each.value) else f"{each.value:.3g}"
        limit = "" if each.limit is None else f"{'at most' if each.most else 'at least'} {each.limit:,g}"
        sys.stdout.write(f"{each.name:42}{value:>9}   {limit:18}{'' if each.kept else 'missed'}".rstrip() + "\n")
    if "--list" in arguments:
        sys.stdout.write("\n".join(["", *_lists(source), ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
