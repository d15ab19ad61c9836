"""One result, four renderings: every figure of the text stands in the Markdown, on the page and in the JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import debubble
from debubble.core.results import Result
from debubble.report.render import report_of
from debubble.report.sections import Picture
from debubble.report.text import text
from figures import figures, missing

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"
JOBS = RECORDINGS.parent
FOUR, EIGHT = RECORDINGS / "four", RECORDINGS / "eight"
RESULTS = {
    "show 1f1b": lambda: debubble.show("1f1b", ranks=4, microbatches=8),
    "show of 40 ranks with hops": lambda: debubble.show("1f1b", ranks=40, microbatches=80, transfer="35us"),
    "show of microseconds": lambda: debubble.show("zb-v", ranks=4, microbatches=8, forward="7us", backward="13us"),
    "show against": lambda: debubble.show("1f1b", ranks=4, microbatches=8, against="zb-h1", sweep="0-1=0:4ms:1ms"),
    "diagnose": lambda: debubble.diagnose(EIGHT),
    "diagnose one replica": lambda: debubble.diagnose(FOUR, gate="30%", expect="gpipe"),
    "why of jobs": lambda: debubble.why(JOBS / "four.toml", JOBS / "eight.toml"),
    "why of recordings": lambda: debubble.why(FOUR, EIGHT),
    "why of three": lambda: debubble.why(JOBS / "four.toml", EIGHT, FOUR),
    "check of a schedule": lambda: debubble.check("1f1b", ranks=8, microbatches=4, makespan="10ms", local_batch=34),
    "check of a configuration": lambda: debubble.check(*["--layers", "64", "--pipeline", "7"], framework="megatron"),
    "check of a layout": lambda: debubble.check("Et*4|(tttt|)*14tmL", "--pipeline", "16", framework="megatron"),
    "plan": lambda: debubble.plan(model="llama3-8b", gpu="h100", gpus="4,8", global_batch=32, price=2.5, top=4),
    "plan of a batch": lambda: debubble.plan(gpus=16, pipeline=[2, 4, 3], global_batch=[32, 30], nodes=2),
    "plan of a batch that grows": lambda: debubble.plan(gpus=64, pipeline=8, global_batch=64, rampup="16,16,3000"),
    "split": lambda: debubble.split(weights="1.5,1*20,1.5", pipeline=4, microbatches=[8, 32]),
    "show without work": lambda: debubble.show("gpipe", ranks=2, microbatches=2, forward=0, backward=0),
}


def without_pictures(result: Result) -> str:
    """The text without drawings, in which micro-batches are numbered and a scale is told."""
    report = report_of(result)
    drawn = [section for section in report.sections if not isinstance(section, Picture)]
    return text(replace(report, sections=drawn), 200)


def page_of(result: Result) -> dict:
    return json.loads(result.html().split('id="data">')[1].split("</script>")[0])


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_every_figure_of_the_text_stands_in_json_markdown_and_on_the_page(make):
    result = make()
    said = without_pictures(result)
    assert len(figures(said)) > 3
    assert not missing(said, result.document())
    for other in (result.markdown(), json.dumps(page_of(result), ensure_ascii=False)):
        assert not {digits for digits, _ in figures(said) if digits not in other}


def test_a_figure_that_stands_nowhere_is_seen():
    shown = debubble.show("1f1b", ranks=4, microbatches=8)
    assert missing("idle share 27.4 %, 33 ms, 33.1 ms, 5 GB", shown.document()) == {
        ("27.4", "%"),
        ("33.1", "ms"),
        ("5", "GB"),
    }


STEPS = "gbs,sec,gb\n64,2.0,30\n128,3.6,31\n256,6.9,31\n512,13.2,31\n512,40,31\n"


def test_every_figure_of_a_fit_stands_everywhere(tmp_path):
    (tmp_path / "steps.csv").write_text(STEPS)
    sizes = {"ranks": 4, "data": 2, "micro_batch": 2}
    fit = debubble.fit(tmp_path / "steps.csv", **sizes, forecast=[1024], capacity="80GB")
    said = without_pictures(fit)
    assert "row 5 set aside" in said
    assert "batch 1024: forecast" in said
    assert not missing(said, fit.document())
    for other in (fit.markdown(), json.dumps(page_of(fit), ensure_ascii=False)):
        assert not {digits for digits, _ in figures(said) if digits not in other}
    beside = debubble.why(tmp_path / "steps.csv", tmp_path / "steps.csv", **sizes)
    assert beside.fits[0].slot_ms == fit.slot_ms
    assert beside.windows == ()  # a log is not drawn: nobody has seen its slots
