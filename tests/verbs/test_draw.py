"""Timelines as text and as files, in Python."""

import gzip
import json

import pytest

import debubble
from debubble import InputError, Rates, Shape, build, costs_of, lower, simulate


def timeline_of(name: str) -> debubble.Timeline:
    schedule = build(name, Shape(ranks=2, microbatches=3))
    return simulate(lower(schedule), costs_of(Rates(), schedule))


def test_text_has_a_line_for_each_rank():
    lines = debubble.draw(timeline_of("gpipe"), width=40, utf8=False).splitlines()
    ranks = [line for line in lines if line.lstrip().startswith("rank ")]
    assert len(ranks) == 2
    assert all(len(line) <= 40 and line.isascii() for line in ranks)


def test_what_show_draws_is_what_draw_draws():
    shown = debubble.show("1f1b", ranks=2, microbatches=3)
    assert debubble.draw(shown.timeline) in shown.text()


def test_two_timelines_share_a_figure(tmp_path):
    text = debubble.draw(timeline_of("gpipe"), timeline_of("1f1b"), file=tmp_path / "two.svg")
    figure = (tmp_path / "two.svg").read_text()
    assert figure.startswith("<svg")
    assert "gpipe, simulated" in figure
    assert "1f1b, simulated" in figure
    assert text == f"{debubble.draw(timeline_of('gpipe'))}\n\n{debubble.draw(timeline_of('1f1b'))}"


def test_a_trace_holds_the_ops_of_one(tmp_path):
    debubble.draw(timeline_of("gpipe"), file=tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    assert {"0F0", "1F2", "1B0", "0B2"} <= {event.get("name") for event in events}
    with pytest.raises(InputError, match="one timeline"):
        debubble.draw(timeline_of("gpipe"), timeline_of("1f1b"), file=tmp_path / "two.json")


def test_a_kind_that_there_is_not_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"give \.svg, \.png, \.pdf"):
        debubble.draw(timeline_of("gpipe"), file=tmp_path / "figure.gif")
    assert not (tmp_path / "figure.gif").exists()
