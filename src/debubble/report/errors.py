"""Errors: what each is called, what is printed and which exit status it is, for every verb from one place.

Under ``--json`` an error is one object:

    {"version", "schema": "error/1", "error": {"kind", "file", "value", "rule", "remedy"}, "faults": [..], "exit": 2}

``error`` is the first fault, ``faults`` are all of them. ``kind`` and exit status:

    input              2    something given cannot be used
    refusal            1    the question was understood and the answer is no
    illegal_schedule   1    a schedule breaks a law
    deadlock           1    every rank waits for another
    interrupt        130    Ctrl-C; 128 and its number for another signal that ends the verb
    internal          70    a fault of this program, and no verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals

from ..core.errors import Deadlock, Fault, IllegalSchedule, InputError, Interrupted, Refusal
from ..core.results import Json, __version__

NO, BAD_INPUT, INTERNAL, INTERRUPTED = 1, 2, 70, 130
_BY_SIGNAL = 128  # and its number: the status that a shell gives


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a verb has no answer.

    Args:
        kind: as listed above.
        status: exit status.
        faults: what is wrong, the first to be looked at first.
        lines: the same for people.
        file: that is to blame, or that holds the report of an internal fault; empty for none.
    """

    kind: str
    status: int
    faults: Sequence[Fault] = ()
    lines: Sequence[str] = ()
    file: str = ""

    def document(self) -> dict[str, Json]:
        """What ``--json`` prints."""
        rows: list[Json] = []
        for fault in self.faults:
            rows.append({"value": fault.value, "rule": fault.rule, "remedy": fault.remedy})
        first = self.faults[0] if self.faults else Fault("", "", "")  # Ctrl-C is nobody's fault
        return {
            "version": __version__,
            "schema": "error/1",
            "error": {
                "kind": self.kind,
                "file": self.file or None,
                "value": first.value,
                "rule": first.rule,
                "remedy": first.remedy,
            },
            "faults": rows,
            "exit": self.status,
        }


def failure_of(error: Exception, words: Sequence[str] = ()) -> Failure:
    """The failure that an error is.

    Args:
        error: of this package, or of the system.
        words: of the command line, among which a file may be that is to blame.
    """
    if isinstance(error, InputError):
        # All at once: each round trip to a cluster costs its user minutes.
        lines = [str(fault) for fault in error.faults]
        return Failure("input", BAD_INPUT, error.faults, lines, _file_of(error.faults, words))
    if isinstance(error, Refusal):
        faults = [Fault(str(error), "the answer is no", "")]
        return Failure(_kind(error), NO, faults, [str(error)], _file_of(faults, words))
    if isinstance(error, OSError):
        return _of_the_system(error)
    raise error


def interrupted(error: BaseException) -> Failure:
    """The failure of a verb that a signal ended: its status is that of a shell, and what was kept is said."""
    if not isinstance(error, Interrupted):
        return Failure("interrupt", INTERRUPTED)
    ended = f"ended by {Signals(error.signal).name}"
    # What was kept (a recording so far) is the first question after a run that was ended.
    kept = f"{ended}; {error}" if f"{error}" else ended
    return Failure("interrupt", _BY_SIGNAL + error.signal, [Fault(ended, f"{error}", "")], [kept])


def unreadable(message: str) -> Failure:
    """The failure of a command line that cannot be read."""
    lines = message.splitlines()
    faults = [Fault(line, "the command line cannot be read", "see --help") for line in lines]
    return Failure("input", BAD_INPUT, faults, lines)


def _kind(error: Refusal) -> str:
    if isinstance(error, IllegalSchedule):
        return "illegal_schedule"
    if isinstance(error, Deadlock):
        return "deadlock"
    return "refusal"


def _of_the_system(error: OSError) -> Failure:
    file = str(error.filename or "")
    if isinstance(error, FileNotFoundError):
        fault = Fault(file, "there is no such file or folder", "give a path that is there")
        return Failure("input", BAD_INPUT, [fault], [str(fault)], file)
    # Errors without a path (a pipe, a socket) say more as the system words them.
    message = str(error)
    if file:
        message = f"{file}: {error.strerror}"
    fault = Fault(file or "system", error.strerror or str(error), "see to it that it can be read and written")
    return Failure("input", BAD_INPUT, [fault], [message], file)


def _file_of(faults: Sequence[Fault], words: Sequence[str]) -> str:
    """The path of the command line that the first fault names; empty for none."""
    if not faults:
        return ""
    value = faults[0].value
    # The longest, if one path is the start of another: a fault of run/a:b is not one of run.
    named = [word for word in words if not word.startswith("-") and (value == word or value.startswith(f"{word}:"))]
    return max(named, key=len, default="")
