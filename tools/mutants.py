"""Do the tests see a wrong line? Draws one-line mutations and runs the tests that reach each: ``make mutants``.

    python tools/mutants.py ROOM.. [--number 60] [--seed 1] [--jobs 2] [--near]

prints how many of each room were killed, and each survivor as the line that no test missed. Lines are drawn evenly
(of the lines of a room that can be changed at all), one mutation each, so that a dense line counts once. A mutant is
killed by a failing test, by an error on import, and by taking several times as long as its tests do otherwise.
``--near`` measures the room's own tests, laws and papers alone: minutes, not tens of them, and a score that the
other tests can only raise.

Every mutant runs in a process of its own on a copy of the sources, so that working files are never touched and
commands that tests start see it too. Tests that kill are run once more on the unchanged copy: they must pass.
mutmut and cosmic-ray do not serve here: the one draws no sample, the other runs the whole suite for every mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coverage_map import CHOICE, ROOT, SOURCE, Map, measure, missing, read_map
from mutations import Mutation, mutations

ROOMS = ("core", "schedules", "planning", "estimate", "diagnosis", "reconstruct")
BUDGET = 60.0  # seconds of tests for one mutant, as measured under coverage; its room's own and quick ones first
MEMORY = 6 << 30  # bytes of data: a mutant may ask for any size
_WARM = ("numpy", "click", "msgspec")  # imported once, before the processes are forked


@dataclass(frozen=True, slots=True)
class Bench:
    """Where maps, copies of the sources and logs lie, and how many processes run side by side."""

    cache: Path
    jobs: int

    def slot(self, number: int) -> Path:
        """Where a process has its copy."""
        return self.cache / f"slot-{number}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation with its file, and what became of it.

    Args:
        file: from ``SOURCE``.
        change: the mutation.
        tests: that are run, in that order.
        seconds: what these take on the unchanged source.
    """

    file: str
    change: Mutation
    tests: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a mutant was killed, and by what: a test, ``import`` or ``time``; None for a survivor."""

    mutant: Mutant
    killer: str | None


def draw(room: str, number: int, seed: int, reach: Map) -> list[Mutant]:
    """So many mutants of a room, no two on one line."""
    chance = random.Random(f"{seed} {room}")
    sources = {file: file.read_text() for file in sorted((SOURCE / room).rglob("*.py"))}
    lines: dict[tuple[Path, int], list[Mutation]] = {}
    for file, source in sources.items():
        for change in mutations(source):
            lines.setdefault((file, change.line), []).append(change)
    drawn: list[Mutant] = []
    for file, line in chance.sample(sorted(lines), len(lines)):
        if len(drawn) == number:
            break
        changes = [each for each in lines[file, line] if each.is_python(sources[file])]
        if changes:
            change = chance.choice(changes)
            drawn.append(_with_tests(str(file.relative_to(SOURCE)), change, sources[file], room, reach))
    return drawn


def _with_tests(file: str, change: Mutation, source: str, room: str, reach: Map) -> Mutant:
    """Its tests: what the room's own tests and quick ones can say within the budget."""
    found = reach.tests_of(file, _reading(source, change.line))
    ranked = sorted(found, key=lambda test: (f"tests/{room}/" not in test, reach.seconds.get(test, 0.0), test))
    chosen: list[str] = []
    spent = 0.0
    for test in ranked:
        spent += reach.seconds.get(test, 0.0)
        if chosen and spent > BUDGET:
            break
        chosen.append(test)
    return Mutant(file, change, tuple(chosen), sum(reach.seconds.get(test, 0.0) for test in chosen))


def _reading(source: str, line: int) -> Sequence[int]:
    """Lines whose tests may notice a change: of a statement in a function its own, else the whole file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            return [line]
    return range(1, source.count("\n") + 2)


class _Chosen:
    """A plugin of pytest: runs the chosen tests in their order, and keeps the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A chosen test that is no longer there, since its name holds what was changed, stands for its whole file."""
        gone = {test.split("::")[0] for test in self.order.keys() - {item.nodeid for item in items}}
        kept = [item for item in items if item.nodeid in self.order or item.nodeid.split("::")[0] in gone]
        items[:] = sorted(kept, key=lambda item: self.order.get(item.nodeid, len(self.order)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _run(slot: Path, tests: Sequence[str], *more: str) -> None:
    """Run tests on the sources of a slot, in a process of its own; leaves what failed in ``result``."""
    import hypothesis.configuration

    hypothesis.configuration.set_hypothesis_home_dir(slot / "hypothesis")
    sys.path.insert(0, str(slot / "src"))
    os.environ["PYTHONPATH"] = str(slot / "src")
    plugin = _Chosen(tests)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    status = pytest.main([*files, *CHOICE, *more, f"--basetemp={slot}/scratch"], plugins=[plugin])
    (slot / "result").write_text(json.dumps({"status": int(status), "failed": plugin.failed}))


def _fork(work: Callable[[], object], log: Path, seconds: float) -> int:
    """Start work in a process of its own, with its output in a file and limits of time and memory."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setsid()
        os.chdir(ROOT)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _in_slots(bench: Bench, works: Sequence[tuple[Callable[[int], object], float]]) -> Iterator[tuple[int, int, bool]]:
    """Run works side by side, each with the number of its slot and a limit in seconds.

    Yields:
        The number of a work that ended, its slot, and whether it had to be stopped.
    """
    waiting = list(enumerate(works))[::-1]
    running: dict[int, tuple[int, int, float]] = {}  # process: work, slot, when it is stopped
    free = list(range(bench.jobs))
    while waiting or running:
        while waiting and free:
            number, (work, seconds) = waiting.pop()
            slot = free.pop()
            log = bench.slot(slot).with_suffix(".log")
            pid = _fork(lambda work=work, slot=slot: work(slot), log, seconds)  # type: ignore[misc]
            running[pid] = (number, slot, time.monotonic() + 3 * seconds)
        pid, status = os.waitpid(-1, os.WNOHANG)
        late = [each for each, (_, _, end) in running.items() if time.monotonic() > end]
        for each in late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each, signal.SIGKILL)
        if pid in running:
            number, slot, end = running.pop(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it may have left
            free.append(slot)
            yield number, slot, os.WIFSIGNALED(status) or time.monotonic() > end
        elif not late:
            time.sleep(0.02)


def renew(rooms: Sequence[str], bench: Bench, *, near: bool = False) -> None:
    """Make the maps that are missing; ``near``, those of the rooms' own tests alone."""
    files = missing(bench.cache, rooms, near=near)
    if files:
        sys.stderr.write(f"measuring which lines {len(files)} test files reach, once\n")
    works = [(lambda _, file=file: _measured(bench.cache, file), 1200.0) for file in files]
    for done, (number, slot, stopped) in enumerate(_in_slots(bench, works), 1):
        log = (bench.slot(slot).with_suffix(".log")).read_text(errors="replace")
        said = [line for line in log.splitlines() if line.startswith("fails unchanged")]
        notes = [*said, *([f"stopped: {files[number]}"] if stopped else [])]
        sys.stderr.write("".join(f"{note}\n" for note in notes))
        sys.stderr.write(f"{done} of {len(files)}: {files[number].relative_to(ROOT)}\n")


def _measured(cache: Path, file: Path) -> None:
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    measure(cache, file)


def judge(mutants: Sequence[Mutant], bench: Bench) -> Iterator[Outcome]:
    """Run the tests of each mutant."""
    slots = [_copied(bench.slot(number)) for number in range(bench.jobs)]

    def work(mutant: Mutant) -> Callable[[int], object]:
        def run(number: int) -> None:
            slot = slots[number]
            (slot / "result").unlink(missing_ok=True)
            with _changed(slot / "src" / "debubble" / mutant.file, mutant.change):
                _run(slot, mutant.tests, "--exitfirst")

        return run

    reached = [mutant for mutant in mutants if mutant.tests]
    yield from (Outcome(mutant, None) for mutant in mutants if not mutant.tests)
    works = [(work(mutant), 30 + 4 * mutant.seconds) for mutant in reached]
    for number, slot, stopped in _in_slots(bench, works):
        mutant = reached[number]
        shutil.copyfile(SOURCE / mutant.file, slots[slot] / "src" / "debubble" / mutant.file)
        killer = "time" if stopped else _killer(slots[slot] / "result")
        if killer is None:  # at once: a room takes minutes, and each survivor is read alone
            sys.stderr.write(f"survives {mutant.file}:{mutant.change.line}: {mutant.change.after.strip()}\n")
        yield Outcome(mutant, killer)


def _copied(slot: Path) -> Path:
    """A fresh copy of the sources."""
    shutil.rmtree(slot, ignore_errors=True)
    shutil.copytree(ROOT / "src", slot / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return slot


@contextlib.contextmanager
def _changed(file: Path, change: Mutation) -> Iterator[None]:
    """The file with its mutation; compiled files go by time in seconds and size, so the time is made to differ."""
    source = file.read_text()
    file.write_text(change.applied(source))
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
    try:
        yield
    finally:
        file.write_text(source)
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)


def _killer(result: Path) -> str | None:
    """The test that failed, ``import`` where tests could not even be read or the process fell, None for a survivor."""
    if not result.is_file():
        return "import"
    said: dict[str, Any] = json.loads(result.read_text())
    if said["failed"]:
        return str(said["failed"][0])
    return None if said["status"] in (0, 5) else "import"


def check(killers: Sequence[str], bench: Bench) -> list[str]:
    """Tests that killed and fail on the unchanged source too."""
    if not killers:
        return []
    slot = _copied(bench.slot(0))
    list(_in_slots(Bench(bench.cache, 1), [(lambda _: _run(slot, killers), 3600.0)]))
    return list(json.loads((slot / "result").read_text())["failed"])


def main() -> int:
    """Exit status 1 if a room is below the limit, or a test that killed fails unchanged."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", default=ROOMS, help=f"of src/debubble; {' '.join(ROOMS)} if none is named")
    parser.add_argument("--number", type=int, default=60, help="mutants a room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=0.85, help="share killed below which the exit status is 1")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutants", help="where maps of coverage are kept")
    parser.add_argument("--fresh", action="store_true", help="make the maps anew")
    parser.add_argument("--near", action="store_true", help="map the rooms' own tests, laws and papers alone")
    asked = parser.parse_args()
    bench = Bench(asked.cache.resolve(), asked.jobs)
    if asked.fresh:
        shutil.rmtree(bench.cache / "maps", ignore_errors=True)
    bench.cache.mkdir(exist_ok=True)
    for module in _WARM:
        __import__(module)
    renew(asked.rooms, bench, near=asked.near)
    reach = read_map(bench.cache)
    killers, low = [], False
    for room in asked.rooms:
        outcomes = list(judge(draw(room, asked.number, asked.seed, reach), bench))
        killers += [each.killer for each in outcomes if each.killer not in (None, "import", "time")]
        low |= _printed(room, outcomes) < asked.least
    failing = check(list(dict.fromkeys(killers)), bench)
    sys.stdout.write("".join(f"fails on the unchanged source: {test}\n" for test in failing))
    return int(low or bool(failing))


def _printed(room: str, outcomes: Sequence[Outcome]) -> float:
    """Print a room's survivors and its score; the share that was killed."""
    survivors = sorted((each.mutant for each in outcomes if each.killer is None), key=lambda m: (m.file, m.change.line))
    for each in survivors:
        seen = f"{len(each.tests)} tests" if each.tests else "no test reaches it"
        sys.stdout.write(f"src/debubble/{each.file}:{each.change.line} ({seen})\n")
        sys.stdout.write(f"- {each.change.before.strip()}\n+ {each.change.after.strip()}\n")
    killed = len(outcomes) - len(survivors)
    late = sum(each.killer == "time" for each in outcomes)
    share = killed / len(outcomes) if outcomes else 1.0
    sys.stdout.write(f"{room}: {killed} of {len(outcomes)} killed ({100 * share:.0f} %), {late} of them by time\n")
    sys.stdout.flush()
    return share


if __name__ == "__main__":
    sys.exit(main())
