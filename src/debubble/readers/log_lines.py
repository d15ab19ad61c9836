"""Lines of training logs by their grammar: launcher's label, timestamp, figures of a step, DeepSpeed's timers.

Frameworks word a step differently but build it alike, so what is read is the construction, not a list of frameworks:

    [1,0]<stdout>: 2025-06-16 16:24:24,135 - root - INFO - step:  3  loss:  8.0871  tps: 14,006  mfu: 13.99%
    `---label---'  `------stamp----------'                 `step'                   `key: value` pairs

A label is what launchers put before each line of a process: groups in brackets, words that end in a colon or a bar. It
tells ranks apart that print the same. A pair is a number after ``:`` or ``=``; its key reaches back to the last bar,
comma, bracket, quote, dash or double space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np

from ..core.observation import Timer

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d|\d{4}/\d\d/\d\d|\d\d/\d\d/\d{4}|(?<!\d)\d{8})[ T_]"
    r"(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
)
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?\.?\d*(?:[eE][-+]?\d+)?"
_PAIR = re.compile(rf"""[:=]\s*['"]?((?=[-+.]?\d){_NUMBER})(?:([A-Za-z%][A-Za-z_/%]*)|\s(ms|sec|seconds)\b)?""")
_BEFORE_KEY = re.compile(r""".*(?:[|,;{}\[\]<>'"]|\)\s|\s\s|\s-\s|:\s)""", re.DOTALL)
_LABEL = re.compile(r"\s*(?:(?:\[[^\]]*\](?:<std\w+>)?:?|\([^)]*\):?|[\w.-]+\s?\||[\w.-]+:(?=\s))\s*)*")
_COUNTED = re.compile(
    r"\b(?:iteration|iter|step)s?\b(?:[\s:=]*(?P<step>\d+)\s*/\s*\d+|\s+(?P<plain>\d+)\s*[:|,])"
    r"|\b\d+/(?P<deepspeed>\d+), RunningAvg"  # before 0.7 its timer said epoch/step
    r"|\[batch=(?P<batch>\d+)(?:/\d+)?\]:",  # Composer: [epoch=1][batch=20/50]: above the figures, or before each
    re.IGNORECASE,
)
_HEAD_OF_BLOCK = re.compile(r"\[(?:epoch|batch)=[\d/]+\]:?")
_TIME = re.compile(r"\btime (?P<time>\d+(?:\.\d+)?)(?P<unit>ms|s)\b")  # nanoGPT and its many children
_EPOCH = re.compile(r"\bepoch[\s:='\"]*(?P<epoch>\d+)(?![\d.])", re.IGNORECASE)
# tqdm's bar, which NeMo, Lightning and Hugging Face's Trainer show: Epoch 0:  3%|##  | 3/100 [01:20<43:12, ..
_BAR = re.compile(r"(?P<step>\d+)/(?P<of>\d+) \[(?P<elapsed>(?:\d+:)?\d+:\d\d)<")
_OF_BAR = re.compile(r"[A-Za-z]+")  # its description, whatever epoch it counts
_SPELLED = re.compile(r"elapsed_time['\"]?: ['\"](?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+)s")
# A look before the costly one: most lines of a log say nothing of a step.
_LINE_OF_INTEREST = re.compile(
    r"iter|step|num_updates|\d\]? ?\[|seconds|elapsed|\[batch=|_per_sec|/mfu|peak_", re.IGNORECASE
)
# The batch that a job says before its first step: torchtitan's "global batch size 64", Megatron-LM's and DeepSpeed's
# lists of arguments (global_batch_size ..... 512), llm-foundry's global_train_batch_size: 256.
_HEAD_BATCH = re.compile(
    r"\b(?:global[ _](?:train[ _])?batch[ _]size|train_batch_size)\b['\"]?[\s.:=]+(\d{1,9})\b", re.IGNORECASE
)
_UNIT_OF_KEY = re.compile(r"\s*\((ms|s|sec|seconds)\)$|\s+(?:in )?(ms|s)$")

# Our name of each figure, by the words that frameworks have for it (lower case, blanks for _ and -).
STEP, SECONDS, BATCH, SAMPLES, MICROBATCHES = "step", "seconds", "batch", "samples", "microbatches"
TFLOPS, MFU, MEMORY, TOKENS, TOKENS_PER_GPU = "tflops", "mfu", "memory", "tokens", "tokens_per_gpu"
SAMPLE_RATE, STEP_RATE, RUNTIME, CLOCK = "sample_rate", "step_rate", "runtime", "clock"
_WORDS = {
    STEP: "iteration;iter;step;steps;global step;global step/max steps;completed step;train step;batch idx;num updates",
    SECONDS: (
        "elapsed time per iteration;elapsed time per step;iter time;iteration time;step time;time per iteration;"
        "time per step;train step timing;train iteration time;timing s/step;seconds;sec/step;s/step;time/step;"
        "train step time"
    ),
    BATCH: "global batch size;gbs;train batch size",
    SAMPLES: "consumed samples;consumed train samples",
    MICROBATCHES: "num microbatches;number of microbatches;micro num",
    TFLOPS: (
        "throughput per gpu (tflop/s/gpu);compute per gpu (tflop/s/gpu);model tflops per gpu;tflops;tflops per gpu;"
        "tflop/s/device;tflop/s/gpu;gpu utilization;approx flops per gpu;tflops/gpu"
    ),
    MFU: "mfu;model flops utilization;throughput/device/mfu",
    MEMORY: (
        "memory;memory/peak reserved mem;"
        "maxmemallocated;mem max allocated gigabytes;max allocated;peak mem;peak memory;hip mem usage"
    ),
    TOKENS: "throughput/tokens per sec;tokens per sec;tokens per second;tokens/s;tokens/sec;throughput (tokens/sec)",
    TOKENS_PER_GPU: (
        "tokens per sec per gpu;tokens per gpu (tokens/s/gpu);tokens/s/gpu;tokens/sec/gpu;tps;tokens/s/device;"
        "tgs (tokens/gpu/second);tgs;tokens/s/gpu inst/harmonic mean;tokens per gpu per second;tok/s/gpu;"
        "perf/throughput;throughput/device/tokens per sec"
    ),
    SAMPLE_RATE: "throughput/samples per sec;samples/sec;samples per second;currsamplespersec;samples/s",
    STEP_RATE: (
        "throughput/batches per sec;"
        "train steps per second;steps per second;train speed(iter/s);it/s;iterations per second;ups"
    ),
    RUNTIME: "train runtime",
    CLOCK: "train time;training time;total train time",  # that went by so far, as modded-nanogpt has it
}
_FIGURE = {word: figure for figure, words in _WORDS.items() for word in words.split(";")}
_STAMPED_PART = 200  # characters of a line in which its stamps stand
_GLOBAL_STEP = "global_step"
_LONGEST_KEY = 100  # characters
_OF_SOMETHING_ELSE = {"eval", "val", "valid", "validation", "test", "avg", "average", "mean", "running", "min", "max"}
_FACTOR = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "%": 0.01, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12,
    "GB": 1e9, "GiB": 2**30, "MB": 1e6, "MiB": 2**20,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepLine:
    """One line that reports a step.

    Args:
        label: what stands before it, without stamps: lines of different ranks differ in it.
        stamp: when it was written, seconds since an arbitrary moment; None if it does not say.
        elapsed: since the run began, whole seconds, as a progress bar has it; None if it does not say.
        figures: by our names, in seconds, bytes and shares.
        bar: which progress bar shows it: its words and its end; empty if none does.
        epoch: in which it counts its steps; None if it does not say.
        opens: whether figures of the same step follow in lines of their own, indented or with the same head.
        indented: whether it stands below another line.
    """

    label: str
    stamp: float | None
    elapsed: float | None
    figures: dict[str, float]
    bar: str = ""
    epoch: int | None = None
    opens: bool = False
    indented: bool = False

    def continues(self, other: StepLine) -> bool:
        """Whether it holds further figures of the step that another line opened."""
        if not other.opens:
            return False
        same = self.figures.get(STEP) == other.figures[STEP]
        return self.indented or (self.opens and same and self.figures.keys() & other.figures.keys() == {STEP})


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Lines without colours, and one for each state of a progress bar that went back to the start of its line."""
    for line in lines:
        for part in line.split("\r") if "\r" in line else (line,):
            yield _ANSI.sub("", part) if "\x1b" in part else part


def step_line(line: str) -> StepLine | None:
    """What a line says of a step; None if it says nothing."""
    if not _LINE_OF_INTEREST.search(line):
        return None
    stamp = None
    for stamp in _STAMP.finditer(line, 0, _STAMPED_PART):  # noqa: B007 - the last is the framework's own, not its host's
        pass
    if stamp is not None:
        line = _STAMP.sub("", line[:_STAMPED_PART]) + line[_STAMPED_PART:]
    label, told = "", 0
    if (match := _LABEL.match(line)) is not None:
        label, told = match[0], match.end()
    counted = _COUNTED.search(line)
    figures = _figures(line, label, counted)
    elapsed, shown = None, ""
    # Cheap looks before costly patterns: a log of a long run has millions of lines.
    if "elapsed_time" in line:
        elapsed = _spelled(line)
    if (bar := _BAR.search(line)) is not None:
        figures.setdefault(STEP, float(bar["step"]))
        elapsed = _clock(bar["elapsed"])
        shown = " ".join([*_OF_BAR.findall(line[told : bar.start()].partition("%")[0]), bar["of"]])
    if not figures:
        return None
    opens = counted is not None and counted["batch"] is not None
    if opens:  # what numbers the step is no label of its process
        label = _HEAD_OF_BLOCK.sub("", label)
    epoch = None
    if (match := _EPOCH.search(line)) is not None:
        epoch = int(match["epoch"])
    return StepLine(
        label=" ".join(label.split()),
        stamp=_moment(stamp),
        elapsed=elapsed,
        figures=figures,
        bar=shown,
        epoch=epoch,
        opens=opens,
        indented=label.endswith(("\t", "\t ", "  ")),
    )


def head_batch(line: str) -> float | None:
    """The samples of a step that a line says which stands before the first of them; None if it says nothing."""
    found = _HEAD_BATCH.search(line)
    if found is None:
        return None
    return float(found[1])


def _figures(line: str, label: str, counted: re.Match[str] | None) -> dict[str, float]:
    """Every figure of a line whose key we know, by our names; of several with one name the first."""
    figures: dict[str, float] = {}
    since = len(label.rstrip()) - len(label.split()[-1]) if label.strip() else 0  # its last word may be the first key
    for pair in _PAIR.finditer(line, since):
        figure = _figure(line[since : pair.start()])
        since = pair.end()
        if figure is not None and figure[0] not in figures:
            value = float(pair[1].replace(",", ""))
            figures[figure[0]] = value * figure[1] * _FACTOR.get(pair[2] or pair[3] or "", 1.0)
    if counted is None:
        return figures
    if STEP not in figures or _GLOBAL_STEP not in line:  # the count of an epoch begins again, the global one does not
        figures[STEP] = float(counted[counted.lastgroup or "step"])
    if SECONDS not in figures and (time := _TIME.search(line, counted.end())) is not None:
        figures[SECONDS] = float(time["time"]) * _FACTOR[time["unit"]]
    return figures


@lru_cache(maxsize=4096)
def _figure(before: str) -> tuple[str, float] | None:
    """Our name of the key that ends a text, and the factor that its own unit asks for."""
    key = _BEFORE_KEY.sub("", before[-_LONGEST_KEY:].rstrip(" \t'\""))
    parts = key.lstrip("/:").replace("_", " ").replace("-", " ").split()
    words = " ".join(parts).lower()
    factor = 1.0
    if words not in _FIGURE and (unit := _UNIT_OF_KEY.search(words)) is not None:
        words = words[: unit.start()].strip()
        factor = _FACTOR[unit[1] or unit[2]]
    name = _FIGURE.get(words) or _after_a_prefix(words.split(" "), parts)
    if name == MEMORY and words.endswith("gigabytes"):
        factor = 1e9
    elif name == MEMORY and words.endswith("reserved mem"):
        factor = 1e9  # Composer's memory monitor divides by that
    elif name == MEMORY and words == "max allocated":
        factor = 2**20  # Megatron-LM: memory (MB) | allocated: .. | max allocated: ..
    if name is None:
        return None
    return name, factor


def _after_a_prefix(words: list[str], as_written: list[str]) -> str | None:
    """Our name of words that end in a key, as a launcher's label that we do not know leaves them.

    A key of one word counts only after what is no word (``F``, ``mx/0``, ``INFO``): ``max steps`` is something else.
    One that is a path (``Train throughput/device/mfu``) cannot be misread.
    """
    for first in range(1, len(words)):
        before = as_written[first - 1]
        if words[first - 1] in _OF_SOMETHING_ELSE:
            return None
        if "/" in words[first] and words[-1] == words[first]:
            return _FIGURE.get(words[first])
        if first == len(words) - 1 and before.isalpha() and len(before) > 2 and not before.isupper():
            return None
        if (name := _FIGURE.get(" ".join(words[first:]))) is not None:
            return name
    return None


def _moment(stamp: re.Match[str] | None) -> float | None:
    if stamp is None:
        return None
    date, time, part = stamp["date"], stamp["time"], stamp["part"]
    form = "%Y%m%d"
    if date[2:3] == "/":
        form = "%m/%d/%Y"
    elif not date.isdecimal():
        form = f"%Y{date[4]}%m{date[4]}%d"
    try:
        moment = datetime.strptime(f"{date} {time}", f"{form} %H:%M:%S")
    except ValueError:
        return None
    return (moment - datetime(2000, 1, 1)).total_seconds() + float("0." + part[1:] if part else 0)


def _clock(text: str) -> float:
    """Seconds of tqdm's 1:02:03 or 02:03."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def _spelled(line: str) -> float | None:
    """Seconds of ms-swift's '1h 2m 3s'."""
    found = _SPELLED.search(line)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


_MOST_TIMERS = 10_000  # of one name and rank each
_TIMER_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

# Megatron-LM names are padded with dots; older ones and DeepSpeed's are in one line after "time (ms)".
_LINE_OF_TIMERS = re.compile(r"time \(ms\) \|(.*)")
_ONE_TIMER = re.compile(rf"([\w.\- ]+?):\s*{_TIMER_NUMBER}")
_HEADING = re.compile(r"(?:\(min, max\) |max )?times? across ranks \(ms\):")
_RANGE = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*\({_TIMER_NUMBER}, {_TIMER_NUMBER}\)")
_MAXIMUM = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*{_TIMER_NUMBER}\s*$")
_NAME = re.compile(r"^\s*([\w\-]+)\s*\.*:\s*$")
_RANK_OF_LINE = re.compile(r"[Rr]ank[ =](\d+)")
_RANK = re.compile(rf"^\s*rank\s+(\d+):\s*{_TIMER_NUMBER}")
# What launchers put before a line; not every word with a colon, since a timer is one, too.
_TIMER_LABEL = re.compile(
    r"^\s*(?:(?:\[[^\]]*\](?:<std\w+>)?:?|\([^)]*pid=[^)]*\):?|[\w.-]+\s?\||[\w.-]*\d:(?=\s))\s?)+"
)

STEP_TIMER = "train_batch"  # DeepSpeed's pipeline engine: the whole step
PARTS_OF_STEP: tuple[str, ...] = (
    "fwd",
    "bwd",
    "step",
)  # DeepSpeed's engine without a pipeline, over the micro-batches of a step

Timing = tuple[str, str, float]  # timer, rank (or ``min``, ``max``), milliseconds


def is_of_timers(line: str) -> bool:
    """Whether a line holds timers, or is the heading above some."""
    return bool(_LINE_OF_TIMERS.search(line) or _HEADING.search(line))


class TimerLines:
    """The timers of a log, gathered line by line."""

    __slots__ = ("listed", "name", "timings")

    def __init__(self) -> None:
        self.timings: dict[tuple[str, str], list[float]] = {}  # milliseconds of each timer and rank
        self.name = ""  # heading of the lines of ranks that follow
        self.listed = False  # whether a heading was read and its lines last

    def take(self, line: str) -> bool:
        """Read a line; whether it was one of timers."""
        if _HEADING.search(line):
            self.name, self.listed = "", True
            return True
        of_timers = "time (ms)" in line
        if not self.listed and not of_timers:
            return False
        if self.listed:  # the lines below a heading are matched from their start
            line = _TIMER_LABEL.sub("", line)
        found = _timings(line, self.name)
        if self.listed and not found:
            heads = _NAME.match(line)
            self.listed, self.name = heads is not None, ""
            if heads is not None:
                self.name = heads[1]
        for timer, rank, milliseconds in found:
            if (timer, rank) in self.timings or len(self.timings) < _MOST_TIMERS:
                self.timings.setdefault((timer, rank), []).append(milliseconds)
        return self.listed or of_timers

    def timers(self) -> Iterator[Timer]:
        """The median of each rank's timings, then the least and the most over ranks, in seconds."""
        medians: dict[str, list[float]] = {}
        for (name, _), milliseconds in self.timings.items():
            medians.setdefault(name, []).append(float(np.median(milliseconds)) / 1e3)
        for name, of_ranks in medians.items():
            yield Timer(name, min(of_ranks), max(of_ranks))

    def steps(self) -> list[float]:
        """Seconds of each step as the first rank's timers have them; empty if no timer is of a whole step."""
        ranks = [rank for timer, rank in self.timings if timer in (STEP_TIMER, *PARTS_OF_STEP)]
        if not ranks:
            return []
        names = PARTS_OF_STEP
        if (STEP_TIMER, ranks[0]) in self.timings:
            names = (STEP_TIMER,)
        parts = [self.timings.get((name, ranks[0]), []) for name in names]
        return [sum(each) / 1e3 for each in zip(*parts, strict=False)]


def _timings(line: str, name: str) -> list[Timing]:
    """All timings in one line."""
    if listed := _LINE_OF_TIMERS.search(line):
        said = _RANK_OF_LINE.findall(line[: listed.start()])
        own = ""
        if said:  # the last is DeepSpeed's own; the first may be a launcher's label, which counts nodes or workers
            own = said[-1]
        return [(n.strip(), own, float(value)) for n, value in _ONE_TIMER.findall(listed[1])]
    if pair := _RANGE.match(line):
        return [(pair[1], "min", float(pair[2])), (pair[1], "max", float(pair[3]))]
    if rank := _RANK.match(line):
        if not name:  # without a heading it is no timer's
            return []
        return [(name, rank[1], float(rank[2]))]
    if most := _MAXIMUM.match(line):
        return [(most[1], "max", float(most[2]))]
    return []
