"""Files that cannot be used: why, in words that say what they are instead, and one line for many alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.errors import Fault

_FEW = 8  # files with one fault that are named each on its own
_DIGITS = re.compile(r"\d[\d,.]*")
# First bytes of what lies among traces, and what it is (https://en.wikipedia.org/wiki/List_of_file_signatures).
_KNOWN = (
    (b"\x89PNG", "it is a PNG picture"),
    (b"\xff\xd8\xff", "it is a JPEG picture"),
    (b"%PDF", "it is a PDF"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"\xff\xfe", "it is UTF-16 text; write it as UTF-8"),
    (b"\xfe\xff", "it is UTF-16 text; write it as UTF-8"),
)
_PAGE = re.compile(rb"\s*<(?:!doctype\s+)?html", re.IGNORECASE)


def is_foreign(head: bytes) -> bool:
    """Whether a file that begins like this is certainly nothing that a reader knows, whatever is in it."""
    return any(head.startswith(magic) for magic, _ in _KNOWN)


def why_unknown(head: bytes) -> str:
    """What a file is that no reader knows, a clause.

    Args:
        head: its first bytes, unpacked.
    """
    if not head:
        return "it is empty"
    if _PAGE.match(head):
        return "it is a web page"
    for magic, what in _KNOWN:
        if head.startswith(magic):
            return what
    return "its content is of no known format"


def left_out(lost: Iterable[tuple[str | Path, str]]) -> list[str]:
    """A sentence for each file that was left out; one for all that have the same fault if these are many.

    Args:
        lost: path and fault of each, a clause.
    """
    return [f"{name}: {why}; {_were(count)} left out" for name, why, count in _alike(lost)]


def faults_alike(faults: Sequence[Fault]) -> list[Fault]:
    """Faults of files, one for all that are alike if these are many."""
    remedy = {fault.value: fault.remedy for fault in faults}
    found = []
    for name, why, count in _alike((fault.value, fault.rule) for fault in faults):
        rule = why if count == 1 else f"{why}; so for {count:,} files"
        found.append(Fault(name, rule, remedy[name]))
    return found


def _were(count: int) -> str:
    return "it was" if count == 1 else f"so for {count:,} files, which were"


def _alike(lost: Iterable[tuple[str | Path, str]]) -> Iterable[tuple[str, str, int]]:
    """Path, fault and number of files: each on its own, or the first of many whose faults differ at most in numbers."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, why in lost:
        groups.setdefault(_DIGITS.sub("", why), []).append((str(path), why))
    for some in groups.values():
        if len(some) > _FEW:
            yield (*some[0], len(some))
        else:
            yield from ((path, why, 1) for path, why in some)
