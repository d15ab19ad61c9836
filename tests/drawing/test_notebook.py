"""Nouns in a notebook: every form that a front end may pick, and a frame that cannot reach out."""

import html
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from debubble import Observation, Rates, Shape, Window, account, build, costs_of, lower, simulate
from debubble.core.results import MAKERS

SCHEDULE = build("1f1b", Shape(4, 8))
PROGRAM = lower(SCHEDULE)
TIMELINE = simulate(PROGRAM, costs_of(Rates(), SCHEDULE))
WINDOW = Window(0, 0, TIMELINE)
NOUNS = [SCHEDULE, PROGRAM, TIMELINE, account(TIMELINE), WINDOW, Observation("<b>run</b>", (WINDOW,))]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: type(noun).__name__)
def test_every_noun_has_text_and_html(noun):
    bundle = noun._repr_mimebundle_(include=None, exclude=None)
    assert {"text/plain", "text/html"} <= set(bundle)
    assert "<b>run</b>" not in bundle["text/html"]
    assert set(MAKERS) == {type(noun).__name__ for noun in NOUNS}


def test_a_timeline_is_text_figure_and_page():
    bundle = TIMELINE._repr_mimebundle_()
    assert "idle share 27.3 %, bubble ratio 37.5 %" in bundle["text/plain"]
    assert "rank 3 ······0█0▒▒▒" in bundle["text/plain"]
    assert ElementTree.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")


def test_the_frame_has_scripts_but_neither_origin_nor_network():
    frame = re.fullmatch(
        r'<iframe sandbox="([^"]*)" style="[^"]*" srcdoc=(["\'])(.*)\2></iframe>',
        TIMELINE._repr_mimebundle_()["text/html"],
        re.S,
    )
    assert frame[1] == "allow-scripts allow-downloads"
    page = html.unescape(frame[3])
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page


def test_a_schedule_is_its_order_without_a_clock():
    lines = SCHEDULE._repr_mimebundle_()["text/plain"].splitlines()
    assert lines[0] == "1f1b: 4 ranks, 4 stages, 8 micro-batches"
    assert lines[4] == "rank 3   3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7"


def test_an_account_is_a_table_of_its_parts():
    lines = account(TIMELINE)._repr_mimebundle_()["text/plain"].splitlines()
    assert lines[0] == "idle share 27.3 %, bubble ratio 37.5 % of 33 ms (simulated)"
    assert lines[2].split() == ["0", "24", "ms", "0", "ms", "9", "ms", "0", "ms", "0", "ms"]


def test_a_noun_that_nobody_shows_imports_no_drawing():
    code = (
        "import debubble, sys; debubble.build('1f1b', debubble.Shape(2, 2)); print('debubble.drawing' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
