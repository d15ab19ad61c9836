"""Names from other people's files stay text wherever they are shown: terminal, Markdown, HTML, SVG, Perfetto."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from debubble.core.safe_output import inert

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"
HOSTILE = ["<img src=x onerror=alert(1)>", "a</script><b>", "\x1b]0;owned\x07\x1b[2J", "\u202etxt.exe", "a\rb\x9b31m"]


@pytest.fixture(params=HOSTILE, ids=["tag", "script", "escape", "right to left", "carriage return"])
def run(request, tmp_path) -> Path:
    """A recording in a folder with a hostile name."""
    name = request.param.replace("/", "\\")
    return Path(shutil.copytree(RECORDINGS / "four", tmp_path / name))


def commands(text: str) -> list[str]:
    """Characters that do something to a terminal."""
    return [c for c in text if c != "\n" and (not c.isprintable() or 0x202A <= ord(c) <= 0x202E)]


@pytest.mark.parametrize(
    "args", [("diagnose",), ("why", RECORDINGS / "eight"), ("why", RECORDINGS / "eight", "--markdown")]
)
def test_the_terminal_is_not_commanded(cli, run, args):
    verb, *rest = args
    ran = cli(verb, run, *rest)
    assert ran.status == 0
    assert commands(ran.out + ran.err) == []


def test_a_file_that_was_written_is_named_without_commands(cli, run):
    ran = cli("show", "1f1b", "-p", 2, "-m", 2, "--svg", run / "f.svg")
    assert (ran.status, commands(ran.err)) == (0, [])


def test_figures_and_traces_parse_and_hold_no_more_elements(cli, run, tmp_path):
    plain, svg, trace = tmp_path / "plain.svg", tmp_path / "f.svg", tmp_path / "f.json"
    assert cli("diagnose", RECORDINGS / "four", "--svg", plain).status == 0
    assert cli("diagnose", run, "--svg", svg, "--perfetto", trace).status == 0
    tags = [[e.tag for e in ElementTree.parse(path).iter()] for path in (plain, svg)]
    assert tags[0] == tags[1]
    assert json.loads(trace.read_text())["traceEvents"]


CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_of_a_plan_stays_text(cli, tmp_path, name):
    config, page, svg = tmp_path / "config.json", tmp_path / "p.html", tmp_path / "p.svg"
    config.write_text(json.dumps(CONFIG | {"_name_or_path": name}))
    asked = ("--model", config, "--gpu", "h100", "--gpus", 2, "--global-batch", 4, "-p", 2, "--sequence", 512)
    ran = cli("plan", *asked, "--html", page, "--svg", svg)
    assert (ran.status, commands(ran.out + ran.err)) == (0, [])
    text = page.read_text()
    assert "<img src=x" not in text
    assert text.count("</script>") == 2
    assert json.loads(text.split('id="data">')[1].split("</script>")[0])["title"].startswith(inert(name))
    assert [e.tag for e in ElementTree.parse(svg).iter() if e.tag.endswith(("img", "script"))] == []


def test_colours_of_our_own_pictures_pass():
    code = "from debubble.cli.console import say; say('\\x1b[38;5;32mF\\x1b[0m \\x1b[5m')"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONUTF8": "1"}
    )
    assert ran.stdout == "\x1b[38;5;32mF\x1b[0m \\x1b[5m\n"
