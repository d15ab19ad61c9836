"""JSON: one object, indented, with the keys of the result; what is infinite or not a number is null."""

from __future__ import annotations

import msgspec

from ..core.results import Json


def json(document: dict[str, Json]) -> str:
    """A document as text."""
    return msgspec.json.format(msgspec.json.encode(document)).decode()
