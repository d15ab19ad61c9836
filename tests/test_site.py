"""The site: its reference has every option, key and word of the code, and its links lead somewhere."""

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
import yaml

import debubble
from debubble.cli.main import VERBS, command_of
from debubble.config.fields import KINDS
from debubble.core.results import Result
from debubble.estimate import hardware

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
PAGES = reference.pages()
WRITTEN = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
ALL = WRITTEN | {f"reference/{name}": text for name, text in PAGES.items()}


def nav(entries) -> list[str]:
    return [page for entry in entries for page in leaves(entry)]


def leaves(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    (below,) = entry.values()
    return nav(below) if isinstance(below, list) else [below]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_that_help_shows_is_in_the_reference(verb):
    section = PAGES["command-line.md"].split(f"\n## {verb}\n")[1].split("\n## ")[0]
    shown = [each for each in command_of(verb).params if isinstance(each, click.Option) and not each.hidden]
    assert shown
    for option in shown:
        assert all(f"`{name}`" in section for name in option.opts), option.name


def test_every_example_of_a_help_is_shown_as_it_is_typed():
    for verb in VERBS:
        for block in (command_of(verb).help or "").split("\b\n")[1:]:
            lines = [line.strip() for line in block.split("\n\n")[0].strip().splitlines()]
            assert all(line in PAGES["command-line.md"] for line in lines), verb


def test_every_key_of_every_result_is_in_the_reference():
    results = [getattr(debubble, name) for name in debubble.__all__ if reference._is_result(getattr(debubble, name))]
    for result in results:
        if result is Result:
            continue
        section = PAGES["json.md"].split(f"\n## {result.schema}\n")[1].split("\n## ")[0]
        keys = {each.name for each in fields(result) if "hidden" not in each.metadata}
        assert keys == set(reference.names(section)), result


def test_rows_of_results_are_said_too():
    assert "### RankTime\n" in PAGES["json.md"]
    section = PAGES["json.md"].split("### RankTime\n")[1].split("###")[0]
    assert {"compute_ms", "warm_up_ms", "waiting_ms", "transfer_ms", "cool_down_ms"} <= set(reference.names(section))


def test_every_word_of_a_job_and_of_a_device_is_said():
    assert set(reference.names(PAGES["job-file.md"])) == set(KINDS)
    assert set(reference.names(PAGES["gpu-file.md"])) == {*hardware.NEEDED, *hardware.OPTIONAL}
    for page in ("job-file.md", "gpu-file.md"):
        rows = [line for line in PAGES[page].splitlines() if line.startswith("| `")]
        assert [row for row in rows if not row.split("|")[-2].strip()] == []


def test_every_public_name_is_in_the_reference_of_python():
    named = re.findall(r"^::: \S+\.(\w+)$", PAGES["python.md"], re.M)
    public = [name for name in debubble.__all__ if not name.startswith("_") and callable(getattr(debubble, name))]
    assert set(named) >= {getattr(debubble, name).__name__ for name in public}


def test_every_page_is_in_the_navigation_and_is_there():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert set(nav(config["nav"])) == set(ALL)


@pytest.mark.parametrize("page", sorted(WRITTEN))
def test_links_lead_to_pages_and_headings_that_are_there(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", WRITTEN[page], flags=re.S)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (DOCS / page).parent.joinpath(path).resolve() if path else DOCS / page
        if target.is_relative_to(DOCS):
            assert str(target.relative_to(DOCS)) in ALL, link
        else:
            assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", ALL[str(target.relative_to(DOCS))], re.M)
            assert heading in [re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_for_nothing(tmp_path, monkeypatch):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install -e '.[docs]'")
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")  # strict: a link that leads nowhere is an error
    for page in ALL:
        text = (tmp_path / "site" / page).with_suffix(".html").read_text()
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', text) == []
