"""Step times that were measured with a delay on one pipeline link, against what each engine makes of that delay.

    python benchmarks/engines.py TABLE.csv [--json]

TABLE has the columns model, p, m, schedule, links (``a_b``, joined by ``+``; empty: no delay), delay_ms,
step_ms_measured and source_path, as the step times of https://github.com/wutianyuan1/PipeMorph were written down.
Nothing is fitted but one scale for each model, schedule and experiment (the second folder of the path): the median of
its rows without a delay. What those runs did:

* 1F1B is Megatron-LM's, ZB the runtime of zero-bubble with its automatic order for F = I = W, a hop of a thousandth and
  memory for 2p; a forward, the gradient of the input and that of the weights take 9 : 10 : 6.
* A delay is a kernel that spins on the sender's stream before each send over a slow link, so it takes up the sender.
* The injector reads a peer of 0 and 1 as the stage before and the stage behind. That is right in a communicator of two
  ranks (ZB); 1F1B communicates within the whole pipeline, so there some sends are taken for others (``_delayed``).
* ZB-CPU sends from the host and leaves the device alone: shown for its order, not for its figures.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from debubble import Costs, Kind, Program, Rates, Schedule, Shape, build, lower, simulate
from debubble.frameworks.engines import ENGINES
from debubble.schedules.zb_auto import zb_auto

MILLISECOND = 1_000_000
PARTS = {Kind.F: 9, Kind.I: 10, Kind.W: 6, Kind.B: 16}
RUNS = {"1F1B": "megatron", "ZB": "zero-bubble"}
FROM_THE_CPU = "ideal"  # of ZB-CPU: sends that wait for nobody and take up nobody
TELLING = 0.03  # steps that differ by less say nothing about which schedule is faster

Links = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step time."""

    model: str
    ranks: int
    microbatches: int
    schedule: str
    links: str
    delay_ms: float
    measured_ms: float
    experiment: str

    @property
    def runs(self) -> str:
        """``1F1B`` or ``ZB``: whose order it ran."""
        return "ZB" if self.schedule.startswith("ZB") else self.schedule

    @property
    def engine(self) -> str:
        """Who executed it."""
        return RUNS.get(self.schedule, FROM_THE_CPU)

    @property
    def scaled_by(self) -> tuple[str, str, str]:
        """Whose rows without a delay give its scale."""
        return (self.model, self.runs, self.experiment)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row beside what its engine makes of the delay."""

    row: Row
    predicted_ms: float

    @property
    def error_percent(self) -> float:
        """Predicted over measured, less one."""
        return 100 * (self.predicted_ms / self.row.measured_ms - 1)


def read(path: Path) -> list[Row]:
    """The rows of a table; those of schedules that are not known are left out."""
    with path.open(newline="") as lines:
        return [
            Row(
                model=line["model"],
                ranks=int(line["p"]),
                microbatches=int(line["m"]),
                schedule=line["schedule"],
                links=line["links"],
                delay_ms=float(line["delay_ms"] or 0),
                measured_ms=float(line["step_ms_measured"]),
                experiment=line["source_path"].split("/")[1],
            )
            for line in csv.DictReader(lines)
            if line["schedule"] == "1F1B" or line["schedule"].startswith("ZB")
        ]


@cache
def schedule_of(runs: str, ranks: int, microbatches: int) -> Schedule:
    """The order that was run."""
    shape = Shape(ranks, microbatches)
    if runs == "1F1B":
        return build("1f1b", shape)
    return zb_auto(shape, Rates(forward=1000, input=1000, weight=1000, transfer=1), cap="2p")


@cache
def program_of(runs: str, engine: str, ranks: int, microbatches: int) -> Program:
    """The same under an engine."""
    return lower(schedule_of(runs, ranks, microbatches), ENGINES[engine], occupied=engine != "ideal")


def step_ms(row: Row, unit_ns: float) -> float:
    """The simulated step, milliseconds, if a forward takes 9 units."""
    program = program_of(row.runs, row.engine, row.ranks, row.microbatches)
    durations = np.empty((len(Kind), row.ranks, 1), np.int64)
    for kind, parts in PARTS.items():
        durations[kind] = round(parts * unit_ns)
    sender = np.zeros_like(durations)
    for way in _delayed(row):
        sent, received = way
        kinds = [Kind.F] if sent < received else [Kind.I, Kind.B]
        sender[kinds, received] = round(row.delay_ms * MILLISECOND)
    return simulate(program, Costs(durations, np.zeros_like(durations), sender=sender)).makespan / MILLISECOND


def _delayed(row: Row) -> Links:
    """Sends that are delayed, from rank to rank."""
    slow = {tuple(map(int, link.split("_"))) for link in row.links.split("+") if link}
    found = set()
    for sender in range(row.ranks):
        for receiver in {sender - 1, sender + 1} & {*range(row.ranks)}:
            peer = receiver
            if row.runs == "1F1B" and receiver < 2:  # a peer that the injector takes for a neighbour
                peer = sender - 1 if receiver == 0 else sender + 1
            if {(sender, peer), (peer, sender)} & slow:
                found.add((sender, receiver))
    return frozenset(found)


def predict(rows: list[Row]) -> list[Predicted]:
    """What each row with a delay should have taken; rows whose experiment has none without a delay are left out."""
    still = defaultdict(list)
    for row in rows:
        if not row.delay_ms and row.schedule in RUNS:
            still[row.scaled_by].append(row.measured_ms)
    found = []
    for row in rows:
        if row.delay_ms and still[row.scaled_by]:
            quiet = Row(row.model, row.ranks, row.microbatches, row.runs, "", 0.0, 0.0, row.experiment)
            unit = MILLISECOND * median(still[row.scaled_by]) / step_ms(quiet, MILLISECOND)
            found.append(Predicted(row, step_ms(row, unit)))
    return found


def groups(predicted: list[Predicted]) -> list[dict[str, Any]]:
    """Mean and worst error of each model and schedule, absolute values."""
    errors = defaultdict(list)
    for each in predicted:
        errors[each.row.model, each.row.schedule].append(abs(each.error_percent))
    return [
        {
            "model": model,
            "schedule": schedule,
            "engine": RUNS.get(schedule, "sends from the CPU"),
            "rows": len(found),
            "mean_error_percent": round(sum(found) / len(found), 2),
            "worst_error_percent": round(max(found), 2),
        }
        for (model, schedule), found in sorted(errors.items())
    ]


def pairs(predicted: list[Predicted]) -> list[dict[str, Any]]:
    """1F1B beside ZB under the same delay, where the measured steps differ: who is slower, and who should be."""
    by_case = {
        (each.row.model, each.row.experiment, each.row.links, each.row.delay_ms, each.row.schedule): each
        for each in predicted
    }
    found = []
    for (*case, schedule), one in sorted(by_case.items()):
        other = by_case.get((*case, "ZB"))
        if schedule != "1F1B" or other is None:
            continue
        measured, expected = (other.row.measured_ms / one.row.measured_ms, other.predicted_ms / one.predicted_ms)
        if abs(measured - 1) > TELLING:
            model, experiment, links, delay = case
            found.append(
                {
                    "model": model,
                    "experiment": experiment,
                    "links": links,
                    "delay_ms": delay,
                    "measured_ratio": round(measured, 3),
                    "predicted_ratio": round(expected, 3),
                    "right": (measured > 1) == (expected > 1),
                }
            )
    return found


def replay(path: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    predicted = predict(read(path))
    compared = pairs(predicted)
    return {
        "groups": groups(predicted),
        "pairs": len(compared),
        "pairs_right": sum(bool(each["right"]) for each in compared),
        "every_pair": compared,
        "rows": [
            {
                "model": each.row.model,
                "schedule": each.row.schedule,
                "experiment": each.row.experiment,
                "links": each.row.links,
                "delay_ms": each.row.delay_ms,
                "measured_ms": each.row.measured_ms,
                "predicted_ms": round(each.predicted_ms, 1),
                "error_percent": round(each.error_percent, 2),
            }
            for each in predicted
        ],
    }


GROUP = (
    "{model:6} {schedule:18} {engine:20} {rows:4} rows"
    "   mean {mean_error_percent:6.2f} %   worst {worst_error_percent:6.2f} %"
)
PAIR = (
    "{model:6} {experiment:18} {links:12} {delay_ms:4g} ms"
    "   ZB over 1F1B: measured {measured_ratio:.3f}, predicted {predicted_ratio:.3f}"
)


def main() -> None:
    """Print the groups and the pairs, or all of it as JSON."""
    found = replay(Path(sys.argv[1]))
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for group in found["groups"]:
        print(GROUP.format(**group))
    for pair in found["every_pair"]:
        print(PAIR.format(**pair))
    print(f"{found['pairs_right']} of {found['pairs']} pairs right")


if __name__ == "__main__":
    main()
