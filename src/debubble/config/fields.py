"""Fields: what each field of a configuration takes, with an example, and how a value of a job TOML is held against it.

An example is what error messages show; it is never used as a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..core.errors import Fault, InputError
from ..core.units import count_bytes, nanoseconds, read_hops
from .config import FIGURES, GRADIENT_BYTES, MODULES, MOMENT_BYTES, PRECISIONS, RECOMPUTE, SWITCHES, Value

LONGEST_TIME = 86_400e9  # nanoseconds: a day; sums of all that is simulated stay within 64 bits
MOST_BYTES = 10**15  # of memory on a device
MOST = 10**12  # of anything that is counted


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field takes.

    Args:
        form: ``count``, ``number``, ``numbers``, ``counts``, ``duration``, ``size``, ``word``, ``words`` or ``switch``.
        example: as a user writes it.
        least: smallest that is legal.
        above: what it must exceed, where the smallest is not legal itself.
        most: largest that is legal.
        below: what it must stay under, where the largest is not legal itself.
        words: the only ones that are legal; empty for any.
    """

    form: str
    example: Value
    least: float = -inf
    above: float = -inf
    most: float = inf
    below: float = inf
    words: tuple[str, ...] = ()


def _count(example: int, least: int = 1) -> Kind:
    return Kind("count", example, least=least, most=MOST)


def _share(example: float) -> Kind:
    return Kind("number", example, above=0, most=1)


def _speed(example: float) -> Kind:
    return Kind("number", example, above=0, below=1e18)


# What a job TOML may say, above [measured] and in it; a framework's configuration says more, in its own words.
KINDS: dict[str, Kind] = {
    "name": Kind("word", "eight"),
    "framework": Kind("word", "megatron"),
    "engine": Kind("word", "megatron"),
    "gpus": _count(8),
    "per_node": _count(8),
    "pipeline": _count(4),
    "tensor": _count(1),
    "context": _count(1),
    "data": _count(2),
    "expert": _count(1),
    "expert_tensor": _count(1),
    "microbatches": _count(4),
    "micro_batch": _count(1),
    "global_batch": _count(8),
    "sequence": _count(4096),
    "chunks": _count(1),
    "layers": _count(32),
    "split": Kind("counts", (8, 8, 7, 7), least=0, most=MOST),
    "schedule": Kind("word", "1f1b"),
    "zero": Kind("count", 1, least=0, most=3),
    "forward": Kind("duration", "10ms"),
    "backward": Kind("duration", "20ms"),
    "input": Kind("duration", "10ms"),
    "weight": Kind("duration", "10ms"),
    "transfer": Kind("duration", "1ms"),
    "stage_scale": Kind("numbers", (1.0, 1.0, 1.0, 1.6), least=0, below=1e9),
    "recompute": Kind("word", "full", words=RECOMPUTE),
    "recompute_modules": Kind("words", ("layernorm", "moe_act"), words=MODULES),
    "precision": Kind("word", "bf16", words=PRECISIONS),
    "gradient_precision": Kind("word", "bf16", words=tuple(GRADIENT_BYTES)),
    "optimizer_precision": Kind("word", "bf16", words=tuple(MOMENT_BYTES)),
    "gradient_copies": Kind("number", 4.0, least=0, most=16),
    "bucket": Kind("number", 25e6, least=0, most=MOST),
    "offload_layers": Kind("count", 1, least=0, most=MOST),
    "pieces": _count(1),
    **{name: Kind("switch", True) for name in SWITCHES},
    "utilisation": _share(0.61),
    "tokens_per_second": _speed(82000),
    "samples_per_second": _speed(20),
    "tokens_per_second_per_gpu": _speed(4000),
    "tflops_per_gpu": _speed(170),
    "mfu": _share(0.43),
    "step": Kind("duration", "1.2s"),
    "peak_memory": Kind("size", "48GB"),
}
SAID_OF_A_JOB = tuple(name for name in KINDS if name not in FIGURES)
_TYPES = {
    **{"count": "int", "counts": "int", "number": "float", "numbers": "float"},
    **{"word": "str", "words": "str", "switch": "bool"},
}


def value_of(field: str, value: object, name: str) -> Value:
    """A value from TOML as its field holds it: durations in nanoseconds, sizes in bytes.

    Args:
        field: a key of ``KINDS``.
        value: as it was read.
        name: what error messages call it.

    Raises:
        InputError: it is of another kind, or out of bounds.
    """
    kind = KINDS[field]
    remedy = f"write it as in {field} = {short(kind.example)}"
    if kind.form == "duration":
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise InputError(Fault(f"{name} = {short(value)}", "a duration is text or a number of ms", remedy))
        if field == "transfer":
            return read_hops(str(value), name, lambda text, link: _duration(text, link, free=True))
        return _duration(str(value), name, free=False)
    if kind.form == "size":
        return _size(value, name, remedy)
    rule = _broken(kind, value)
    if rule:
        raise InputError(Fault(f"{name} = {short(value)}", rule, remedy))
    # TOML knows whole numbers and others apart; a list of factors may hold both.
    if kind.form == "numbers" and isinstance(value, list | tuple):
        return tuple(map(float, value))
    if isinstance(value, list | tuple):
        return tuple(value)
    if kind.form == "number" and isinstance(value, int):
        return float(value)
    if isinstance(value, bool | int | float | str):
        return value
    return None


def _broken(kind: Kind, value: object) -> str:
    """What a value breaks, as a clause; empty where it breaks nothing."""
    if kind.form in ("counts", "numbers", "words"):
        if not isinstance(value, list | tuple):
            return f"expected array, got {_named(value)}"
        return next((rule for part in value if (rule := _broken_alone(kind, part))), "")
    return _broken_alone(kind, value)


def _broken_alone(kind: Kind, value: object) -> str:
    wanted = _TYPES[kind.form]
    fits = {"int": int, "float": int | float, "str": str, "bool": bool}[wanted]
    # A switch is a whole number to Python, and no count.
    if not isinstance(value, fits) or (isinstance(value, bool) and wanted != "bool"):
        return f"expected {wanted}, got {_named(value)}"
    if kind.words and value not in kind.words:
        return f"invalid enum value: it is one of {', '.join(kind.words)}"
    if isinstance(value, str):
        return ""
    # Each comparison is written so that NaN, which compares as false, breaks it.
    bounds = (
        (kind.above, value > kind.above, ">"),
        (kind.least, value >= kind.least, ">="),
        (kind.most, value <= kind.most, "<="),
        (kind.below, value < kind.below, "<"),
    )
    cast: type[int] | type[float] = float
    if wanted == "int":
        cast = int
    for bound, holds, sign in bounds:
        if not holds and abs(bound) != inf:
            return f"expected {wanted} {sign} {cast(bound)}"
    return ""


def _named(value: object) -> str:
    return {"list": "array", "dict": "object"}.get(type(value).__name__, type(value).__name__)


def _duration(text: str, name: str, *, free: bool) -> float:
    """A duration of work; only a transfer may take no time."""
    length = nanoseconds(text, name)
    if length > LONGEST_TIME or not (length or free):
        raise InputError(Fault(f"{name} = {text}", "it takes some time, and at most a day", "write it as in 20ms"))
    return length


def _size(value: object, name: str, remedy: str) -> int:
    """Bytes of memory that something holds."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InputError(Fault(f"{name} = {short(value)}", "a size is text or a number of bytes", remedy))
    size = count_bytes(str(value), name)
    if not 0 < size <= MOST_BYTES:
        raise InputError(Fault(f"{name} = {value}", "a device holds more than nothing and less than 1 PB", remedy))
    return size


def short(value: object) -> str:
    """A value as a user would write it, cut to fit on a line."""
    text = repr(value)
    if isinstance(value, str):
        text = f'"{value}"'
    if isinstance(value, tuple):
        text = str(list(value))
    if len(text) > 60:
        return text[:57] + "..."
    return text
