"""The house rules: who may import whom, frozen nouns, functions of a size to read, no assert and no print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "debubble"
FILES = sorted(SOURCE.rglob("*.py"))

# Room -> other rooms that it may import. Type-checking imports count. The face (``__init__``) and cli may import all.
MAY = {
    "core": set(),
    "schedules": {"core"},
    "synthesis": {"core", "schedules"},
    "config": {"core", "schedules"},
    "frameworks": {"core", "schedules", "config"},
    "readers": {"core", "config", "reconstruct"},
    "reconstruct": {"core"},
    "estimate": {"core", "config"},
    "planning": {"core", "schedules", "config", "frameworks", "estimate"},
    "diagnosis": {"core", "schedules", "config", "frameworks"},
    "drawing": {"core"},
    "report": {
        *("core", "schedules", "config", "frameworks", "estimate", "planning", "synthesis", "diagnosis", "drawing"),
        "recorder",
    },
    "verbs": {
        *(
            "core",
            "schedules",
            "config",
            "frameworks",
            "readers",
            "reconstruct",
            "estimate",
            "planning",
            "synthesis",
        ),
        *("diagnosis", "drawing", "report", "runner", "recorder"),
    },
    "runner": {"core", "schedules", "config", "readers", "recorder"},
    "recorder": {"core", "readers"},
}
BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Files of core that hold nouns; each imports only those above it.
NOUNS = [
    "results",
    "errors",
    "units",
    "schedule",
    "engine",
    "program",
    "costs",
    "observation",
]


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Every node of a file, its module first; each file is read once for all laws."""
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def rooms_imported(file: Path) -> set[str]:
    """Names of our own rooms or flat files that a file imports."""
    found = set()
    package = file.relative_to(SOURCE.parent).with_suffix("").parts[:-1]
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            path = [*base, *(node.module.split(".") if node.module else [])]
            found |= {path[1]} if len(path) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("debubble."):
            found.add(node.module.split(".")[1])
    return found


@cache
def outside_imports(file: Path) -> set[str]:
    """Top-level names of other packages that a file imports."""
    tree = nodes_of(file)
    names: set[str] = set()
    for node in tree:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


@cache
def files_imported(file: Path) -> set[Path]:
    """Our own files that a file imports, at any depth of its functions."""
    package = file.relative_to(SOURCE.parent).parts[:-1]
    found: set[Path] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = SOURCE.parent.joinpath(*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            named = [base / alias.name for alias in node.names]
            found |= {path.with_suffix(".py") for path in [base, *named] if path.with_suffix(".py").is_file()}
    return found


def functions_of(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, those inside others too."""
    for node in nodes_of(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def depth(node: ast.AST) -> int:
    """Blocks inside each other below a node; an ``elif`` is as deep as its ``if``, inner functions are apart."""
    below = (child for child in ast.iter_child_nodes(node) if not isinstance(child, SCOPES))
    return max((depth(child) + (isinstance(child, BLOCKS) and not is_elif(node, child)) for child in below), default=0)


def is_elif(node: ast.AST, child: ast.AST) -> bool:
    """Also for the one ``if`` inside an ``else``, which ``ast`` does not tell apart."""
    return isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]


MOST_OPTIONS = 70  # lines of any function at all


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring, which tells the arguments of a verb one by one."""
    first = function.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return function.end_lineno - function.lineno - (first.end_lineno - first.lineno + 1 if told else 0)


def is_signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a verb that passes its options on: a line for each of them, a docstring and one statement."""
    return len(function.body) == 2 and lines_of(function) - len(function.args.kwonlyargs) < 10


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Parameters that may be given by position, without the object or class that a method is of."""
    taken = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return [name for name in taken if name not in ("self", "cls")]


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether click calls it, by name, with as many parameters as the verb has options."""
    return any(ast.unparse(each).startswith("click.command(") for each in function.decorator_list)


def room_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_rooms_import_only_what_their_row_allows(file):
    room = room_of(file)
    if room in ("cli", "__init__", "__main__"):
        return
    assert rooms_imported(file) <= MAY[room] | {room}, f"{room} may import {sorted(MAY[room])}"


@pytest.mark.parametrize("noun", NOUNS)
def test_nouns_of_core_import_only_nouns_above_them(noun):
    above = NOUNS[: NOUNS.index(noun)]
    assert {file.stem for file in files_imported(SOURCE / "core" / f"{noun}.py")} <= set(above)


def test_no_files_import_each_other_in_a_circle():
    imports = {file: files_imported(file) for file in FILES}
    while free := {file for file, names in imports.items() if not names & imports.keys()}:
        imports = {file: names for file, names in imports.items() if file not in free}
    assert not sorted(str(file.relative_to(SOURCE)) for file in imports)


def test_no_chain_of_imports_is_longer_than_twelve_files():
    """Nouns lie below what acts on them, and who composes passes values on: else every file needs all others."""
    longest: dict[Path, list[Path]] = {}

    def chain(file: Path) -> list[Path]:
        if file not in longest:
            longest[file] = [file, *max(map(chain, files_imported(file)), key=len, default=[])]
        return longest[file]

    found = max(map(chain, FILES), key=len)
    assert len(found) <= 12, " > ".join(str(file.relative_to(SOURCE)) for file in found)


def test_only_the_runner_imports_torch():
    assert {room_of(f) for f in FILES if "torch" in outside_imports(f)} <= {"runner"}


def test_only_verbs_import_the_runner():
    face = {"__init__"}  # ``annotate`` is a public name, loaded when it is first used
    assert {room_of(f) for f in FILES if "runner" in rooms_imported(f)} <= {"runner", "verbs", "cli"} | face


def test_nothing_imports_the_command_line():
    assert {room_of(f) for f in FILES if "cli" in rooms_imported(f)} <= {"cli", "__main__"}


def test_only_the_command_line_and_the_face_import_verbs():
    assert {room_of(f) for f in FILES if "verbs" in rooms_imported(f)} <= {"verbs", "cli", "__init__"}


def test_core_and_config_import_nothing_but_numpy_and_the_standard_library():
    import sys

    for file in FILES:
        if room_of(file) in ("core", "config") and file.stem not in ("kernels",):
            assert outside_imports(file) <= {"numpy", *sys.stdlib_module_names}, file


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_every_file_opens_with_one_sentence_that_says_its_idea(file):
    text = ast.get_docstring(nodes_of(file)[0])
    assert text
    first = text.splitlines()[0]
    assert len(first) <= 120
    assert first[-1] in ".:"


def test_every_dataclass_is_frozen_and_has_slots():
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if "dataclass" in text:
                        assert "frozen=True" in text, (file.name, node.name)
                        assert "slots=True" in text, (file.name, node.name)


def test_no_assert_and_no_print_in_the_library():
    for file in FILES:
        for node in nodes_of(file):
            assert not isinstance(node, ast.Assert), file
            is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not is_print or room_of(file) == "cli", file


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_no_function_is_longer_than_60_lines_deeper_than_3_blocks_or_takes_more_than_5_by_position(file):
    for function in functions_of(file):
        assert lines_of(function) < (MOST_OPTIONS if is_signature(function) else 60), function.name
        assert depth(function) <= 3, function.name
        assert len(positional(function)) <= 5 or is_command(function), function.name


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("pass", 0),
        ("if a:\n  pass\nelif b:\n  pass\nelif c:\n  pass", 1),
        ("for a in b:\n  with c:\n    try:\n      pass\n    except d:\n      if e:\n        pass", 4),
        ("while a:\n  def inner():\n    if b:\n      pass", 1),
        ("if a:\n  pass\nelse:\n  for b in c:\n    pass", 2),
    ],
)
def test_blocks_are_counted_as_they_are_read(text, deep):
    assert depth(ast.parse(text)) == deep


@pytest.mark.parametrize("file", sorted((SOURCE / "schedules").rglob("*.py")), ids=lambda f: f.stem)
def test_every_schedule_cites_its_paper(file):
    text = file.read_text()
    if "\nENTRY = Entry(" in text and file.stem != "forward_only":  # inference needs no paper
        assert "https://" in ast.get_docstring(ast.parse(text))
