"""Runs numbered inputs in process, in workers that are recycled and whose memory is limited, and says which fail.

    python -m fuzz.harness --number 10000 --first 0 --jobs 2        from tests/

An input fails if it raises (exit 70), answers nan, inf or nothing with exit 0, breaks ``--json``, takes
more than 20 seconds of CPU or more than 2 GB. A failure is a number; ``--show N`` keeps its files and runs it aloud.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import os
import pickle
import pkgutil
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LONGEST = 20  # seconds of CPU of one input: what else runs on the machine does not matter
MEMORY = 2 << 30  # bytes of a worker
CHUNK = 2000  # inputs of a worker before it is recycled: what they have in common is worked out once in each
_SHOWN = 1500  # characters of a command line that fails
_NEVER_READ = ("debubble.recorder", "debubble.runner")  # they load torch, which no reader needs
_IN_MEMORY = "/dev/shm"  # a disk takes a third of the time for files that live for milliseconds
_NO_NUMBER = re.compile(r"(?<![\w./'\"=-])[-+]?(?:nan|inf|infinity)(?![\w'\"])", re.IGNORECASE)
_SPOKEN = ("diagnose", "fit", "why", "check", "show", "split")


@dataclass(frozen=True, slots=True)
class Failed:
    """An input that failed.

    Args:
        number: of the input.
        why: what is wrong with the answer.
        line: its command line.
    """

    number: int
    why: str
    line: str


class _TooLong(BaseException):
    """Of an input that takes too long; no ``except Exception`` catches it."""


def _stop(*_: object) -> None:
    raise _TooLong


def made(number: int, folder: Path, sound: Path, *, planner: bool) -> list[str]:
    """The command line of one input, whose files lie in a folder.

    Args:
        number: all that is random in it.
        folder: empty.
        sound: where sound inputs lie, a folder each.
        planner: whether ``plan`` is among the verbs.
    """
    from .command_lines import line_of
    from .mutators import spoil
    from .seeds import SEEDS

    dice = random.Random(number)
    if planner:
        given = folder / "config.json"
        shutil.copy(sound / "architecture" / "config.json", given)
        spoil(given, dice)
        rest = ["--model", str(given), "--gpu", "h100", "--gpus", str(dice.choice([1, 8, 16])), "--global-batch", "32"]
        return [*line_of("plan", [], dice), *rest]
    if dice.random() < 0.15:
        return line_of(dice.choice(["show", "check", "split"]), [], dice)
    seed = dice.choices(list(SEEDS), [weight for weight, _ in SEEDS.values()])[0]
    files = sorted((sound / seed.__name__).iterdir())
    for path in files:
        shutil.copy(path, folder / path.name)
    if dice.random() < 0.97:
        spoil(folder / dice.choice(files).name, dice)
    verb = dice.choice(SEEDS[seed][1])
    given = [folder] if len(files) > 1 else [folder / files[0].name]
    if verb == "why":
        given.append(sound / seed.__name__ if len(files) > 1 else files[0])
    return line_of(verb, given, dice, most=dice.choice([0, 1, 1, 2, 3]))


def judged(words: list[str]) -> str:
    """Run a command line in this process; what is wrong with its answer, or nothing."""
    from debubble.cli.main import main

    held = sys.stdout, sys.stderr
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape") for _ in range(2))
    sys.stdout, sys.stderr = out, err
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        status = main(words)
    except _TooLong:
        return f"takes more than {LONGEST} s"
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    except BaseException as error:  # whatever it is, it is what is looked for
        return f"{type(error).__name__} left main"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout, sys.stderr = held
    said = _written(out)
    return _wrong(words, status, said, _written(err))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]


def _wrong(words: list[str], status: int, said: str, err: str) -> str:
    if status == 70:
        lines = [line for line in err.splitlines() if "a fault of debubble" in line]
        return (lines or ["exit 70"])[0].partition(": a fault")[0]
    if status not in (0, 1, 2):
        return f"exit {status}"
    if "Traceback" in err:
        return "a traceback on stderr"
    if "--json" in words and not {"--help", "--list"} & set(words):
        try:
            tree = json.loads(said, parse_constant=_no_constant)
        except ValueError as error:
            return f"--json is no JSON: {error}"
        return "" if isinstance(tree, dict) else "--json is no object"
    if status == 0 and not said.strip() and "--distil" not in words:  # part of a run was written, and stderr says so
        return "exit 0 without an answer"
    if status == 2 and not (err + said).strip():
        return "exit 2 without a word"
    if status == 0 and (match := _NO_NUMBER.search(_without_names(said, words))):
        return f"says {match[0]!r}"
    return ""


def _no_constant(text: str) -> None:
    raise ValueError(f"holds {text}")


def _without_names(said: str, words: list[str]) -> str:
    """The answer without what the command line and names in the files themselves say."""
    for word in sorted(words, key=len, reverse=True):
        if word:
            said = said.replace(word, "")
    said = said.replace("(NaN,", "")  # what a remark calls the fault
    named = ("left out", ".json", "columns that mean nothing here")  # lines in which the files' own words stand
    return "\n".join(line for line in said.splitlines() if not any(words in line for words in named))


# What works out an answer of what was read: pure, and most spoiled inputs are read as the same few runs.
_PURE = (
    ("debubble.verbs.measured", "examine"),
    ("debubble.verbs.measured", "series"),
    ("debubble.verbs.measured", "alone"),
    ("debubble.diagnosis.remedies", "remedies"),
    ("debubble.diagnosis.why", "remedies"),
    ("debubble.diagnosis.replay", "fit_engines"),
)


def _remember_answers() -> None:
    """Let each pure function answer the same question once, so that inputs go into what is read differently."""
    for module, name in _PURE:
        home = importlib.import_module(module)
        setattr(home, name, _remembered(getattr(home, name)))


def _remembered(function: Callable[..., object]) -> Callable[..., object]:
    answers: dict[bytes, object] = {}

    def answered(*asked: object) -> object:
        try:
            question = hashlib.sha256(pickle.dumps(asked)).digest()
        except (pickle.PicklingError, AttributeError, TypeError):  # a function among what is asked
            return function(*asked)
        if question not in answers:  # what raises is asked again: it is refused early
            answers[question] = function(*asked)
        return answers[question]

    return answered


def work(first: int, number: int, *, planner: bool, folder: Path) -> None:
    """Judge some inputs, one after the other; files hold those that fail, and the one in hand."""
    from .seeds import SEEDS, architecture

    sound = folder / "sound"
    for seed in (*SEEDS, architecture):
        (sound / seed.__name__).mkdir(parents=True)
        seed(sound / seed.__name__)
    _remember_answers()
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    for i in range(first, first + number):
        (folder / "at").write_text(str(i))
        here = folder / "input"
        here.mkdir()
        words = made(i, here, sound, planner=planner)
        if why := judged(words):
            with (folder / "failed").open("a") as stream:
                stream.write(json.dumps([i, why, " ".join(words)[:_SHOWN]]) + "\n")
        shutil.rmtree(here, ignore_errors=True)
        for left in folder.glob("debubble-*.txt"):
            left.unlink()


def fuzzed(first: int, number: int, *, jobs: int = 2, planner: bool = False) -> Iterator[Failed]:
    """Judge numbered inputs in several processes; yields those that fail."""
    path = os.pathsep.join([str(HERE.parent), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    read, write = os.pipe()
    parents = []
    for job in range(jobs):  # the first takes the first of each `jobs` chunks, and so on
        words = ["--first", str(first), "--number", str(number), "--jobs", str(jobs), "--parent", str(job)]
        words += ["--plan"] if planner else []
        parents.append(subprocess.Popen([sys.executable, "-m", "fuzz.harness", *words], stdout=write, env=env))
    os.close(write)
    with os.fdopen(read) as lines:  # of all parents: one write of less than a page is never torn
        for line in lines:
            yield Failed(*json.loads(line))
    for parent in parents:
        if parent.wait():
            raise RuntimeError(f"a parent of workers ended with {parent.returncode}")


def _fork_workers(first: int, number: int, job: int, *, jobs: int, planner: bool) -> None:
    """Fork workers that find everything imported, one after the other; prints a line for each input that fails."""
    _import_all()
    last = first + number
    for begin in range(first + job * CHUNK, last, jobs * CHUNK):
        at, end = begin, min(begin + CHUNK, last)
        while at < end:
            folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None))
            status = _forked(at, end - at, planner=planner, folder=folder)
            failed = folder / "failed"
            for line in failed.read_text().splitlines() if failed.exists() else ():
                _tell(line)
            at = end
            if status:
                in_hand = _at(folder, begin)
                _tell(json.dumps([in_hand, f"the worker died ({status}): {_last(folder / 'err')[:_SHOWN]}", ""]))
                at = in_hand + 1
            shutil.rmtree(folder, ignore_errors=True)


def _tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _import_all() -> None:
    """Import what any verb may load lazily, before memory counts; what is not installed stays away."""
    import pyarrow.csv  # noqa: F401
    import yaml  # noqa: F401

    import debubble

    from . import seeds  # noqa: F401

    for module in pkgutil.walk_packages(debubble.__path__, "debubble."):
        if not module.name.startswith(_NEVER_READ) and not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)


def _forked(first: int, number: int, *, planner: bool, folder: Path) -> int:
    """Judge inputs in a fork of this process; its exit status, below zero for a signal."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
            work(first, number, planner=planner, folder=folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    here = folder / "at"
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if here.exists() and time.time() - here.stat().st_mtime > 20 * LONGEST:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _at(folder: Path, begin: int) -> int:
    try:
        return int((folder / "at").read_text())
    except (OSError, ValueError):
        return begin


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def _show(number: int, *, planner: bool) -> None:
    from .seeds import SEEDS, architecture

    folder = Path(f"fuzz-{number}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    for seed in (*SEEDS, architecture):
        (folder / "sound" / seed.__name__).mkdir(parents=True)
        seed(folder / "sound" / seed.__name__)
    (folder / "input").mkdir()
    words = made(number, folder / "input", folder / "sound", planner=planner)
    print(" ".join(words))
    print(judged(words) or "answers as it should")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--number", 10_000), ("--first", 0), ("--jobs", 2)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--show", type=int)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.parent is not None:
        return _fork_workers(asked.first, asked.number, asked.parent, jobs=asked.jobs, planner=asked.plan)
    if asked.show is not None:
        return _show(asked.show, planner=asked.plan)
    begun, count, kinds = time.time(), 0, dict[str, int]()
    for failed in fuzzed(asked.first, asked.number, jobs=asked.jobs, planner=asked.plan):
        count += 1
        kinds[failed.why] = kinds.get(failed.why, 0) + 1
        if kinds[failed.why] < 4:
            print(f"{failed.number}: {failed.why}: {failed.line[:200]!r}", flush=True)
    for why, times in sorted(kinds.items(), key=lambda each: -each[1]):
        print(f"{times:7,}  {why}")
    print(f"{count:,} of {asked.number:,} inputs fail; {time.time() - begun:.0f} s")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    _main()
