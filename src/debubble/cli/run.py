"""``run``: train a real model through a schedule on torch.distributed.pipelining, and measure every op."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError, Refusal
from ..core.units import nanoseconds
from ..verbs.needs import needed
from ..verbs.schedule_argument import Sizes, schedule_of
from .console import Look, say, warn
from .options import (
    COUNT,
    DURATION,
    Memory,
    Parsed,
    Verb,
    json_option,
    look_options,
    memory_options,
    size_options,
    together,
)
from .pictures import picture_options
from .report import MILLISECOND, emit
from .run_profile import profile, profile_options, refuse_layer

if TYPE_CHECKING:
    from ..core.schedule import Schedule
    from ..diagnosis.diagnose import Diagnosis
    from ..diagnosis.simulated import Show
    from ..diagnosis.windows import Summary
    from ..runner.task import Task
    from ..runner.worker import Outcome, Step

GOOD_GRADIENT = 1e-5  # in 32 bits a right pipeline stays below 1e-6, and a wrong one is far above
_PACES = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}


def _pace(text: str, name: str) -> dict[str, float]:
    """Read ``F=20ms,B=40ms`` as rates."""
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    kinds = [kind.strip() for kind, _ in pairs]
    if set(kinds) - set(_PACES) or len(set(kinds)) < len(kinds) or "F" not in kinds:
        rule = "it gives F, and if wanted B, I and W, each once"
        raise InputError(Fault(f"{name} = {text}", rule, "write it as in F=20ms,B=40ms"))
    return {_PACES[kind.strip()]: nanoseconds(value, f"{name} {kind.strip()}") for kind, value in pairs}


PACE = Parsed("F=D,B=D", _pace)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for beside schedule and speed."""

    out: str
    data: int
    batch: int | None
    steps: int
    model: str
    text: str
    check: bool
    double: bool
    device: str
    timeout: float


@click.command(cls=Verb, short_help="Train through a schedule and record it.")
@click.option("--schedule", metavar="S", help="Name as in `show --list`, or a torch CSV file.")
@size_options
@memory_options
@click.option("--data", type=COUNT, default=1, help="Data-parallel replicas, each with a pipeline of its own.")
@click.option("--batch", type=COUNT, help="Samples of all replicas in a step.  [default: one a micro-batch]")
@click.option("--steps", type=COUNT, default=5, show_default=True, help="Steps to measure, after one that is not.")
@click.option("--model", default="", metavar="PKG.MODULE:FUNCTION", help="Your own model, cut into stages.")
@click.option("--text", default="", metavar="FILE", help="What the built-in model learns.  [default: Python's help]")
@click.option("--pace", type=PACE, help="Stretch ops to these durations, per micro-batch and rank.")
@click.option("--hop", type=DURATION, default=0.0, help="Delay each arrival from another rank.")
@click.option("--check", is_flag=True, help="Compare loss and every gradient with one process without a pipeline.")
@click.option("--double", is_flag=True, help="Train in 64 bits.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where to run.")
@click.option("--timeout", type=DURATION, default=300e9, help="How long a rank waits for another.  [default: 5min]")
@click.option("--out", metavar="DIR", help="Folder of the recording; an earlier one there is replaced.")
@profile_options
@picture_options
@look_options
@json_option
def run(
    schedule: str,
    sizes: Sizes,
    memory: Memory,
    pace: dict[str, float] | None,
    hop: float,
    layer: dict[str, Any],
    pictures: dict[str, Path],
    look: Look,
    as_json: bool,
    **wish: Any,
) -> None:
    """Train a small transformer, or your own model, through a schedule, and record when every op ran.

    Starts one process a rank on this host, or joins those that torchrun started. The recording goes to `diagnose` and
    `why`. With --pace, 4 or 8 ranks on a laptop show the timeline that as many GPUs would.

    \b
    debubble run --schedule 1f1b -p 4 -m 8 --pace F=20ms,B=40ms --out four
    debubble run --schedule interleaved -p 4 -m 8 -v 2 --data 2 --check --out eight
    debubble run --profile --model llama3-8b --gpu h100 --tensor 2 --sequence 8192 --out h100.toml
    """  # noqa: D301 - click wants the character, not two
    if find_spec("torch") is None:
        raise InputError(Fault("torch", "run needs it and it is not installed", "pip install 'debubble[torch]'"))
    if layer["profile"]:
        profile(layer, wish, as_json=as_json)
        return
    refuse_layer(layer)
    needed({"schedule": schedule, "out": wish["out"]}, "schedule", "out")
    from ..core.costs import Rates
    from ..diagnosis.simulated import simulated
    from ..readers.recording import is_recording

    made: list[Any] = together(
        lambda: schedule_of(schedule, sizes, cap=memory.cap, release=memory.release),
        lambda: Rates(**(pace or {}), transfer=hop),  # type: ignore[arg-type]
        lambda: _can_write(wish["out"]),
    )
    order, rates, _ = made
    if pace:  # what is searched is searched at the speed at which it runs
        order = schedule_of(schedule, sizes, rates, cap=memory.cap, release=memory.release)
    paced = simulated(order, rates) if pace else None
    task = _on_device(_task(order, paced, round(hop), Wish(**wish)), wish["device"])
    if is_recording(task.out) and not _joins():
        warn(f"replaces the recording in {task.out}")
    outcome = _execute(task, partial(tell, expected=_expected(paced or simulated(order, Rates()))))
    if outcome is not None:  # else another process speaks
        _report(task, outcome, look, as_json=as_json, pictures=pictures)


def _can_write(out: str) -> None:
    """Try whether a folder can be written to, or made, and leave nothing behind.

    Raises:
        InputError: it cannot.
    """
    there = next(path for path in (Path(out), *Path(out).parents) if path.exists())
    try:
        TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        rule = f"no recording can be written there: {error.strerror}"
        raise InputError(Fault(f"out = {out}", rule, "give a folder that can be written")) from error


def _task(schedule: Schedule, paced: Show | None, hop_ns: int, wish: Wish) -> Task:
    """The task, with each op's duration and the makespan that simulation predicts for it."""
    from ..core.costs import costs_of
    from ..runner.task import Task

    return Task(
        schedule=schedule,
        batch=wish.batch or schedule.microbatches * wish.data,
        out=wish.out,
        replicas=wish.data,
        steps=wish.steps,
        model=wish.model,
        text=wish.text,
        pace=costs_of(paced.rates, schedule).durations if paced else None,
        hop_ns=hop_ns,
        check=wish.check,
        double=wish.double,
        timeout_s=wish.timeout / 1e9,
        predicted_ns=paced.timeline.makespan if paced else None,
    )


def _joins() -> bool:
    """Whether torchrun (or another launcher) has started this process among others."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _on_device(task: Task, wanted: str) -> Task:
    """The task on the device that it will run on; imports torch, when all that needs no torch is known to be right."""
    from ..runner.launch import warm_up

    if not _joins():
        warm_up()
    from ..runner.preflight import device_for

    stretched = task.pace is not None or task.hop_ns > 0
    return replace(task, device=device_for(wanted, task.processes, stretched=stretched))


def _execute(task: Task, tell: Callable[[Step], None]) -> Outcome | None:
    if _joins():
        from ..runner.worker import work

        return work(task, tell)
    from ..runner.launch import start

    outcome: Outcome = start(task, tell)
    return outcome


def _expected(shown: Show) -> str:
    """The idle share to be expected, and how it is known."""
    return f"{100 * shown.account.idle_share:.0f} % {shown.evidence}"


def tell(step: Step, expected: str) -> None:
    """One line a step, on stderr."""
    window, idle = step.makespan_ns / MILLISECOND, 100 * step.idle_share
    warn(f"step {step.number} loss {step.loss:.2f} {window:.0f} ms idle share {idle:.0f} % measured ({expected})")


def _report(task: Task, outcome: Outcome, look: Look, *, as_json: bool, pictures: dict[str, Path]) -> None:
    """Print and draw what was measured.

    Raises:
        Refusal: gradients were checked, and are wrong.
    """
    from ..diagnosis.diagnose import diagnose
    from ..readers.recording import read_recording
    from .diagnose import draw

    found = diagnose(read_recording(task.out))
    document = _document(task, outcome, found)
    if as_json:
        emit(document)
    else:
        say(_text(document, found.summary, look))
    if pictures:
        draw(found, document, Path(task.out), pictures)
    error = outcome.gradient_error
    if error is not None and error > GOOD_GRADIENT:
        raise Refusal(f"gradient_error = {error:.1e} is above {GOOD_GRADIENT:g}: do not trust it")


def _document(task: Task, outcome: Outcome, found: Diagnosis) -> dict[str, Any]:
    """What ``--json`` prints: all that ``diagnose`` does, and what only the run knows."""
    from .diagnose_document import document

    predicted = task.predicted_ns if task.predicted_ns is not None else _afterwards(found.summary, task.hop_ns)
    return document(found) | {
        "predicted_ms": predicted / MILLISECOND,
        "measured_ms": found.summary.makespan_ns / MILLISECOND,
        "loss": outcome.loss,
        "loss_error": outcome.loss_error,
        "gradient_error": outcome.gradient_error,
        "recording": task.out,
        "device": task.device,
    }


def _afterwards(summary: Summary, hop_ns: int) -> int:
    """The makespan that the order would have with the mean durations that were measured, and nothing in between."""
    import numpy as np

    from ..core.costs import Costs
    from ..core.simulate import simulate
    from ..diagnosis.measured_costs import fitted, stage_means

    program = summary.window.timeline.program
    means = stage_means(fitted(summary.window.timeline), program.schedule)
    return simulate(program, Costs(means.durations, np.full_like(means.transfers, hop_ns))).makespan


def _text(document: dict[str, Any], summary: Summary, look: Look) -> str:
    """The picture of the median step, and beside it what was predicted."""
    from ..drawing.tables import duration
    from ..drawing.terminal import timeline_text

    how = "paced, measured" if document["paced"] else "measured"
    lines = [
        timeline_text(summary.window.timeline, look.width, utf8=look.utf8, colour=look.colour),
        f" makespan      {duration(summary.makespan_ns)} {how}, "
        f"{duration(document['predicted_ms'] * MILLISECOND)} simulated",
        f" idle share    {100 * summary.idle_share:.1f} % {how}, bubble ratio {100 * summary.bubble_ratio:.1f} %",
        f" loss          {document['loss']:.4f}",
    ]
    if document["loss_error"] is not None:
        gradient = document["gradient_error"]
        found = "" if gradient is None else f"gradient_error {gradient:.1e}, "
        lines.append(f" check         {found}loss {document['loss_error']:.1e} off one process without a pipeline")
    return "\n".join([*lines, f" recording     {document['recording']} (debubble diagnose {document['recording']})"])
