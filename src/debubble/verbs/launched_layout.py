"""The layout of a measured run: from the configuration that launched it, or from options and the run itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config.config import Config
from ..config.layout import SCHEDULES, Layout
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..core.schedule import Schedule
from ..diagnosis.order import recognise
from ..diagnosis.windows import Summary
from ..estimate.model import Model
from ..frameworks.catalog import FRAMEWORKS, configurations_of
from ..frameworks.framework import Framework
from .plan_options import PlanOptions
from .telling import tell

_DEGREES = ("tensor", "context", "expert", "expert_tensor", "micro_batch")


def layout_of_run(run: Observation, summary: Summary, asked: PlanOptions, model: Model, base: Layout) -> Layout:
    """Pipeline, chunks, micro-batches and schedule as they were measured; the rest as it was launched.

    Args:
        run: what was measured.
        summary: of its windows.
        asked: ``launched``, and if that is not given, degrees of which each has one value.
        model: that is planned.
        base: what neither says.

    Raises:
        InputError: the configuration is of another pipeline or model, or the micro-batch is not known.
    """
    if asked.launched:
        layout = _of_configuration(Path(asked.launched), model, base, summary)
    else:
        layout = _of_options(run, summary, asked, base)
        _tell(run.source, layout)
    schedule = summary.window.timeline.program.schedule
    _refuse_others(summary, layout, asked.launched)
    chunks = schedule.stages // schedule.ranks
    return replace(layout, microbatches=schedule.microbatches, chunks=chunks, schedule=_name(schedule, chunks))


def _of_configuration(path: Path, model: Model, base: Layout, summary: Summary) -> Layout:
    found = configurations_of(path)
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise InputError(Fault(str(path), f"it holds {len(found)} configurations: {names}", f"give {found[0].name}"))
    framework = FRAMEWORKS[found[0].framework or ""]
    refuse_other_model(framework, found[0], model, str(path))
    # What was measured is known, whatever the configuration leaves to be worked out.
    measured = framework.filled(found[0]).filled(data=summary.replicas)
    schedule = summary.window.timeline.program.schedule
    return framework.layout(measured.changed(microbatches=schedule.microbatches), base)


def refuse_other_model(framework: Framework, config: Config, model: Model, where: str) -> None:
    """Refuse what ran with another number of layers.

    Raises:
        InputError: the configuration says a number that is not the model's.
    """
    if config.layers not in (None, model.layers):
        value = f"{where}: {framework.key('layers')} = {config.layers}"
        raise InputError(Fault(value, f"{model.name} has {model.layers} layers", "give --model as it was launched"))


def _of_options(run: Observation, summary: Summary, asked: PlanOptions, base: Layout) -> Layout:
    schedule = summary.window.timeline.program.schedule
    given: dict[str, int] = {}
    for name in _DEGREES:
        values: tuple[int, ...] = getattr(asked, name) or ()
        if len(values) == 1:
            given[name] = values[0]
    members = (run.gpus or 1) // (schedule.ranks * summary.replicas)
    given.setdefault("tensor", max(members // given.get("context", 1), 1))
    if "micro_batch" not in given and run.samples:
        given["micro_batch"] = max(run.samples // (summary.replicas * schedule.microbatches), 1)
    if "micro_batch" not in given:
        rule = "it does not tell how many samples a micro-batch has"
        raise InputError(Fault(run.source, rule, "give --micro-batch, or --launched with its configuration"))
    sequence = run.tokens // run.samples if run.tokens and run.samples else base.sequence
    known = {"pipeline": schedule.ranks, "data": summary.replicas, "sequence": sequence} | given
    return replace(base, **known)  # type: ignore[arg-type]  # degrees by name


def _tell(source: str, layout: Layout) -> None:
    """What was assumed, since every factor depends on it."""
    assumed = f"tensor {layout.tensor}, context {layout.context}, micro-batch {layout.micro_batch}"
    tell(
        f"{source}: taken to have run with {assumed}, sequence {layout.sequence}, nothing recomputed and an even "
        "split; if it did not, give --launched with its configuration"
    )


def _refuse_others(summary: Summary, layout: Layout, named: str | None) -> None:
    schedule = summary.window.timeline.program.schedule
    stages = layout.pipeline * layout.chunks
    if named and (layout.pipeline, stages) != (schedule.ranks, schedule.stages):
        rule = f"it has {layout.pipeline} ranks and {stages} stages, the run {schedule.ranks} and {schedule.stages}"
        raise InputError(Fault(named, rule, "give the configuration with which that run was launched"))
    if layout.layers and len(layout.layers) != schedule.stages:
        rule = f"it splits its layers over {len(layout.layers)} stages, the run has {schedule.stages}"
        raise InputError(Fault(named or "layers", rule, "give the configuration with which that run was launched"))


def _name(schedule: Schedule, chunks: int) -> str:
    """The schedule as ``plan`` calls it, or the nearest plain one with as many stages."""
    name = recognise(schedule).name
    if name in SCHEDULES:
        return name
    whole = schedule.microbatches % schedule.ranks == 0
    return "1f1b" if chunks == 1 else "interleaved" if whole else "looped-bfs"
