"""Formulas of the catalog, read as they are written on paper."""

import pytest

from debubble.core.errors import InputError
from debubble.diagnosis.closed_form import closed_form, evaluate
from debubble.schedules.catalog import CATALOG

VALUES = {"p": 4, "m": 8, "v": 2, "s": 3, "F": 1.0, "I": 1.5, "W": 0.5, "B": 2.0, "F&B": 2.5}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("(p-1)(F+B)", 9),
        ("(p-1)(F+B)/v", 4.5),
        ("(p-1)(F+I-W)", 6),
        ("(p-1)max(F, F+I-2W)", 4.5),
        ("(p/2-1)(F&B+F-2W)", 2.5),
        ("(p-1)(F&B+F-2W)/2", 3.75),
        ("min(p, m)", 4),
        ("m-p-1", 3),
    ],
)
def test_values(formula, value):
    assert evaluate(formula, VALUES) == value


@pytest.mark.parametrize("formula", ["", "(p-1", "p)", "p+", "x", "p*m", "max(p", "__import__", "1/(p-4)"])
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(InputError, match="it cannot be read"):
        evaluate(formula, VALUES)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda e: e.name)
def test_every_bubble_of_the_catalog_can_be_read(entry):
    closed = closed_form(entry.bubble, VALUES)
    assert (closed is None) == (entry.bubble in ("", "<= (p-1)(F+B)"))
    assert closed is None or closed.idle >= 0


def test_half_the_idle_share_of_p4_m8_needs_19_micro_batches():
    closed = closed_form("(p-1)(F+B)", VALUES)
    assert closed.half_at == 19
    assert 3 / (19 + 3) <= (3 / 11) / 2 < 3 / (18 + 3)
