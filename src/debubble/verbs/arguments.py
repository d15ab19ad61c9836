"""How verbs are spoken to and speak: arguments as people give them, and what is said while a verb works.

An argument is text as on the command line, or numbers; each reader names what is wrong with it. What a verb says, and
files that it has written, the command line listens to; nobody else has to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pickle import PicklingError, dumps
from typing import Any

from ..core.errors import MOST_COUNTED, Fault, InputError
from ..core.units import Hops, byte_rate, count_bytes, nanoseconds, read_hops

Duration = str | float  # ``"35us"``; a bare number is milliseconds
Size = str | int  # ``"64MB"``; a bare number is bytes
# ``"35us"``, ``"1ms,6-7=30ms"``, one value for each boundary as text or as a list; a bare number is milliseconds
Hop = str | float | Hops | Sequence[str | float]
Factors = str | Sequence[float]  # ``"1,1,1.6"``
Counts = str | int | Sequence[int]  # ``"4,8,16"``

LONGEST_LIST = 2000  # values; a repeat such as 1*1000000000 is refused before it is written out
MOST_SWEPT = 1000
PACES = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}


def duration(value: Duration, name: str = "duration") -> float:
    """Nanoseconds.

    Raises:
        InputError: not a finite duration of at least 0.
    """
    if not isinstance(value, str):
        value = repr(float(value))  # so that a number is held to the same rules as text
    return nanoseconds(value, name)


def hop(value: Hop, name: str = "transfer") -> float | Hops:
    """Nanoseconds of every hop, or of each link: ``1ms,6-7=30ms``, or one value for each boundary of stages.

    Raises:
        InputError: as ``duration``, or a list that cannot be read.
    """
    if isinstance(value, Hops):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(each if isinstance(each, str) else repr(float(each)) for each in value)
    return read_hops(value, name, duration) if isinstance(value, str) else duration(value, name)


@dataclass(frozen=True, slots=True)
class Swept:
    """A link and the hops to try on it.

    Args:
        ranks: at its two ends.
        hops: nanoseconds, ascending.
    """

    ranks: tuple[int, int]
    hops: tuple[float, ...]


def swept(value: str | Swept, name: str = "sweep") -> Swept:
    """``6-7=0:60ms:5ms``: the hops from the first to the last on one link, both ends included.

    Raises:
        InputError: anything else, or more points than can be told apart.
    """
    if isinstance(value, Swept):
        return value
    # Nine digits: no pipeline has more ranks, and int() need not read thousands of digits.
    match = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*=([^:]+):([^:]+):([^:]+)", value)
    if match is None:
        rule = "it names a link, and the first hop, the last and the step between"
        raise InputError(Fault(f"{name} = {value}", rule, "write it as in 6-7=0:60ms:5ms"))
    first, last, step = together(*(lambda text=text: duration(text.strip(), name) for text in match.groups()[2:]))
    if not first <= last or not step > 0 or (last - first) / step >= MOST_SWEPT:
        rule = f"hops rise from the first to the last, in at most {MOST_SWEPT} steps"
        raise InputError(Fault(f"{name} = {value}", rule, "write it as in 6-7=0:60ms:5ms"))
    # Both ends are meant, and 0.3/0.1 is a little less than 3.
    points = int((last - first) / step + 1e-9) + 1
    return Swept((int(match[1]), int(match[2])), tuple(first + number * step for number in range(points)))


def size(value: Size, name: str = "size") -> int:
    """Bytes.

    Raises:
        InputError: not a finite size of at least 0.
    """
    if not isinstance(value, str):
        value = repr(value)
    return count_bytes(value, name)


def rate(value: Size, name: str = "rate") -> float:
    """Bytes a second, from ``50GB``, ``50GB/s`` or ``400Gb/s``.

    Raises:
        InputError: not a finite rate of at least 0.
    """
    return byte_rate(value if isinstance(value, str) else repr(value), name)


def count(value: int | str, name: str = "count") -> int:
    """A whole number of at least 1.

    Raises:
        InputError: anything else.
    """
    text = str(value)
    # isdecimal alone would take the digits of every script, and int() reads them.
    if text.isascii() and text.isdecimal() and len(text) > len(str(MOST_COUNTED)):
        raise InputError(Fault(f"{name} = {text[:60]}", f"a count is up to {MOST_COUNTED:,}", "give less"))
    if not _is_count(text):
        raise InputError(Fault(f"{name} = {text[:60]}", "a count is a whole number, not below 1", "give 1 or more"))
    return int(text)


def _is_count(text: str) -> bool:
    """Whether a text is a number that can be counted to; Python refuses to read thousands of digits."""
    few = len(text) <= len(str(MOST_COUNTED))
    return few and text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_COUNTED


def counts(value: Counts, name: str = "counts") -> tuple[int, ...]:
    """Whole numbers of at least 1.

    Raises:
        InputError: anything else.
    """
    parts = _parts(value)
    if not all(_is_count(part) and int(part) < 10**12 for part in parts):
        rule = "counts are whole numbers, not below 1, with commas between them"
        raise InputError(Fault(f"{name} = {','.join(parts)[:60]}", rule, "write them as in 4,8,16"))
    # Each is a search or a simulation of its own.
    return tuple(int(part) for part in parts[:LONGEST_LIST])


def factors(value: Factors, name: str = "factors") -> tuple[float, ...]:
    """Finite numbers of at least 0.

    Raises:
        InputError: anything else.
    """
    text = _listed(value)
    if not text:
        return ()
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        # Not a number: what the rule below refuses, with one message for all that is wrong.
        found = (math.nan,)
    if not all(0 <= factor < math.inf for factor in found):
        rule = "factors are finite numbers, not below 0, with commas between them"
        raise InputError(Fault(f"{name} = {text}", rule, "write them as in 1,1,1,1.6"))
    return found


def gigabytes_a_second(value: str | float, name: str = "link") -> float:
    """What a link carries each way, GB/s.

    Raises:
        InputError: not a number above 0.
    """
    # No sign, no exponent and no bits: 400Gb/s is another number, and is refused.
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:GB/s)?\s*", str(value))
    if match is None or not 0 < float(match[1]) < 1e9:
        raise InputError(Fault(f"{name} = {value}", "a link carries more than 0 GB/s", "write it as in 25 or 25GB/s"))
    return float(match[1])


def pace(text: str, name: str = "pace") -> dict[str, str]:
    """The durations of ``F=20ms,B=40ms`` by kind.

    Raises:
        InputError: no such list, or a duration that cannot be read.
    """
    paces: dict[str, str] = {}
    parts = text.split(",")
    for part in parts:
        kind, _, value = part.partition("=")
        paces[kind.strip()] = value
    # F is what everything else is relative to; a letter that comes twice would hide one of its values.
    if set(paces) - set(PACES) or len(paces) < len(parts) or "F" not in paces:
        rule = "it gives F, and if wanted B, I and W, each once"
        raise InputError(Fault(f"{name} = {text}", rule, "write it as in F=20ms,B=40ms"))
    for kind, value in paces.items():
        duration(value, f"{name} {kind}")
    return paces


def weight_list(value: Factors, name: str = "weights") -> tuple[float, ...]:
    """``1.458,1*70,1.458``: a number, or a number and how often it comes.

    Raises:
        InputError: anything else, or more than can be simulated.
    """
    text = _listed(value)
    found: list[float] = []
    for part in text.replace(" ", "").split(","):
        number, _, times = part.partition("*")
        try:
            weight, many = float(number), int(times or 1)
        except ValueError:
            weight, many = -1.0, 0  # what no weight may be
        if not (0 < weight < 1e15 and 0 < many <= LONGEST_LIST and len(found) + many <= LONGEST_LIST):
            rule = f"weights are numbers above 0, at most {LONGEST_LIST} of them"
            raise InputError(Fault(f"{name} = {text[:60]}", rule, "write them as in 1.5,1*70,1.5"))
        found += [weight] * many
    return tuple(found)


def block_list(value: str | Sequence[int], name: str = "split") -> tuple[int, ...]:
    """How many blocks each rank holds: ``8,8,7,7``.

    Raises:
        InputError: anything else.
    """
    parts = _parts(value)
    if not all(part.isdecimal() for part in parts):
        text = ",".join(parts)[:60]
        raise InputError(Fault(f"{name} = {text}", "it is a list of whole numbers", "write it as in 8,8,7,7"))
    return tuple(int(part) for part in parts)


def share(value: str | float, name: str = "share") -> float:
    """A share of a whole, ``3%`` or 0.03.

    Raises:
        InputError: not a number of at least 0 and below 1.
    """
    number, sign, _ = str(value).strip().partition("%")
    try:
        found = float(number)
    except ValueError:
        found = -1.0  # what no share may be
    if sign:
        found /= 100
    if not 0 <= found < 1:
        raise InputError(Fault(f"{name} = {value}", "a gate is a share below 100 %", "write it as in 3%"))
    return found


def steps(text: str, name: str = "steps") -> tuple[int, int]:
    """The first and the last step of ``10:20``.

    Raises:
        InputError: it is no such pair.
    """
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise InputError(Fault(f"{name} = {text}", "it is a first and a last step", "write it as in 10:20"))
    return int(first), int(last)


def placement(value: str | Sequence[int], name: str = "placement") -> str | tuple[int, ...]:
    """``loop``, ``v``, or the rank of each stage.

    Raises:
        InputError: anything else.
    """
    if not isinstance(value, str):
        return tuple(value)
    if value in ("loop", "v"):
        return value
    if all(part.strip().isdecimal() for part in value.split(",")):
        return tuple(map(int, value.split(",")))
    raise InputError(Fault(f"{name} = {value}", "it says where stages live", "give loop, v, or ranks as in 0,1,2,3"))


def together(*makers: Callable[[], Any]) -> list[Any]:
    """Call all makers, and raise the faults of all that fail as one error.

    Raises:
        InputError: with every fault that any of them raised.
    """
    made = []
    faults: list[Fault] = []
    for make in makers:
        try:
            made.append(make())
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    return made


def _parts(value: Counts) -> list[str]:
    if isinstance(value, int):
        return [str(value)]
    return _listed(value).replace(" ", "").split(",")


def _listed(values: str | Sequence[float]) -> str:
    """Values as the command line has them, with commas between them."""
    return values if isinstance(values, str) else ",".join(map(str, values))


Listener = Callable[[str], None]

# A context variable and no global: two threads of a notebook server each hear their own.
_LISTENER: ContextVar[Listener | None] = ContextVar("debubble_listener", default=None)


def tell(sentence: str) -> None:
    """Say a sentence to whoever listens."""
    listener = heard_by()
    if listener is not None:
        listener(sentence)


def heard_by(*, elsewhere: bool = False) -> Listener | None:
    """Who listens; None for nobody.

    Args:
        elsewhere: whether it is to be handed to another process, which only what can be pickled survives: a function of
            a module, but no closure and no object that holds a stream or a lock.
    """
    listener = _LISTENER.get()
    if elsewhere and listener is not None:
        try:  # only trying tells; a run that says nothing while it works is better than none
            dumps(listener)
        except (AttributeError, TypeError, PicklingError):
            return None
    return listener


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what verbs say while a block runs."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
