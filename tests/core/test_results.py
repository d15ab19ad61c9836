"""Results: attributes are the keys of the JSON, hidden ones are none, and nothing that is no JSON gets in."""

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import numpy as np
import pytest

import debubble
from debubble.core.results import HIDDEN, SPARSE, Result, encoded, plain


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Row:
    rank: int
    share: float
    object_of_pictures: object = field(default=None, metadata=HIDDEN)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Answer(Result):
    schema: ClassVar[str] = "answer/1"

    makespan_ms: float
    rows: tuple[Row, ...]
    memory: Row | None = field(default=None, metadata=SPARSE)
    nothing: int | None = None
    timeline: object = field(default=None, metadata=HIDDEN)


def test_a_document_holds_version_schema_and_every_field_but_hidden_ones():
    found = Answer(makespan_ms=33.0, rows=(Row(0, 0.25, object()),), timeline=object())
    assert found.document() == {
        "version": debubble.__version__,
        "schema": "answer/1",
        "makespan_ms": 33.0,
        "rows": [{"rank": 0, "share": 0.25}],
        "nothing": None,
    }
    assert found.version == debubble.__version__
    assert json.loads(found.json()) == found.document()


def test_a_sparse_field_is_a_key_where_it_is_not_none():
    assert Answer(makespan_ms=0.0, rows=(), memory=Row(1, 0.5)).document()["memory"] == {"rank": 1, "share": 0.5}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.inf, None),
        (math.nan, None),
        (np.float64("-inf"), None),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (True, True),
        (np.array([[1.0, math.nan]]), [[1.0, None]]),
        (Colour.RED, "red"),
        ({1: (2, "x")}, {"1": [2, "x"]}),
        ("<b>", "<b>"),
        (None, None),
    ],
    ids=repr,
)
def test_values_become_plain_and_what_is_no_number_none(value, expected):
    made = plain(value)
    assert made == expected
    assert type(made) is type(expected)
    json.loads(encoded({"value": made}))


def test_what_is_no_value_of_json_is_refused():
    with pytest.raises(TypeError, match="object is no value"):
        plain({"a": [object()]})
