"""The catalog: names, what it says of each schedule, and how it fills in what was not asked for."""

import re

import pytest

from debubble import InputError, Shape, build
from debubble.schedules.catalog import CATALOG

NAMES = [
    "1f1b",
    "1f1b-v",
    "chimera",
    "dualpipe",
    "dualpipe-v",
    "eager-1f1b",
    "forward-only",
    "gpipe",
    "hanayo",
    "interleaved",
    "interleaved-zb",
    "looped-bfs",
    "seq1f1b",
    "v-half",
    "v-min",
    "zb-h1",
    "zb-h2",
    "zb-v",
]


def test_the_names_are_those_of_the_command_line():
    assert sorted(CATALOG) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_is_called_as_in_the_catalog(name):
    entry = CATALOG[name]
    assert build(name, Shape(2, 4)).name == entry.name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_published_schedule_cites_its_paper(name):
    assert name == "forward-only" or re.fullmatch(r"arXiv:\d{4}\.\d{5}", CATALOG[name].paper)


def test_a_mistyped_name_gets_the_nearest():
    with pytest.raises(InputError, match="did you mean dualpipe"):
        build("dualpip", Shape(2, 4))


@pytest.mark.parametrize(("name", "chunks"), [("zb-v", 2), ("hanayo", 2), ("interleaved", 1), ("gpipe", 1)])
def test_chunks_that_were_not_asked_for_are_filled_in(name, chunks):
    assert build(name, Shape(2, 4)).stages == 2 * chunks


def test_what_torch_cannot_run_says_why():
    cannot = {name for name in NAMES if CATALOG[name].not_on_torch}
    for name in NAMES:
        schedule = build(name, Shape(2, 4, slices=2 if name == "seq1f1b" else 1))
        assert (name in cannot) == (schedule.placement.shape[0] > 1 or schedule.slices > 1)
