"""Runs many schedules in one group of four processes, because starting them costs more than all the steps.

As a script: ``many_runs.py FOLDER`` records each run in its own sub-folder and prints what came out as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from debubble.core.costs import Rates, costs_of, link_table
from debubble.core.errors import InputError
from debubble.core.schedule import Op, Schedule, Shape, from_rows
from debubble.core.units import hops, read_hops
from debubble.schedules.catalog import CATALOG, build
from debubble.verbs.arguments import duration
from strategies import Sizes, random_schedule

PROCESSES = 4
TWO_COPIES_OR_SLICES = {"dualpipe", "chimera", "seq1f1b"}
RANDOM = {
    "random fused": Sizes(4, 6, 5, 1, 1, "fused", False, 11),
    "random split": Sizes(4, 6, 5, 1, 1, "split", False, 12),
    "random mixed": Sizes(4, 7, 5, 1, 1, "mixed", False, 13),
    "random mixed pairs": Sizes(4, 6, 5, 1, 1, "mixed", True, 14),
    "random forward": Sizes(4, 6, 5, 1, 1, "forward", False, 15),
    "random two ranks": Sizes(2, 5, 3, 1, 1, "mixed", True, 16),
}
PACED = {
    "paced 1f1b": ("1f1b", Shape(4, 8), Rates(20e6, 40e6)),
    "paced hop": ("1f1b", Shape(4, 4), Rates(10e6, 20e6, transfer=25e6)),
    "paced slow link": ("1f1b", Shape(4, 4), Rates(10e6, 20e6, transfer=read_hops("2-3=25ms", "transfer", duration))),
    "paced gpipe": ("gpipe", Shape(4, 8), Rates(10e6, 20e6)),
}
MODELS = {  # tied: the copies lie on two ranks of one pipeline; on one rank (zb-v); in each of two replicas
    "tied": ("1f1b", Shape(4, 8)),
    "tied split": ("zb-h1", Shape(4, 8)),
    "tied on one rank": ("zb-v", Shape(4, 8, 2)),
    "tied and replicas": ("interleaved", Shape(2, 4, 2)),
    "linear split": ("zb-h1", Shape(4, 8)),
    "frozen_middle split": ("zb-h1", Shape(4, 8)),
    "frozen_first": ("1f1b", Shape(4, 8)),
}
CURVE_STEPS = 20


def reversed_on_last_rank() -> Schedule:
    """Two ranks that take micro-batch 1 before 0."""
    rows = [["0F1", "0F0", "0B1", "0B0"], ["1F1", "1F0", "1B1", "1B0"]]
    return from_rows("reversed", [[Op.parse(cell) for cell in row] for row in rows], [0, 1], 2)


def catalogued() -> Iterator[tuple[str, Schedule]]:
    """Every schedule of the catalog that torch has words for, at a few sizes where it is legal."""
    for name in sorted(CATALOG.keys() - TWO_COPIES_OR_SLICES):
        for ranks, microbatches in ((4, 8), (4, 9), (4, 3), (2, 3)):
            for chunks in (1, 2):  # the last that is defined wins
                with suppress(InputError):  # not defined for this size
                    yield f"{name} p={ranks} m={microbatches}", build(name, Shape(ranks, microbatches, chunks))


def schedules() -> dict[str, Schedule]:
    """What is trained and checked, by name."""
    return {
        **dict(catalogued()),
        **{name: random_schedule(sizes) for name, sizes in RANDOM.items()},
        "reversed": reversed_on_last_rank(),
        "losses by order": reversed_on_last_rank(),
        "without reduce": build("1f1b", Shape(4, 8)),
    }


@contextmanager
def spoiled(name: str) -> Iterator[None]:
    """The engine with one of our repairs taken out again."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as Theirs

    from debubble.runner import engine

    keep = {n: getattr(engine._Runtime, n) for n in ("_maybe_compute_loss", "_maybe_get_loss", "_update_losses")}
    reductions = engine._reductions

    def compute(self, *args):
        Theirs._maybe_compute_loss(self, *args)
        self._values[args[3]] = self._internal_losses[-1].detach() if args[0].is_last else 0
        self._watch.end()

    def update(self, stages, losses):
        self._internal_losses.clear()
        keep["_update_losses"](self, stages, losses)

    try:
        if name == "losses by order":
            engine._Runtime._maybe_compute_loss, engine._Runtime._update_losses = compute, update
            engine._Runtime._maybe_get_loss = Theirs._maybe_get_loss
        if name == "without reduce":
            engine._reductions = lambda program, rank: []
        yield
    finally:
        engine._reductions = reductions
        for method, function in keep.items():
            setattr(engine._Runtime, method, function)


def entry(folder: str) -> dict[str, dict[str, float | None]]:
    """What each of the processes does."""
    from debubble.core.lower import lower
    from debubble.core.simulate import simulate
    from debubble.runner.task import Task
    from debubble.runner.worker import connect, seat, train

    out, steps = {}, {}
    with connect(PROCESSES, timeout_s=60) as device:
        worlds = {ranks: seat(ranks, PROCESSES // ranks, device) for ranks in (2, 4)}

        def run(name: str, schedule: Schedule, **options: object) -> None:
            replicas = PROCESSES // schedule.ranks
            batch = schedule.microbatches * replicas
            task = Task(schedule, batch, str(Path(folder, name)), replicas, **options)
            with spoiled(name):
                out[name] = train(task, worlds[schedule.ranks], partial(steps.setdefault(name, []).append))

        for name, schedule in schedules().items():
            run(name, schedule, steps=1, check=True, double=True)
        for name in ("gpipe", "1f1b", "interleaved"):
            run(f"32 bits {name}", build(name, Shape(4, 8, 2 if name == "interleaved" else 1)), steps=2, check=True)
        for name, (of, shape) in MODELS.items():
            model = f"user_models:{name.split()[0]}"
            run(name, build(of, shape), steps=2, check=True, double=True, model=model, optimizer="adamw")
        run("curve", build("1f1b", Shape(4, 4)), steps=CURVE_STEPS, optimizer="adamw", weight_decay=0.1)
        for name, (of, shape, rates) in PACED.items():
            schedule = build(of, shape)
            costs = costs_of(rates, schedule)
            run(
                name,
                schedule,
                steps=3,
                pace=np.array(costs.durations),
                hops=link_table(hops(rates.transfer), schedule).astype(np.int64),
                predicted_ns=simulate(lower(schedule), costs).makespan,
            )
    return {name: {**asdict(made), "told": len(steps[name])} for name, made in out.items() if made}


if __name__ == "__main__":
    import many_runs  # processes find what they run by its module's name, which this script has not

    from debubble.runner.launch import launch

    print(json.dumps(launch(many_runs.entry, PROCESSES, sys.argv[1])))
