"""Which tests reach which line: one run of each test file under coverage, kept until that test file changes.

A map is kept beside the texts of the sources that it was made from. When a source changes, its lines are followed by
their text (``difflib``), so that a small change does not cost a run of the whole suite. A map that is a little old
can only choose too few tests, and so let a mutant survive that a newer one would kill; ``--fresh`` makes it anew.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "debubble"
TESTS = ROOT / "tests"
# Tests that start processes or a browser: what these run is not seen by coverage in this process, and they are slow.
# Fuzzing, recorders and runners take most of the minutes of a map and judge other rooms than those that are drawn from.
LEFT_OUT = ("real", "browser", "fuzz", "recorder", "runner")
CHOICE = (
    "-m",
    "not real and not slow and not clock and not frameworks and not engines",
    "-q",
    "--no-header",
    "--assert=plain",
    "--hypothesis-seed=0",
    "-p",
    "no:xdist",
)


@dataclass(slots=True)
class Map:
    """Tests by line, over all test files.

    Args:
        seconds: what each test took under coverage.
        lines: for each source file (from ``SOURCE``) and line the tests that ran it. Lines that run when a file is
            imported have every test of the files that import it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    def tests_of(self, file: str, lines: Iterable[int]) -> set[str]:
        """Tests that reach any of these lines; if none does, those of the file: machine code runs unseen."""
        reached = self.lines.get(file, {})
        tests = set().union(*(reached.get(line, ()) for line in lines))
        return tests or set().union(*reached.values())


def test_files() -> list[Path]:
    """All files of tests that can be measured in one process."""
    files = sorted(TESTS.rglob("test_*.py"))
    return [file for file in files if file.relative_to(TESTS).parts[0] not in LEFT_OUT]


def read_map(cache: Path) -> Map:
    """The map as far as it was made, with lines of changed sources followed to where they are now."""
    whole = Map()
    follow: dict[tuple[str, str], dict[int, int]] = {}
    for file in test_files():
        kept = _kept(cache, file)
        if not kept.is_file():
            continue
        made = json.loads(kept.read_text())
        names = list(made["seconds"])
        whole.seconds |= made["seconds"]
        for source, (digest, lines) in made["lines"].items():
            if (source, digest) not in follow:
                follow[source, digest] = _followed(cache, source, digest)
            now = follow[source, digest]
            for line, tests in lines.items():
                if int(line) in now:
                    whole.lines[source][now[int(line)]] |= {names[test] for test in tests}
    return whole


def missing(cache: Path, rooms: Sequence[str], *, near: bool = False) -> list[Path]:
    """Test files without a map, and those of a room that has a source which no map knows.

    Args:
        cache: where maps are kept.
        rooms: whose sources are judged.
        near: only of the rooms' own tests, and of laws and papers.
    """
    known = read_map(cache).lines
    new = {room for room in rooms for file in _sources(room) if file not in known}
    also = (*new, *(("laws", "papers", "cases") if new else ()))
    files = test_files()
    if near:
        files = [file for file in files if file.relative_to(TESTS).parts[0] in (*rooms, "laws", "papers")]
    return [f for f in files if not _kept(cache, f).is_file() or f.relative_to(TESTS).parts[0] in also]


def _sources(room: str) -> Iterator[str]:
    for file in sorted((SOURCE / room).rglob("*.py")):
        if file.stem != "__init__":
            yield str(file.relative_to(SOURCE))


def _kept(cache: Path, test: Path) -> Path:
    """Where the map of a test file is, named by its place and text."""
    return cache / "maps" / f"{test.stem}-{_digest(str(test.relative_to(TESTS)).encode() + test.read_bytes())}.json"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _followed(cache: Path, source: str, digest: str) -> dict[int, int]:
    """For each line of a source when it was measured the line that it is now; lines that are gone are left out."""
    now, then = SOURCE / source, cache / "texts" / digest
    if not now.is_file() or not then.is_file():
        return {}
    new, old = now.read_text().splitlines(), then.read_text().splitlines()
    if new == old:
        return {line: line for line in range(1, len(old) + 1)}
    lines = {}
    for _, first, last, onto, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for line in range(first, last):
            if end > onto:  # a changed block keeps its tests, line by line as far as both reach
                lines[line + 1] = min(onto + line - first, end - 1) + 1
    return lines


def measure(cache: Path, test: Path) -> int:
    """Run a test file under coverage and keep its map; in a process of its own. pytest's exit status."""
    import coverage

    (cache / "maps").mkdir(parents=True, exist_ok=True)
    (cache / "texts").mkdir(exist_ok=True)
    data = cache / f"coverage-{os.getpid()}"
    measured = coverage.Coverage(data_file=str(data), source=[str(SOURCE)], config_file=False)
    tests = _Tests(measured)
    measured.start()
    status = int(pytest.main([str(test), *CHOICE, f"--basetemp={cache}/scratch-{os.getpid()}"], plugins=[tests]))
    measured.stop()
    found = measured.get_data()
    names = {name: number for number, name in enumerate(tests.seconds)}
    lines: dict[str, Any] = {}
    for path in found.measured_files():
        text = Path(path).read_bytes()
        (cache / "texts" / _digest(text)).write_bytes(text)
        by_line: dict[int, list[int]] = {}
        for line, contexts in found.contexts_by_lineno(path).items():
            by_line[line] = sorted({n for each in contexts for n in _numbers(each, names)})
        lines[str(Path(path).relative_to(SOURCE))] = (_digest(text), by_line)
    kept = _kept(cache, test)
    kept.with_suffix(".new").write_text(json.dumps({"seconds": tests.seconds, "lines": lines}))
    kept.with_suffix(".new").rename(kept)
    data.unlink(missing_ok=True)
    return status


def _numbers(context: str, names: dict[str, int]) -> Iterable[int]:
    """The test of a context; what ran outside of tests, at import, belongs to all tests of the file."""
    return names.values() if not context else [names[context]] if context in names else []


class _Tests:
    """A plugin of pytest: tells coverage which test runs, and keeps those that pass with their times."""

    def __init__(self, measured: Any) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.measured.switch_context(item.nodeid)
        begin = time.perf_counter()
        try:
            return (yield)
        finally:
            self.measured.switch_context("")
            if item.nodeid in self.seconds:
                self.seconds[item.nodeid] = round(time.perf_counter() - begin, 4)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = 0.0
        elif report.failed:
            self.seconds.pop(report.nodeid, None)
            sys.stderr.write(f"fails unchanged, left out: {report.nodeid}\n")
