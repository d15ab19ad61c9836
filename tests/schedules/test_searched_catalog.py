"""One function builds every schedule that has a name, whether a shape decides it or a search."""

import re

import pytest

from debubble import InputError, Rates, Shape, build
from debubble.schedules.auto import searched as catalog
from debubble.schedules.catalog import CATALOG


def test_both_catalogs_are_listed_together_without_a_name_twice():
    assert list(catalog.ENTRIES) == [*CATALOG, "zb-auto", "zb-v-auto"]


@pytest.mark.parametrize("name", CATALOG)
def test_a_generated_schedule_is_the_same_from_either(name):
    assert catalog.build(name, Shape(2, 4)).same_order(build(name, Shape(2, 4)))


@pytest.mark.parametrize("name", catalog.SEARCHED)
def test_a_searched_schedule_cites_its_paper_and_can_be_built_like_a_generated_one(name):
    entry = catalog.ENTRIES[name]
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", entry.paper)
    built = entry.build(Shape(2, 4, entry.chunks))
    assert built.name == name
    assert built.same_order(catalog.build(name, Shape(2, 4)))
    assert built.same_order(catalog.build(name, Shape(2, 4), Rates(), cap="1p"))


def test_a_cap_for_a_generated_schedule_is_refused_with_those_that_take_one():
    with pytest.raises(InputError, match="take zb-auto or zb-v-auto"):
        catalog.build("zb-h1", Shape(2, 4), cap=1)


def test_a_cap_of_0_is_not_taken_for_none():
    with pytest.raises(InputError, match="memory = 0"):
        catalog.build("zb-auto", Shape(2, 4), cap=0)


def test_a_mistyped_name_gets_the_nearest_of_both():
    with pytest.raises(InputError, match="did you mean zb-auto"):
        catalog.build("zb-aut", Shape(2, 4))
