"""Shell: what a launch script would run, with its variables filled in, without running anything.

A condition that the script decides by itself takes its branch. Where it rests on the surroundings, every branch is
looked at: a variable that they leave different is open, but for words that one branch adds, which are taken as given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub

from .shell_syntax import Branches, Chain, Function, Group, Loop, Node, Simple, Token, parse, tokens

LONGEST = 20_000  # characters that a word may grow to: forty doublings of one stand for 10^12
MOST_COMMANDS = 2_000
DEEPEST = 12  # functions inside each other, and variables that name variables
MOST_ROUNDS = 32  # of a loop over words

Variable = str | tuple[str, ...]
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$(?:\{(#?)([A-Za-z_]\w*|[\d@*#])(\[[@*\w]+\])?([^{}]*|.*)\}|([A-Za-z_]\w*|[\d@*#]))", re.DOTALL)
_DEFAULT = re.compile(r":?([-=])(.*)|:(\d+)$", re.DOTALL)
_SIGNS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Div: floordiv, ast.Mod: mod}
_TESTS = {"=": eq, "==": eq, "!=": ne, "-eq": eq, "-ne": ne, "-lt": lt, "-le": le, "-gt": gt, "-ge": ge}
_GOES_WELL = ("cd", "mkdir", "echo", "printf", "source", ".", "module", "set", "ulimit", "sleep", "rm")
_DECLARE = ("export", "declare", "local", "readonly", "typeset")
# Words that launch nothing, whatever follows them.
_PASSIVE = frozenset(
    (
        *("echo", "printf", "cat", "mkdir", "cd", "ls", "rm", "cp", "mv", "touch", "sleep", "wait", "exit", "return"),
        *("break", "continue", "read", "shift", "trap", "ulimit", "module", "pip", "git", "wget", "curl", "tar"),
        *("unset", "alias", "chmod", "chown", "which", "type", "date", "hostname", "nvidia-smi", "grep", "sed", "awk"),
        *("kill", "pkill", "command", "let", "set", "source", ".", "!"),
    )
)
_READS_SCRIPTS = ("sbatch", "bash", "sh", "qsub", "bsub")  # from a here-document
# Files that a shell reads for what is installed, not for a job.
_ENVIRONMENT = re.compile(r"activate|rc$|profile|conda|venv|set_?env|setup|module|\.env$")
_READ_BY_LAUNCHERS = ("NNODES", "NPROC_PER_NODE")  # torchrun's, as ms-swift's own command reads them
# What stands between two quotes: in double ones a backslash takes the next character along, and ${..} may hold quotes.
_QUOTED = {"'": re.compile(r"[^']*"), '"': re.compile(r'(?:\\.|\$\{[^{}]*\}|[^"\\])*', re.DOTALL)}
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_SLURM = {
    ("nodes", "N"): ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    ("ntasks-per-node",): ("SLURM_NTASKS_PER_NODE",),
    ("gpus-per-node",): ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
_HEADER = {"nodes": "SLURM_NNODES", "gpus-per-node": "SLURM_GPUS_PER_NODE"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command that would run; what stays open holds a dollar.

    Args:
        words: with quotes gone and variables filled in.
        line: where it stands.
        surroundings: variables that launchers read by themselves, as they are set there.
    """

    words: tuple[str, ...]
    line: int
    surroundings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """What a script would do.

    Args:
        commands: that may launch something.
        documents: texts that it writes or hands to a command, with the line where each begins.
        lists: variables that hold flags and that no command takes, with their lines.
        header: flags for what its ``#SBATCH`` lines say of nodes and devices.
        unread: files that it reads and that are not there.
    """

    commands: tuple[Command, ...]
    documents: tuple[tuple[str, int], ...]
    lists: tuple[Command, ...]
    header: tuple[str, ...]
    unread: tuple[str, ...] = ()


def run(text: str, beside: Callable[[str], str | None] = lambda _: None) -> Script:
    """Everything that a script would run.

    Args:
        text: of the script.
        beside: reads a file that it names; None for one that is not there.
    """
    slurm = _slurm([word for line in _SBATCH.findall(text) for word in line.split("#")[0].split()])
    header = tuple(f"--{name}={slurm[variable]}" for name, variable in _HEADER.items() if variable in slurm)
    shell = _Shell(slurm, beside)
    shell.block(parse(text), ())
    return Script(tuple(shell.commands), tuple(shell.documents), tuple(_unused(shell)), header, tuple(shell.unread))


def _unused(shell: _Shell) -> Iterator[Command]:
    """Variables that hold flags and that no command takes: some other script reads this one and launches with them."""
    used = {word for command in shell.commands for word in command.words}
    for name, value in shell.variables.items():
        words = _words(value)
        if any(word.startswith("--") for word in words) and not used.issuperset(words):
            yield Command(words, shell.lines.get(name, 1))


def _words(value: Variable) -> tuple[str, ...]:
    """A variable as the words that it makes without quotes around it."""
    return tuple(value.split()) if isinstance(value, str) else value


def _joined(value: Variable) -> str:
    """A variable as the one word that it makes in quotes."""
    return value if isinstance(value, str) else " ".join(value)


def _slurm(header: Sequence[str]) -> dict[str, Variable]:
    """The variables that Slurm sets by the header of a script."""
    said: dict[str, str] = {}
    for word, following in pairwise([*header, ""]):
        key, equals, value = word.lstrip("-").partition("=")
        said[key] = value if equals else following
    # sbatch counts devices of a node in --gres too, as in gpu:8 or gpu:a100:8.
    if "gres" in said and said["gres"].startswith("gpu:"):
        said["gpus-per-node"] = said["gres"].rsplit(":", 1)[-1]
    found: dict[str, Variable] = {}
    for names, variables in _SLURM.items():
        for name in names:
            if said.get(name, "").isdecimal():
                found |= dict.fromkeys(variables, said[name])
    return found


class _Shell:
    """The state of a shell while a script runs: the one thing here that changes."""

    __slots__ = ("beside", "commands", "depth", "documents", "functions", "lines", "unread", "variables")

    def __init__(self, variables: dict[str, Variable], beside: Callable[[str], str | None]) -> None:
        self.variables, self.beside = variables, beside
        self.unread: list[str] = []
        self.commands: list[Command] = []
        self.documents: list[tuple[str, int]] = []
        self.functions: dict[str, tuple[Node, ...]] = {}
        self.lines: dict[str, int] = {}  # where each variable was set last
        self.depth = 0

    def block(self, nodes: Sequence[Node], arguments: tuple[str, ...]) -> bool | None:
        """Run commands in order; whether the last one went well, None where that cannot be told."""
        went: bool | None = True
        for node in nodes:
            if len(self.commands) > MOST_COMMANDS:
                return None
            went = self.node(node, arguments)
        return went

    def node(self, node: Node, arguments: tuple[str, ...]) -> bool | None:
        """Run one of them."""
        if isinstance(node, Simple):
            return self.simple(node, arguments)
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Group):
            return self.block(node.body, arguments)
        if isinstance(node, Chain):
            return self.chain(node, arguments)
        if isinstance(node, Branches):
            return self.branches(node, arguments)
        return self.loop(node, arguments)

    def chain(self, node: Chain, arguments: tuple[str, ...]) -> bool | None:
        """``a && b || c``; what may or may not run is looked at as a branch."""
        went: bool | None = True
        for sign, part in node.parts:
            wanted = {"&&": True, "||": False}.get(sign)
            if wanted is None or went is wanted:
                went = self.node(part, arguments)
            elif went is None:
                self.either([(part,)], arguments)
        return went

    def branches(self, node: Branches, arguments: tuple[str, ...]) -> bool | None:
        """The branch whose condition holds, or all that may be."""
        may: list[Sequence[Node]] = []
        for number, body in enumerate(node.bodies):
            holds = self.holds(node, number, arguments)
            if holds is False:
                continue
            may.append(body)
            if holds:
                break
        else:
            may.append(())
        if len(may) == 1:
            return self.block(may[0], arguments)
        self.either([body for body in may if body], arguments)
        return None

    def holds(self, node: Branches, number: int, arguments: tuple[str, ...]) -> bool | None:
        """Whether the condition of a branch holds; None where that cannot be told."""
        if node.subject is not None:
            subject = " ".join(self.expand(node.subject.text, arguments))
            if "$" in subject:
                return None
            patterns = [" ".join(self.expand(pattern, arguments)) for pattern in node.patterns[number]]
            return any(fnmatchcase(subject, pattern) for pattern in patterns)
        if number >= len(node.conditions):
            return True
        return self.block(node.conditions[number], arguments)

    def loop(self, node: Loop, arguments: tuple[str, ...]) -> bool | None:
        """Each round of a loop over known words; of any other loop one."""
        if not node.variable:
            holds = self.block(node.condition, arguments)
            if holds is not None and holds == node.negated:
                return True
            self.either([node.body], arguments)
            return None
        words = [word for token in node.words for word in self.expand(token.text, arguments)]
        if not words or any("$" in word for word in words) or len(words) > MOST_ROUNDS:
            self.variables.pop(node.variable, None)
            return self.block(node.body, arguments)
        for word in words:
            self.variables[node.variable] = word
            self.block(node.body, arguments)
        return True

    def either(self, bodies: Sequence[Sequence[Node]], arguments: tuple[str, ...]) -> None:
        """Look at branches of which any, or none, may run."""
        before = dict(self.variables)
        after: list[dict[str, Variable]] = []
        for body in bodies:
            self.variables = dict(before)
            self.block(body, arguments)
            after.append(self.variables)
        self.variables = dict(before)
        for name in dict.fromkeys(name for each in after for name in each):
            values = [each[name] for each in after if name in each]
            if name in before:
                values = [before[name], *(value for value in values if value != before[name])]
            self.variables[name] = _agreed(name, list(dict.fromkeys(values)))

    def simple(self, node: Simple, arguments: tuple[str, ...]) -> bool | None:
        """One command: an assignment, a function, a test, or something that would run."""
        for document in node.documents:
            text = document.text
            if not document.literal:
                text = self.filled(text, arguments)
            self.documents.append((text, document.line))
        rest = list(node.words)
        while rest and self.assigned(rest[0], arguments):
            rest.pop(0)
        words = [word for token in rest for word in self.expand(token.text, arguments)]
        if not words:
            return True
        first = words[0]
        if first == "!" and len(rest) > 1:
            return _contrary(self.simple(Simple(tuple(rest[1:]), node.line), arguments))
        if first in _DECLARE:
            for token in rest[1:]:
                self.assigned(token, arguments)
            return True
        if first in self.functions and self.depth < DEEPEST:
            self.depth += 1
            went = self.block(self.functions[first], tuple(words[1:]))
            self.depth -= 1
            return went
        if first in ("[", "[[", "test"):
            return _tested(words[1:])
        if first in ("true", "false", ":"):
            return first != "false"
        if first in _READS_SCRIPTS and node.documents:  # sbatch <<EOF: the document is the script
            for text, _ in self.documents[-len(node.documents) :]:
                self.inner(text, arguments)
            return None
        return self.launched(words, node.line, arguments)

    def launched(self, words: list[str], line: int, arguments: tuple[str, ...]) -> bool | None:
        """A command of another program; a text that a shell is to run is run here."""
        if words[0] == "eval" and len(words) > 1:
            return self.inner(" ".join(words[1:]), arguments)
        if words[0] in ("source", ".") and len(words) > 1:
            return self.sourced(words[1], arguments)
        if words[0] in _GOES_WELL:
            return True
        if words[0] in _PASSIVE:
            return None  # whether a file is there, or a grep finds something, only the machine knows
        for n, word in enumerate(words[:-1]):
            if word in ("-c", "-lc") and any(shell in words[:n] for shell in ("bash", "sh", "/bin/bash", "/bin/sh")):
                outer = Command(tuple(words[:n]), line)
                before = len(self.commands)
                self.inner(words[n + 1], arguments)
                inner = self.commands[before:]
                self.commands[before:] = [replace(one, words=outer.words + one.words, line=line) for one in inner]
                return None
        parts: list[str] = []
        for word in words:
            # A list of flags in quotes is one word to a shell; whoever wrote it meant the flags.
            parts += word.split() if " " in word and " --" in f" {word}" else [word]
        known = {name: self.known(name, ()) for name in _READ_BY_LAUNCHERS}
        surroundings = tuple((name, value) for name, value in known.items() if value is not None and "$" not in value)
        self.commands.append(Command(tuple(parts), line, surroundings))
        return None

    def sourced(self, named: str, arguments: tuple[str, ...]) -> bool:
        """Commands of another file, where it is there; an environment that is switched on says nothing of a job."""
        text = self.beside(named)
        if text is not None:
            self.inner(text, arguments)
        elif not _ENVIRONMENT.search(named):
            self.unread.append(named)
        return True

    def inner(self, text: str, arguments: tuple[str, ...]) -> bool | None:
        """Commands in a text."""
        if self.depth >= DEEPEST:
            return None
        self.depth += 1
        went = self.block(parse(text), arguments)
        self.depth -= 1
        return went

    def assigned(self, token: Token, arguments: tuple[str, ...]) -> bool:
        """Whether a word is an assignment; its variable is then set."""
        match = _ASSIGNED.fullmatch(token.text)
        if match is None:
            return False
        name, more, text = match[1], bool(match[2]), match[3]
        self.lines[name] = token.line
        if text.startswith("(") and text.endswith(")"):
            elements: list[str] = []
            if more and name in self.variables:
                held = self.variables[name]
                elements += [held] if isinstance(held, str) else held
            for each in _listed(text[1:-1]):
                elements += self.expand(each, arguments)
            self.variables[name] = tuple(elements)
            return True
        value = " ".join(self.expand(text, arguments, split=False))
        if more and name in self.variables:
            value = _joined(self.variables[name]) + value
        self.variables[name] = value
        return True

    def expand(self, text: str, arguments: tuple[str, ...], *, split: bool = True) -> list[str]:
        """A word without its quotes, with variables filled in: none, one or several words.

        ``a$X"b"`` is one word unless X holds spaces outside of quotes; a list in quotes, ``"${L[@]}"``, is a word for
        each element, the first and the last of which grow together with what stands next to them.
        """
        words: list[str] = []
        grown, quoted = "", False  # the word that grows, and whether it is one even if it stays empty
        for part, quote in _parts(text):
            quoted = quoted or bool(quote)
            listed = self.elements(part, arguments) if quote == '"' else None
            if listed is not None:
                quoted = bool(listed)
                if listed:
                    *whole, grown = (grown + listed[0], *listed[1:])
                    words += whole
                continue
            value = part if quote == "'" else self.filled(part, arguments)
            if quote or not split:
                grown += value
                continue
            # Spaces of a value that is not in quotes end words: "a b" ends one and begins another.
            first, *others = re.split(r"\s+", value)
            grown += first
            for other in others:
                if grown:
                    words.append(grown)
                grown = other
        if grown or quoted:
            words.append(grown)
        return words

    def elements(self, text: str, arguments: tuple[str, ...]) -> tuple[str, ...] | None:
        """The words of ``"${LIST[@]}"`` and ``"$@"``; None where the text is something else."""
        if text in ("$@", "${@}"):
            return arguments
        match = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[@\]\}", text)
        if match is None or match[1] not in self.variables:
            return None
        value = self.variables[match[1]]
        if isinstance(value, str):
            return (value,)
        return value

    def filled(self, text: str, arguments: tuple[str, ...]) -> str:
        """With known variables and sums filled in; what is not known stays as it is."""
        for _ in range(DEEPEST):
            new = self._once(text, arguments)
            if new == text or len(new) > LONGEST:
                break
            text = new
        return text

    def _once(self, text: str, arguments: tuple[str, ...]) -> str:
        """One round: the innermost ``${..}`` first, then sums."""
        grown = 0

        def known(match: re.Match[str]) -> str:
            nonlocal grown
            value = self.value(match[0], arguments)
            grown += len(value)
            if grown > LONGEST:
                return match[0]
            return value

        plain = re.sub(r"\$\{[^{}]*\}|\$(?:[A-Za-z_]\w*|[\d@*#])", known, text)
        return re.sub(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)", lambda m: self.sum(m, arguments), plain)

    def value(self, text: str, arguments: tuple[str, ...]) -> str:
        """What ``$X`` or ``${X..}`` stands for; the text itself where that is not known."""
        match = _NAMED.fullmatch(text)
        if match is None:
            return text
        name, rest = match[2] or match[5], match[4] or ""
        known = self.known(name, arguments)
        if known is None or known == text:
            # ${X:-8} and ${X=8} have a default; ${X:8}, Hydra's form, is no shell's but people write it.
            default = _DEFAULT.fullmatch(rest)
            if default is None:
                return text
            chosen = default[3] if default[2] is None else default[2]
            return "".join(part for part, _ in _parts(chosen))  # ${X:-"8"} is 8
        if match[1]:
            return text
        if rest.startswith((":+", "+")):
            return rest.lstrip(":+")
        if rest[:1] in ("%", "/", ",", "^", "#"):
            return text  # a value that is cut or replaced stays open
        return known

    def known(self, name: str, arguments: tuple[str, ...]) -> str | None:
        """The value of a variable or an argument."""
        if name == "#":
            return str(len(arguments))
        if name in ("@", "*"):
            return " ".join(arguments)
        if name.isdecimal():
            place = int(name)
            return arguments[place - 1] if 0 < place <= len(arguments) else None
        if name not in self.variables:
            return None
        return _joined(self.variables[name])

    def sum(self, match: re.Match[str], arguments: tuple[str, ...]) -> str:
        """The value of ``$((..))``, in which a variable needs no dollar."""
        named = re.sub(r"(?<![$\w{])[A-Za-z_]\w*", lambda m: self.known(m[0], arguments) or m[0], match[1])
        try:
            return str(_evaluated(ast.parse(named.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return match[0]


def _agreed(name: str, values: list[Variable]) -> Variable:
    """What branches leave of a variable: one value, the longest of those that add to it, or an open one."""
    if len(values) == 1:
        return values[0]
    longest = max(values, key=len)
    if all(longest[: len(value)] == value for value in values):
        return longest
    texts = " or ".join(map(_joined, values))
    return f"${{{name}: {texts[:80]}}}"


def _parts(text: str) -> list[tuple[str, str]]:
    """A word cut where its quotes begin and end, each part with its quote."""
    found: list[tuple[str, str]] = []
    at, plain = 0, ""
    while at < len(text):
        char = text[at]
        if char in "'\"":
            if plain:
                found.append((plain, ""))
            match = _QUOTED[char].match(text, at + 1)
            inner = match[0] if match else ""
            at, plain = at + len(inner) + 2, ""
            if char == '"':  # a backslash joins lines, and takes the meaning of four characters away
                inner = re.sub(r'\\([\\"$`])', r"\1", inner.replace("\\\n", ""))
            found.append((inner, char))
        elif char == "\\":
            plain += text[at + 1 : at + 2].replace("\n", "")
            at += 2
        elif char == "$" and text[at + 1 : at + 2] in ("(", "{"):
            end = _closed(text, at + 1)
            plain += text[at:end]
            at = end
        else:
            plain += char
            at += 1
    if plain:
        found.append((plain, ""))
    return found


def _closed(text: str, start: int) -> int:
    """Behind the bracket that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "({") - (text[at] in ")}")
        if depth == 0:
            return at + 1
    return len(text)


def _listed(text: str) -> list[str]:
    """The words of a list in brackets."""
    return [token.text for token in tokens(text) if token.form == "word"]


def _contrary(holds: bool | None) -> bool | None:
    """The contrary of what may not be known."""
    if holds is None:
        return None
    return not holds


def _tested(words: list[str]) -> bool | None:
    """Whether a test holds; None where it rests on the surroundings."""
    words = [word for word in words if word not in ("]", "]]")]
    if words[:1] == ["!"]:
        return _contrary(_tested(words[1:]))
    for sign, wanted in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if sign in words:
            at = words.index(sign)
            sides = (_tested(words[:at]), _tested(words[at + 1 :]))
            if wanted in sides:
                return wanted
            if None in sides:
                return None
            return not wanted
    if len(words) == 2 and words[0] in ("-n", "-z"):
        if re.fullmatch(r"\$\{?\d+\}?", words[1]):  # the script is taken to run without arguments
            return words[0] == "-z"
        if "$" in words[1]:
            return None
        return (words[1] == "") == (words[0] == "-z")
    if words in (["-n"], ["-z"]):
        return words == ["-z"]
    if len(words) != 3 or words[1] not in _TESTS or any("$" in word or "`" in word for word in words):
        return None
    left, sign, right = words
    if not sign.startswith("-"):  # = and != compare texts, of which the right one may be a pattern
        return fnmatchcase(left, right) == (sign != "!=")
    if left.isdecimal() and right.isdecimal():
        return bool(_TESTS[sign](int(left), int(right)))
    return None


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        found: int = _SIGNS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(found) < 10**12:
            return found
    raise ValueError("not a sum of whole numbers")
