"""How fast ops and transfers are said to be: the durations, scales, links and sends that several verbs take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.costs import Rates
from ..core.engine import IDEAL, LINK, SENDS, Engine
from ..core.errors import Fault, InputError
from ..core.hops import Hops
from ..core.schedule import Schedule
from ..frameworks.engines import engine_of
from .arguments import Factors, Hop, Size, duration, factors, gigabytes_a_second, hop, size, together

WAYS = {
    "async": "sends that wait for nobody",
    "blocking": "sends that keep the sender",
    "rendezvous": "sends and receives that wait for each other",
}
HOPS = ("transfer", "occupy")
SCALES = ("stage_scale", "microbatch_scale", "rank_scale")


def rates_of(durations: Mapping[str, Hop | None], scales: Mapping[str, Factors]) -> Rates:
    """What was said about speed; what was not said has its default.

    Args:
        durations: ``forward``, ``backward``, ``input``, ``weight``, ``pair``, and by link or not ``transfer``,
            ``occupy``.
        scales: ``stage_scale``, ``microbatch_scale``, ``rank_scale``.

    Raises:
        InputError: what cannot be read, all at once; or halves of a backward that do not add up to it.
    """
    given = {name: value for name, value in durations.items() if value is not None}
    spent = together(*(lambda name=name, value=value: _read(value, name) for name, value in given.items()))
    scaled = together(*(lambda name=name, value=value: factors(value, name) for name, value in scales.items()))
    said: dict[str, float | Hops | tuple[float, ...]] = dict(zip(given, spent, strict=True))
    said |= dict(zip(scales, scaled, strict=True))
    return Rates(**said)  # type: ignore[arg-type]  # durations and scales by the names of its fields


def _read(value: Hop, name: str) -> float | Hops:
    """A duration, or that of each link where it is one of hops."""
    if name in HOPS or isinstance(value, Hops):
        return hop(value, name)
    return duration(value, name)


def over_a_link(rates: Rates, link: str | float | None, payload: Size | None) -> Rates:
    """The same over links of limited speed, if any was given.

    Raises:
        InputError: a link without the bytes that it carries, or bytes without a link.
    """
    if (link is None) != (payload is None):
        value = "--bytes without --link" if link is None else "--link without --bytes"
        rule = "how long a link is taken up is bytes over speed"
        raise InputError(Fault(value, rule, "give both, as in --link 25 --bytes 64MB"))
    if link is None or payload is None:
        return rates
    return replace(rates, link=gigabytes_a_second(link), payload=size(payload, "bytes"))


def sends_of(name: str, rates: Rates) -> Engine:
    """Whom a send keeps; sends that wait for nobody take turns on a link of limited speed.

    Raises:
        InputError: no such way.
    """
    if name not in WAYS:
        raise InputError(Fault(f"sends = {name}", "it says whom a send keeps", f"give {', '.join(WAYS)}"))
    return LINK if rates.payload and name == "async" else SENDS[name]


def engine_argument(name: str | None, schedule: Schedule, *, sends: str, link: str | float | None) -> Engine | None:
    """The engine that was asked for by name; None if none was.

    Raises:
        InputError: no such engine, or ways of sending beside one that has its own.
    """
    if name is None:
        return None
    engine = engine_of(name, schedule)
    beside = [f"--sends {sends}"] if sends != "async" else []
    beside += ["--link"] if link is not None else []
    if beside and engine != IDEAL:
        rule = f"{engine} has its own way of sending"
        raise InputError(Fault(f"{' '.join(beside)} beside --engine {name}", rule, "leave one out"))
    return engine if engine != IDEAL or not beside else None
