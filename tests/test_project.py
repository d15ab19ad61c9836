"""What stands around the code: links that hold wherever the README is shown, and files that say the same thing."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import debubble

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
RAW = REPOSITORY.replace("//github.com/", "//raw.githubusercontent.com/")
PLACES = {f"{REPOSITORY}/blob/main/", f"{RAW}/main/"}
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")

LINKS = LINK.findall((ROOT / "README.md").read_text())


@pytest.mark.parametrize(("picture", "link"), LINKS)
def test_a_link_of_the_readme_leads_somewhere_on_a_package_index_too(picture, link):
    assert link.startswith(("https://", "#")), "a package index shows the README without the files beside it"
    here = [place for place in PLACES if link.startswith(place)]
    assert bool(picture) <= (here == [f"{RAW}/main/"])
    if link.startswith(REPOSITORY) or here:
        assert (ROOT / link.removeprefix(here[0])).exists()


def test_the_version_that_is_cited_is_that_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == debubble.__version__
    assert cited["repository-code"] == REPOSITORY
    assert cited["license"] == PROJECT["project"]["license"]


def test_checks_before_a_commit_are_those_of_make_check():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    commands = [line.split("/", 1)[1].removesuffix(" .") for line in recipe.splitlines()]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in hooks] == commands


def test_the_workflow_runs_what_a_developer_runs_on_each_python_that_is_supported():
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    assert job["steps"][-1]["run"].startswith("make test")
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["project"]["classifiers"] if " Python :: 3." in line]
    assert job["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda f: f.stem)
def test_a_form_for_issues_has_what_its_site_asks_for(form):
    said = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= said.keys()
    assert all(
        {"label"} <= each["attributes"].keys() and each["type"] in ("textarea", "input") for each in said["body"]
    )


def test_the_archive_has_everything_that_is_kept():
    if not (ROOT / ".git").exists():
        pytest.skip("this is an unpacked archive")
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    included = {name.removeprefix("/") for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert {path.split("/")[0] for path in kept} - {".ci", ".gitignore", "pyproject.toml"} <= included
