"""Shell syntax: the text of a script as commands, conditions and loops, with quotes and variables still in its words.

Only what launch scripts hold: simple commands, lists in brackets, here-documents, ``if``, ``case``, ``for``, ``while``,
functions, ``&&`` and ``||``. What cannot be parsed is passed over to the next line, never an error: a script that a
shell would refuse may still hold a launch line that a reader understands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_ASSIGNED = re.compile(r"[A-Za-z_]\w*(\[\w+\])?\+?=")
_OPERATOR = re.compile(r";;&?|;&|&&|\|\||\|&|&>>?|<<<|<<-?|\d*>>?&?\d*|\d*<|[;|&()\n]")
_CLOSERS = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word with its quotes, an operator, or the text of a here-document.

    Args:
        text: as it stands there.
        line: on which it begins, from 1.
        form: ``word``, ``operator`` or ``document``.
        literal: whether variables in a here-document stay as they are.
    """

    text: str
    line: int
    form: str = "word"
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Simple:
    """One command: its words, here-documents that it reads, and where its output goes."""

    words: tuple[Token, ...]
    line: int
    documents: tuple[Token, ...] = ()
    target: Token | None = None


@dataclass(frozen=True, slots=True)
class Branches:
    """``if`` and ``case``: the first branch whose condition holds runs.

    Args:
        conditions: of each branch, commands whose last one decides; for ``case`` empty.
        bodies: of each branch, in their order.
        subject: the word of a ``case``.
        patterns: of each branch of a ``case``.
    """

    conditions: tuple[tuple[Node, ...], ...]
    bodies: tuple[tuple[Node, ...], ...]
    subject: Token | None = None
    patterns: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """``for`` over words, or ``while``, whose condition is a list of commands."""

    body: tuple[Node, ...]
    variable: str = ""
    words: tuple[Token, ...] = ()
    condition: tuple[Node, ...] = ()
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is defined here and runs where it is called."""

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined by ``&&`` and ``||``; each runs only if what came before it went so."""

    parts: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in brackets."""

    body: tuple[Node, ...]


Node = Simple | Branches | Loop | Function | Chain | Group


def parse(text: str) -> tuple[Node, ...]:
    """The commands of a script in their order."""
    parser = _Parser(tokens(text))
    found: list[Node] = []
    while parser.more:
        found += parser.block(frozenset())
        parser.take()  # a word that closes nothing
    return tuple(found)


def tokens(text: str) -> list[Token]:
    """Words and operators; comments and joined lines are gone."""
    return _Lexer(text.replace("\r\n", "\n")).run()


class _Lexer:
    """One pass over the text."""

    __slots__ = ("at", "line", "pending", "test", "text")

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.test = False  # inside [[ .. ]], where && and < are words
        self.pending: list[tuple[str, bool, bool]] = []  # here-documents that begin on the next line

    def run(self) -> list[Token]:
        found: list[Token] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "#":
                self.at = self._end_of_line()
            elif match := _OPERATOR.match(self.text, self.at):
                found += self._operator(match[0])
            else:
                line = self.line
                found.append(Token(self._word(), line))
                self.test = (self.test or found[-1].text == "[[") and found[-1].text != "]]"
        return found

    def _operator(self, text: str) -> list[Token]:
        line = self.line
        self.at += len(text)
        if self.test and text != "\n":
            return [Token(text, line)]
        if text in ("<<", "<<-"):
            while self.text[self.at : self.at + 1] in (" ", "\t"):
                self.at += 1
            word = self._word()
            end = word.strip("'\"\\")
            self.pending.append((end, word != end, text == "<<-"))
            return []
        if text != "\n":
            return [Token(text, line, "operator")]
        self.line += 1
        documents = [self._document(*each) for each in self.pending]
        self.pending = []
        return [*documents, Token("\n", line, "operator")]

    def _document(self, end: str, literal: bool, indented: bool) -> Token:
        line, held = self.line, []
        while self.at < len(self.text):
            stop = self._end_of_line()
            row = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if row == end or (indented and row.lstrip("\t") == end):  # <<- takes tabs away, and spaces never
                break
            held.append(row)
        return Token("\n".join(held), line, "document", literal)

    def _word(self) -> str:
        """A word with its quotes, substitutions and, after ``=``, its list in brackets."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self._skip(2)
            elif char in "'\"`":
                self._quoted(char)
            elif char == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
                self._bracketed(self.at + 1)
            elif char == "(" and _ASSIGNED.fullmatch(self.text[start : self.at]):
                self._bracketed(self.at)
            elif char in " \t\n;|&()<>":
                break
            else:
                self.at += 1
        if self.at == start:  # nothing that begins a word
            self.at += 1
        return self.text[start : self.at]

    def _end_of_line(self) -> int:
        """Where the line ends that is being read."""
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _skip(self, many: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + many)
        self.at = min(self.at + many, len(self.text))

    def _quoted(self, quote: str) -> None:
        self._skip(1)
        while self.at < len(self.text) and self.text[self.at] != quote:
            if quote == "'":  # nothing is special between single quotes
                self._skip(1)
            elif self.text.startswith(("$(", "${"), self.at):  # quotes inside do not end it: "${X:-"8"}"
                self._bracketed(self.at + 1)
            else:
                self._skip(1 + (self.text[self.at] == "\\"))
        self._skip(1)

    def _bracketed(self, start: int) -> None:
        """Past the bracket that closes the one at ``start``; quotes and comments in between are passed over."""
        self._skip(start - self.at)
        closers: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _CLOSERS:
                closers.append(_CLOSERS[char])
            elif char == closers[-1]:
                closers.pop()
            elif char in "'\"`":
                self._quoted(char)
                continue
            elif char == "#" and self.text[self.at - 1] in " \t\n":
                self._skip(self._end_of_line() - self.at)
                continue
            self._skip(1 + (char == "\\"))  # a backslash takes the next character along
            if not closers:
                return


class _Parser:
    """Recursive descent over tokens."""

    __slots__ = ("at", "depth", "found")

    def __init__(self, found: list[Token]) -> None:
        self.found, self.at, self.depth = found, 0, 0

    @property
    def more(self) -> bool:
        return self.at < len(self.found)

    def peek(self) -> str:
        if not self.more:
            return ""
        return self.found[self.at].text

    def take(self) -> Token | None:
        token = None
        if self.more:
            token = self.found[self.at]
        self.at += 1
        return token

    def block(self, ends: frozenset[str]) -> list[Node]:
        """Commands up to one of these words, which is left."""
        found: list[Node] = []
        self.depth += 1
        while self.more and self.peek() not in ends and self.depth < 60:
            if self.found[self.at].form == "document" or self.peek() in ("\n", ";", "&", "|", "|&"):
                self.take()
                continue
            before = self.at
            node = self._chain()
            if node is not None:
                found.append(node)
            if self.at == before:  # a word that means nothing here
                if self.depth == 1:
                    break
                self.take()
        self.depth -= 1
        return found

    def _chain(self) -> Node | None:
        first = self._node()
        if first is None:
            return None
        parts = [("", first)]
        while self.peek() in ("&&", "||"):
            sign = self.peek()
            self.take()
            while self.peek() == "\n":
                self.take()
            following = self._node()
            if following is not None:
                parts.append((sign, following))
        if len(parts) == 1:
            return first
        return Chain(tuple(parts))

    def _node(self) -> Node | None:
        forms: dict[str, Callable[[], Node]] = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "while": self._while,
            "until": self._while,
            "{": self._group,
            "(": self._group,
            "function": self._function,
        }
        word = self.peek()
        if word in forms:
            return forms[word]()
        if word in ("then", "fi", "do", "done", "esac", "else", "elif", "}", ")", ";;"):
            return None
        following = [token.text for token in self.found[self.at + 1 : self.at + 3]]
        return self._function() if following == ["(", ")"] else self._simple()

    def _simple(self) -> Simple | None:
        words: list[Token] = []
        target = None
        line = self.found[self.at].line
        while self.more:
            token = self.found[self.at]
            if token.form == "word":
                words.append(token)
            elif re.fullmatch(r"&?\d*>>?&?\d*|\d*<|<<<", token.text):
                self.take()
                if self.more and ">" in token.text:
                    target = self.found[self.at]
                if self.peek() in ("\n", ";"):
                    continue
            else:
                break
            self.take()
        documents = self._documents()
        if not words and not documents:
            return None
        return Simple(tuple(words), line, documents, target)

    def _documents(self) -> tuple[Token, ...]:
        """Here-documents that end the line of this command; they belong to its last command alone."""
        held = []
        while self.more and self.found[self.at].form == "document":
            held.append(self.found[self.at])
            self.take()
        return tuple(held)

    def _close(self, word: str) -> None:
        if self.peek() == word:
            self.take()

    def _if(self) -> Node:
        conditions: list[tuple[Node, ...]] = []
        bodies: list[tuple[Node, ...]] = []
        while self.peek() in ("if", "elif"):
            self.take()
            conditions.append(tuple(self.block(frozenset({"then", "fi"}))))
            self._close("then")
            bodies.append(tuple(self.block(frozenset({"elif", "else", "fi"}))))
        if self.peek() == "else":
            self.take()
            bodies.append(tuple(self.block(frozenset({"fi"}))))
        self._close("fi")
        return Branches(tuple(conditions), tuple(bodies))

    def _case(self) -> Node:
        self.take()
        subject = self.take()
        while self.more and self.peek() in ("\n", "in"):
            self.take()
        patterns: list[tuple[str, ...]] = []
        bodies: list[tuple[Node, ...]] = []
        while self.more and self.peek() != "esac":
            if self.peek() in ("\n", ";;", ";&", ";;&"):
                self.take()
                continue
            words = []
            while self.more and self.peek() not in (")", "\n", "esac"):
                token = self.take()
                if token is not None and token.form == "word":
                    words.append(token.text.strip("'\""))
            self._close(")")
            patterns.append(tuple(words))
            bodies.append(tuple(self.block(frozenset({";;", ";&", ";;&", "esac"}))))
        self._close("esac")
        return Branches((), tuple(bodies), subject, tuple(patterns))

    def _for(self) -> Node:
        self.take()
        variable = self.take()
        words = []
        while self.more and self.peek() not in ("do", ";", "\n"):
            token = self.take()
            if token is not None and token.form == "word" and token.text != "in":
                words.append(token)
        while self.peek() in (";", "\n"):
            self.take()
        self._close("do")
        body = tuple(self.block(frozenset({"done"})))
        self._close("done")
        return Loop(body, variable.text if variable else "", tuple(words))

    def _while(self) -> Node:
        word = self.take()
        condition = tuple(self.block(frozenset({"do", "done"})))
        self._close("do")
        body = tuple(self.block(frozenset({"done"})))
        self._close("done")
        return Loop(body, condition=condition, negated=word is not None and word.text == "until")

    def _group(self) -> Node:
        end = "}" if self.peek() == "{" else ")"
        self.take()
        body = tuple(self.block(frozenset({end})))
        self._close(end)
        return Group(body)

    def _function(self) -> Node:
        if self.peek() == "function":
            self.take()
        name = self.take()
        while self.peek() in ("(", ")", "\n"):
            self.take()
        body: tuple[Node, ...] = ()
        if self.peek() == "{":
            group = self._group()
            body = group.body if isinstance(group, Group) else ()
        return Function(name.text if name else "", body)
