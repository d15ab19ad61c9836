"""Figures through matplotlib: PNG and PDF of the same scene, alike each time, with a word where it is not installed."""

import struct
import sys

import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.schedules.catalog import build

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from debubble.drawing.figure import plot


def run(name: str, *shape: int):
    schedule = build(name, Shape(*shape))
    return simulate(lower(schedule), costs_of(Rates(), schedule))


@pytest.mark.parametrize(
    "shape", [("1f1b", 4, 8), ("zb-v", 2, 4, 2), ("gpipe", 4, 300)], ids=["boxes", "kinds", "shares"]
)
def test_a_png_is_as_large_as_it_says(shape):
    data = plot([("", run(*shape))], "png", dpi=100)
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (960, round(100 * (0.95 + 0.22 * shape[1])))


def test_a_pdf_has_its_text_and_is_alike_each_time():
    timelines = [("a $x$ \x1b title", run("1f1b", 2, 4)), ("", run("zb-h1", 4, 8))]
    first = plot(timelines, "pdf")
    assert first.startswith(b"%PDF")
    assert plot(timelines, "pdf") == first


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'debubble\[plot\]'"):
        plot([("", run("1f1b", 2, 2))], "png")
