"""Options that say what a transfer takes up: a link, the sender, or both sides."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from .options import SIZE, Parsed, rate_options

if TYPE_CHECKING:
    from ..core.costs import Rates
    from ..core.program import Sends

WAYS = {
    "async": "sends that wait for nobody",
    "blocking": "sends that keep the sender",
    "rendezvous": "sends and receives that wait for each other",
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast ops and transfers are, and what a transfer takes up."""

    rates: Rates
    sends: Sends


def _gigabytes_a_second(text: str, name: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:GB/s)?\s*", text)
    if match is None or not 0 < float(match[1]) < 1e9:
        raise InputError(Fault(f"{name} = {text}", "a link carries more than 0 GB/s", "write it as in 25 or 25GB/s"))
    return float(match[1])


def speed_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the rates and ``--link``, ``--bytes``, ``--sends``; the command takes them as ``speeds``, a ``Speeds``.

    Asynchronous sends over a link of limited speed take turns on it.
    """

    @wraps(command)
    def with_speeds(*args: Any, rates: Rates, link: float | None, payload: int | None, sends: str, **given: Any) -> Any:
        from dataclasses import replace

        from ..core.program import Sends

        if (link is None) != (payload is None):
            value = "--bytes without --link" if link is None else "--link without --bytes"
            rule = "how long a link is taken up is bytes over speed"
            raise InputError(Fault(value, rule, "give both, as in --link 25 --bytes 64MB"))
        if link is not None and payload is not None:
            rates = replace(rates, link=link, payload=payload)
        way = Sends.LINK if link is not None and sends == "async" else Sends(sends)
        return command(*args, speeds=Speeds(rates, way), **given)

    options = (
        click.option(
            "--link", type=Parsed("GB/s", _gigabytes_a_second), help="What a link between two ranks carries each way."
        ),
        click.option("--bytes", "payload", type=SIZE, help="Bytes that one hop carries for a micro-batch."),
        click.option(
            "--sends",
            type=click.Choice(list(WAYS)),
            default="async",
            show_default=True,
            help="Whom a send keeps: nobody, the sender, or sender and receiver.",
        ),
    )
    for option in reversed(options):
        with_speeds = option(with_speeds)
    return rate_options(with_speeds)
