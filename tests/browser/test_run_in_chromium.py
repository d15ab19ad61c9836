"""A real pipeline of processes, drawn by ``run`` as it ends: its page opens, and says what was measured."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")


def test_run_draws_what_it_measured(browser, tmp_path):
    page, figure = tmp_path / "run.html", tmp_path / "run.svg"
    words = ["run", "--schedule", "1f1b", "-p", "2", "-m", "4", "--pace", "F=10ms,B=20ms", "--steps", "2", "--json"]
    files = ["--html", page, "--svg", figure, "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "debubble", *words, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    browser.open(page)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []
    assert browser.js("return debubble.views[0].run.window / 1e6") == pytest.approx(said["makespan_ms"], rel=0.2)
    assert f"{100 * said['idle_share']:.1f} %" in browser.text("#tiles")
    browser.press("n")
    assert re.search("rank [01]", browser.text(".tip"))
    assert figure.read_bytes().startswith(b"<svg ")
    assert f"wrote {page}" in ran.stderr
