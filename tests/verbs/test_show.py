"""``debubble.show``: what Python users call is what the command line calls, with the same words."""

import pytest

import debubble


def test_the_same_words_give_the_same_answer(cli):
    said = cli(
        "show", "interleaved", "-p", 4, "-m", 8, "-v", 2, "--transfer", "35us", "--rank-scale", "1,1,2,1", "--json"
    )
    shown = debubble.show("interleaved", ranks=4, microbatches=8, chunks=2, transfer="35us", rank_scale=[1, 1, 2, 1])
    assert shown.document() == said.json


@pytest.mark.parametrize("forward", ["2ms", "2", 2, 2.0, "2000us"])
def test_a_duration_is_text_or_milliseconds(forward):
    assert debubble.show("1f1b", ranks=1, microbatches=3, forward=forward, backward="4ms").makespan_ms == 18


def test_a_schedule_of_ones_own_is_shown_like_the_one_of_that_name():
    built = debubble.build("zb-h1", debubble.Shape(4, 8))
    assert debubble.show(built).document() == debubble.show("zb-h1", ranks=4, microbatches=8).document()
    with pytest.raises(debubble.InputError, match="microbatches = 9: the schedule has 8; leave it out"):
        debubble.show(built, microbatches=9)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(debubble.InputError) as caught:
        debubble.show("1f1b", ranks=4, microbatches=8, forward="nan", transfer="5 parsecs")
    assert [fault.value for fault in caught.value.faults] == ["forward = nan", "transfer = 5 parsecs"]


def test_a_result_shows_itself(tmp_path):
    shown = debubble.show("1f1b", ranks=4, microbatches=8)
    assert "idle share     27.3 % = (p-1)/(m+p-1)" in str(shown)
    assert repr(shown) == str(shown)
    assert "sandbox=" in shown._repr_html_()
    shown.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == shown.html()
    for kind, start in (("svg", b"<svg"), ("torch-csv", b"0F0,0F1"), ("perfetto", b"{")):
        shown.write(kind, tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
    with pytest.raises(debubble.InputError, match="kind = docx: it is no kind of file"):
        shown.write("docx", tmp_path / "x")


def test_the_gap_to_the_bound_is_shown_beside_it():
    """p = 2, m = 4, F = B = 1, a hop of 10: 1F1B takes 50 ms, no order less than 11 + 8 + 11, which GPipe takes."""
    sizes = {"ranks": 2, "microbatches": 4, "forward": 1, "backward": 1, "transfer": 10}
    shown = debubble.show("1f1b", **sizes)
    assert (shown.makespan_ms, shown.lower_bound_ms, shown.gap_share) == (50, 30, pytest.approx(2 / 3))
    assert "gap to bound" in shown.text()
    assert "66.7 %" in shown.text()
    assert "66.7 %" in shown.markdown()
    assert debubble.show("gpipe", **sizes).gap_share == 0
