"""Command lines by chance: a verb, what it reads, and options with values that nobody meant."""

from __future__ import annotations

import random
from pathlib import Path

import click

from debubble.cli.main import command_of

from .mutators import NUMBERS, WORDS

_VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "4",
        "8",
        "16",
        "64",
        "1.5",
        "1e9",
        "nan",
        "inf",
        "-inf",
        "1,2",
        "1,1,1,1.4",
        "2:3",
        "3:1",
    ),
    *(
        "10ms",
        "1h",
        "-1us",
        "0s",
        "1e300s",
        "30%",
        "-5%",
        "300%",
        "1f1b",
        "gpipe",
        "interleaved",
        "zb-h1",
        "zb-v",
        "v-half",
    ),
    *("megatron", "torchtitan", "deepspeed", "h100", "llama3-8b", "batched", "blocking", "0=1", "0-1=5ms", "1=2,2=1"),
    *("rank=a", "start=start_ns", "=", ",", ":", "1:", ":2", "a=b,c"),
)
_SCHEDULES = (
    "1f1b",
    "gpipe",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "1f1b-v",
    "eager-1f1b",
    "looped-bfs",
    "dualpipe",
)
_WRITTEN = {"--html", "--svg", "--perfetto", "--torch-csv", "--distil", "--rows"}
_DEAR = {"--png", "--pdf"}  # a browser or a renderer, each of seconds
_SMALL_SIZES = (0, -1, 1, 2, 3, 4, 5, 8, 16, 2**31, 2**64)
# What is allowed and takes seconds of linear work: one in fifty, so that most of the time goes into other inputs.
_LARGE_SIZES = (10_000, 65_536)
_SIZES = {"--ranks", "--microbatches", "--chunks", "--pipeline", "--slices", "--group"}


def line_of(verb: str, given: list[Path], dice: random.Random, *, most: int = 3) -> list[str]:
    """A verb, its arguments, and up to some options.

    Args:
        verb: by its name.
        given: what it reads; none for a schedule by name.
        dice: all that is random.
        most: options.
    """
    words = [verb, *(map(str, given) if given else ([dice.choice(_SCHEDULES)] if verb in ("show", "check") else []))]
    if not given and verb in ("show", "check"):
        words += ["-p", str(dice.choice([1, 2, 3, 4, 8])), "-m", str(dice.choice([1, 2, 4, 8, 12]))]
    if verb in ("fit", "why") and given and dice.random() < 0.7:
        words += ["--ranks", "4", "--data", "1", "--micro-batch", "1"]
    if verb == "split":
        words += ["--weights", "1,1,2,1,1,3,1,1", "--pipeline", "4", "--microbatches", "8"]
    options = [each for each in command_of(verb).params if isinstance(each, click.Option)]
    for option in dice.sample(options, dice.randint(0, min(most, len(options)))):
        name = max(option.opts, key=len)
        if name in _DEAR or name == "--ray":  # which starts a cluster
            continue
        words.append(name)
        if name in _WRITTEN:
            words.append(dice.choice(["out.html", "out.csv", "out", "missing/out", "", "/dev/full"]))
        elif not option.is_flag:
            words.append(_value(name, dice))
    return words


def _value(name: str, dice: random.Random) -> str:
    if name in _SIZES and dice.random() < 0.7:
        return str(dice.choice(_LARGE_SIZES if dice.random() < 0.02 else _SMALL_SIZES))
    return str(dice.choice([*_VALUES, *NUMBERS, *WORDS])).replace("\0", "")
