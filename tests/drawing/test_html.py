"""The HTML file: complete, offline, small, and hostile names in it stay text."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser

import numpy as np
import pytest

from debubble.core.account import account, rank_times
from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.program import Timeline
from debubble.core.results import __version__
from debubble.core.safe_output import inert
from debubble.core.schedule import Shape, peak_activations
from debubble.core.simulate import simulate
from debubble.drawing import html as page_file
from debubble.drawing.html import SCRIPTS, Page, Run, html
from debubble.schedules.catalog import build

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "{{data}}",
    "a\x1b[2Jb\x00",
]


def run_of(name: str, *shape: int, title: str = "run", **rates) -> Run:
    schedule = build(name, Shape(*shape))
    timeline = simulate(lower(schedule), costs_of(Rates(**rates), schedule))
    return named(timeline, title)


def named(timeline: Timeline, title: str) -> Run:
    spent = account(timeline)
    return Run(
        title,
        timeline,
        spent,
        [asdict(rank) for rank in rank_times(spent, peak_activations(timeline.program.schedule))],
    )


def page_of(*runs: Run, text: str = "text") -> Page:
    causes = [
        {"name": text, "rows": [{"cause": text, "cost_ms": 1.0, "cost_share": 1.0, "evidence": text, "remedy": text}]}
    ]
    take = [{"name": text, "file": text, "text": text}]
    tiles = [{"name": text, "value": text, "note": text}]
    table = {"name": text, "head": [text], "lines": [[text]], "shade": [[1.0]]}
    sections = [{"title": text, "hint": text, "tables": [table]}]
    return Page(text, [text], text, tiles, runs, causes, None, take, sections=sections)


class Outline(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data


def test_the_sections_stand_in_their_order():
    outline = Outline(html(page_of(run_of("1f1b", 2, 4))))
    sections = [attrs["id"] for tag, attrs in outline.tags if tag == "section"]
    assert sections == ["verdict", "tiles", "timelines", "working", "causes", "ranks", "whatif", "take"]


def test_nothing_is_fetched_and_nothing_moves():
    text = html(page_of(run_of("1f1b", 2, 4)))
    assert not re.search(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.sub(r"^\s*//.*$", "", text, flags=re.M).lower())
    assert "default-src 'none'" in text
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\b *\(|innerHTML|\beval\b|document\.write", text)
    assert not re.search(r"transition|animation|requestAnimationFrame", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_anywhere_stays_text(name):
    plain = Outline(html(page_of(run_of("1f1b", 2, 4))))
    hostile = Outline(html(page_of(run_of("1f1b", 2, 4, title=name), text=name)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    data = json.loads(hostile.scripts[0])
    assert data["title"] == data["verdict"][0] == data["runs"][0]["name"] == data["take"][0]["file"] == inert(name)
    assert hostile.scripts[1] == plain.scripts[1]


def test_every_script_of_the_folder_is_in_the_page():
    from node import PAGE

    assert sorted(SCRIPTS) == sorted(path.name for path in PAGE.glob("*.js"))
    text = html(page_of())
    assert all(path.read_text() in text for path in PAGE.glob("*.js"))


def noisy(name: str, *shape: int) -> Run:
    """A schedule of which no two ops take equally long, as measured ones are."""
    schedule = build(name, Shape(*shape))
    costs = costs_of(Rates(), schedule)
    rng = np.random.default_rng(1)
    durations = costs.durations * rng.uniform(0.9, 1.1, (4, schedule.stages, schedule.units))
    timeline = simulate(lower(schedule), type(costs)(durations.astype(np.int64), costs.transfers))
    return named(timeline, "noisy")


def test_20000_measured_ops_take_less_than_half_a_megabyte():
    text = html(page_of(noisy("1f1b", 16, 625)))
    print(f"20,000 ops of unequal length: {len(text) / 1e6:.2f} MB")
    assert len(text) < 500_000


@pytest.mark.slow
def test_a_million_simulated_ops_are_all_there_in_a_few_hundred_kilobytes():
    text = html(page_of(run_of("1f1b", 16, 31250, rank_scale=(1.0,) * 15 + (1.1,))))
    data = json.loads(Outline(text).scripts[0])
    assert data["runs"][0]["ops"] == data["runs"][0]["offsets"][-1] == 1_000_000
    assert len(text) < 300_000


def test_more_ops_than_a_page_holds_become_bins(monkeypatch):
    monkeypatch.setattr(page_file, "MOST_OPS", 15)
    data = json.loads(Outline(html(page_of(run_of("1f1b", 2, 4)))).scripts[0])
    assert (data["runs"][0]["bins"], data["runs"][0]["offsets"]) == (4096, [])


def test_a_page_says_when_and_by_what_it_was_made(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    data = json.loads(Outline(html(page_of(run_of("1f1b", 2, 4)))).scripts[0])
    assert data["made"] == f"debubble {__version__}, 2023-11-14 22:13 UTC"


def test_no_folder_of_the_machine_is_in_a_page():
    text = html(page_of(run_of("1f1b", 2, 4), text="debubble diagnose /home/me/secret/eight"))
    assert "secret" not in text
    assert json.loads(Outline(text).scripts[0])["next"] == "debubble diagnose eight"


def test_a_run_without_any_work_is_drawn():
    schedule = build("1f1b", Shape(2, 2))
    timeline = simulate(lower(schedule), costs_of(Rates(forward=0, backward=0), schedule))
    page = html(page_of(named(timeline, "nothing")))
    assert '"window":0' in page
    assert "idle share 100.0 %, bubble ratio none: no work" in page
