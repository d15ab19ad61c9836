"""Flags: a command line or a launch script as pairs of key and value, with the script's own variables filled in."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Sequence
from operator import add, floordiv, mul, sub

Pairs = list[tuple[str, object]]

_ASSIGN = re.compile(r"^\s*(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?([A-Za-z_]\w*)\+?=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_DUMP = re.compile(r"^\s*(?:\[.*?\]:?\s*)?(\w+) \.{3,} (.+?)\s*$", re.MULTILINE)
_SIGNS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Div: floordiv}
END = "--"
_DEEPEST = 10  # variables that name variables


def pairs_of(words: Sequence[str]) -> Pairs:
    """``--key value``, ``--key=value``, ``--key a b c`` and ``--switch`` (True); other words are left out.

    ``--`` ends the values of a flag, as do the name of a list, a flag of one dash and the program that is launched.
    """
    found: Pairs = []
    key, values = "", list[str]()

    def close() -> None:
        if key:
            found.append((key, " ".join(values) if values else True))

    for word in words:
        ends = word == END or word.endswith(("[@]}", "[*]}")) or _starts_another(word, values)
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
    return found


def _starts_another(word: str, values: Sequence[str]) -> bool:
    """Whether a word cannot be one more value: ``--nnodes 16 train.py``, ``--nproc-per-node 8 -m train``."""
    return bool(re.match(r"-[A-Za-z]", word)) or (bool(values) and word.endswith(".py"))


def script_pairs(text: str) -> Pairs:
    """The flags of a launch script; where it holds none, the argument dump of a log (``name ..... value``)."""
    words = _words(text)
    pairs = pairs_of(words)
    return pairs or dump_pairs(text)


def dump_pairs(text: str) -> Pairs:
    """The arguments that Megatron-LM prints into its log before it starts, ``name ..... value``."""
    words: dict[str, object] = {"True": True, "False": False, "None": None}
    return [("--" + key.replace("_", "-"), words.get(value, value)) for key, value in _DUMP.findall(text)]


def _words(text: str) -> list[str]:
    """Words of all commands, variables filled in; a bracket or bar that ends a list ends the values of a flag."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in _lines(text):
        match = _ASSIGN.match(line)
        if match and not match[2].startswith("("):
            variables[match[1]] = _filled(" ".join(_split(match[2])), variables)
            words += [*_split(variables[match[1]]), END] if END in variables[match[1]] else []
            continue
        body = match[2].strip().removeprefix("(").removesuffix(")") if match else line
        words += [part for word in _split(_filled(body, variables)) for part in (word.split() or [word])]
        words.append(END)
    return words


def _lines(text: str) -> Iterable[str]:
    """Commands, with continued lines and lists in brackets joined."""
    joined = re.sub(r"(?m)(^|\s)#.*$", "", text)  # a comment ends with its line, whatever stands at the end of it
    joined = re.sub(r"\\\r?\n", " ", joined)
    joined = re.sub(r"=\(([^()]*)\)", lambda m: "=(" + m[1].replace("\n", " ") + ")", joined)
    return re.split(r"[\n;]", _quotes_joined(joined))


def _quotes_joined(text: str) -> str:
    return re.sub(r'"[^"]*"', lambda m: m[0].replace("\n", " "), text)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.replace('"', " ").replace("'", " ").split()


def _filled(text: str, variables: dict[str, str]) -> str:
    """With known variables and sums of whole numbers filled in; what is not known stays as it is."""
    for _ in range(_DEEPEST):
        filled = _SUM.sub(_sum, _VARIABLE.sub(lambda m: _value(m, variables), _bare(text, variables)))
        if filled == text or len(filled) > 200_000:
            break
        text = filled
    return text


def _bare(text: str, variables: dict[str, str]) -> str:
    """Inside ``$((..))`` a variable needs no dollar."""
    names = re.compile(r"(?<![$\w{])[A-Za-z_]\w*")
    return _SUM.sub(lambda sums: names.sub(lambda m: variables.get(m[0], m[0]), sums[0]), text)


def _value(match: re.Match[str], variables: dict[str, str]) -> str:
    known = variables.get(match[1] or match[3])
    if known is not None and known != match[0]:
        return known
    return match[2] if match[2] else match[0]


def _sum(match: re.Match[str]) -> str:
    try:
        return str(_evaluated(ast.parse(match[1].strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return match[0]


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        found: int = _SIGNS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(found) < 10**12:
            return found
    raise ValueError("not a sum of whole numbers")
