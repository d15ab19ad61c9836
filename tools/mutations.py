"""One-line mutations of a Python file: small changes of meaning that a test should notice.

Each changes one place on one line, so that a survivor is read as a diff of one line:

    comparison  a < b       -> a <= b         == and !=, is and is not, in and not in
    arithmetic  a + b       -> a - b, a       * and /, // and *, % and //, & and |, << and >>
    logic       a and b     -> a or b, a      not a -> a
    number      1           -> 2, 0           2.5 -> 5.0, True -> False
    branch      if a        -> if not (a)     the two arms of a conditional expression
    call        min(a, b)   -> max(a, b), a   any and all, floor and ceil, argmin and argmax ..
    name        Kind.I      -> Kind.W         F and B; start and end, rank and stage .. where the file knows both
    statement   f(x)        -> pass           break and continue

What only people read (messages, text, annotations, decorators, ``raise``) is left alone: a test of it would test words.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass

Place = tuple[int, int]  # line from 1, character from 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """One changed place.

    Args:
        line: number of the line, from 1.
        before: the line as it is.
        after: the line as it becomes.
    """

    line: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        """The whole file with this one line changed."""
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after)
        return "".join(lines)

    def is_python(self, source: str) -> bool:
        """Whether the changed file can still be parsed: a line that holds a bracket of another one may not."""
        try:
            ast.parse(self.applied(source))
        except SyntaxError:
            return False
        return True


_COMPARED: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("not", ""),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not", ""),
}
_COMPUTED: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_CALLS = (
    ("min", "max"),
    ("any", "all"),
    ("floor", "ceil"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("zeros", "ones"),
)
# Names of the subject that are easily taken for each other.
_NAMES = (
    *_CALLS,
    ("start", "end"),
    ("begin", "end"),
    ("starts", "ends"),
    ("first", "last"),
    ("before", "after"),
    ("there", "back"),
    ("producer", "consumer"),
    ("sender", "receiver"),
    ("source", "target"),
    ("forward", "backward"),
    ("input", "weight"),
    ("least", "most"),
    ("rank", "stage"),
    ("ranks", "stages"),
    ("busy", "idle"),
    ("mean", "median"),
)
_CALLED = {name: other for pair in _CALLS for name, other in (pair, pair[::-1])}
_NAMED = {name: other for pair in _NAMES for name, other in (pair, pair[::-1])}
_KINDS = {"F": "B", "B": "F", "I": "W", "W": "I"}
# Arguments that say how, not what: most changes of them change nothing.
_HOW = {"strict", "frozen", "slots", "eq", "kw_only", "init", "copy", "dtype", "encoding", "initial"}
_FOR_PEOPLE = {"Fault", "Finding", "cast", "TypeVar", "field", "getLogger", "warn"}
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple)


def mutations(source: str) -> list[Mutation]:
    """All mutations of a file, in order of its lines; ask each whether it ``is_python``."""
    tree = ast.parse(source)
    sites = _Sites(source, {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)})
    sites.visit(tree)
    return sorted(set(sites.made), key=lambda each: (each.line, each.after))


class _Sites(ast.NodeVisitor):
    """Walks a tree and notes what could be changed; places are those of characters, as in the text."""

    def __init__(self, source: str, attributes: set[str]) -> None:
        self.attributes = attributes
        self.names: set[str] = set()  # of the function that is visited
        self.lines = source.splitlines()
        # By text: a file has thousands, and each node looks one up.
        self.tokens: dict[str, list[tokenize.TokenInfo]] = {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            self.tokens.setdefault(token.string, []).append(token)
        self.made: list[Mutation] = []

    # Places ---------------------------------------------------------------------------------------------------------

    def span(self, node: ast.expr | ast.stmt) -> tuple[Place, Place]:
        """Where a node starts and ends; ``ast`` counts bytes, so what is not ASCII is counted again."""
        ends = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self._characters(node.lineno, node.col_offset), self._characters(*ends)

    def _characters(self, line: int, offset: int) -> Place:
        return line, len(self.lines[line - 1].encode()[:offset].decode())

    def text(self, node: ast.expr) -> str | None:
        """A node as it is written, where it stands on one line."""
        (line, begin), (last, end) = self.span(node)
        return self.lines[line - 1][begin:end] if line == last else None

    def put(self, begin: Place, end: Place, new: str) -> None:
        """Note that what stands between two places of one line becomes something else."""
        (line, left), (last, right) = begin, end
        before = self.lines[line - 1]
        after = before[:left] + new + before[right:]
        if line == last and after != before:
            self.made.append(Mutation(line, before, after))

    def put_node(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Note that a whole node becomes something else."""
        self.put(*self.span(node), new)

    def put_token(self, old: str, new: str, begin: Place, end: Place) -> None:
        """Note that the first such token between two places becomes something else."""
        for token in self.tokens.get(old, ()):
            if begin <= token.start and token.end <= end:
                self.put(token.start, token.end, new)
                return

    # What is left alone ---------------------------------------------------------------------------------------------

    def visit_Raise(self, node: ast.Raise) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name.startswith("_repr") or node.name in ("__repr__", "__str__"):
            return
        outside = self.names
        self.names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self.names |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        for each in (*node.args.defaults, *(value for value in node.args.kw_defaults if value), *node.body):
            self.visit(each)
        self.names = outside

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in node.body:
            self.visit(each)

    # What is changed ------------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.put_token(*_COMPARED[type(op)], self.span(left)[1], self.span(right)[0])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = (node.left, node.right)
        texts = any(isinstance(side, _TEXT) or _is_text(side) for side in sides)
        if not texts and type(node.op) in _COMPUTED:
            self.put_token(*_COMPUTED[type(node.op)], self.span(node.left)[1], self.span(node.right)[0])
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult) and (kept := self.text(node.left)):
                self.put_node(node, kept)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _COMPUTED and not isinstance(node.value, _TEXT) and not _is_text(node.value):
            old, new = _COMPUTED[type(node.op)]
            self.put_token(f"{old}=", f"{new}=", self.span(node.target)[1], self.span(node.value)[0])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.put_token(old, new, self.span(left)[1], self.span(right)[0])
            self.put(self.span(left)[1], self.span(right)[1], "")
        self.put(self.span(node.values[0])[0], self.span(node.values[1])[0], "")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.UAdd):
            self.put(self.span(node)[0], self.span(node.operand)[0], "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.put_node(node, str(not value))
        elif isinstance(value, int) and value > 8:
            self.put_node(node, str(2 * value))  # a limit or a size: one more would change next to nothing
        elif isinstance(value, int):
            self.put_node(node, str(value + 1))
            if value > 0:
                self.put_node(node, str(value - 1))
        elif isinstance(value, float):
            self.put_node(node, repr(2 * value) if value else "1.0")

    def visit_Name(self, node: ast.Name) -> None:
        other = _NAMED.get(node.id)
        if other in self.names and isinstance(node.ctx, ast.Load):
            self.put_node(node, other)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        kind = isinstance(node.value, ast.Name) and node.value.id == "Kind"
        other = _KINDS.get(node.attr) if kind else _CALLED.get(node.attr)
        if other is None and _NAMED.get(node.attr) in self.attributes:
            other = _NAMED[node.attr]
        if other is not None:
            self.put_token(node.attr, other, self.span(node.value)[1], self.span(node)[1])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _FOR_PEOPLE:
            return
        if isinstance(node.func, ast.Name) and name in _CALLED:
            self.put_node(node.func, _CALLED[name])
        if name == "len":
            self.put_node(node, f"({self.text(node)} - 1)")
        if name in ("abs", "sorted") and len(node.args) == 1 and not node.keywords:
            self.put_node(node.func, "" if name == "abs" else "list")
        if name in ("min", "max", "minimum", "maximum") and len(node.args) == 2 and not node.keywords:
            for each in node.args:
                if kept := self.text(each):
                    self.put_node(node, kept)
        self.visit(node.func)
        for each in node.args:
            self.visit(each)
        for keyword in node.keywords:
            if keyword.arg not in _HOW:
                self.visit(keyword.value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        body, other = self.text(node.body), self.text(node.orelse)
        if body and other and (test := self.text(node.test)):
            self.put_node(node, f"{other} if {test} else {body}")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        test = self.text(node.test)
        if test == "TYPE_CHECKING":
            return
        if test and not _only_raises(node.body):
            self.put_node(node.test, f"not ({test})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _writes_words(node.value):
            self.put_node(node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.put_node(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.put_node(node, "break")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not _is_type(node.value):  # ``dict[str, int]`` as a base or an alias
            self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("dict", "list", "tuple", "set", "NDArray", "Callable")


def _only_raises(body: list[ast.stmt]) -> bool:
    """Whether a branch refuses: that it does is worth a test, but the reverse condition is found by any."""
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _writes_words(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in ("write", "warn", "update") or any(isinstance(each, ast.JoinedStr) for each in call.args)
