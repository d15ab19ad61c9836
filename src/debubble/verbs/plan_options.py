"""The options of ``plan`` as they were read: lists of values to try, what is fixed, and the calibration there is.

A calibration is made of rows as CSV, logs of Megatron-LM, recordings and traces, or saved factors.
Rows and logs say with which layout they ran. A trace does not: its ops tell pipeline, chunks, micro-batches and
schedule, and the rest is from the configuration that launched it, or from options.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from ..config.config import RECIPE, SWITCHES, Config, Layout, Value
from ..config.derive import settled
from ..config.fields import KINDS, value_of
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..core.schedule import Schedule
from ..core.units import Hops
from ..diagnosis.causes import Summary, stage_costs, summarise
from ..diagnosis.order import recognise
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import Calibration
from ..frameworks.catalog import FRAMEWORKS, configurations_of
from ..frameworks.framework import Framework
from ..frameworks.megatron import MEGATRON
from ..planning.calibrate import StageRun, calibrate, calibrate_stages, read_calibration
from ..planning.idle import SCHEDULES
from ..planning.runs import Planned, Run, read_runs
from ..readers.files import first_bytes
from ..readers.source import Ask, is_log, read, recognised
from ..readers.steplog import is_log as is_step_log
from ..readers.steplog import read_steps
from .arguments import counts, rate, tell, together
from .sources import HEAD, config_of_log, jobs_of_file

Tried = tuple[int, ...] | None
SEQUENCE = 4096  # tokens in a sample if nobody says: what Llama 2 and most recipes since were trained with


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What was asked of ``plan``; None is what was not said (see ``verbs.plan.plan``)."""

    job: str | None = None
    gpus: Tried = None
    model: str | None = None
    gpu: str | None = None
    global_batch: Tried = None
    sequence: int | None = None
    nodes: int | None = None
    nic: float | None = None
    price: float | None = None
    tensor: Tried = None
    pipeline: Tried = None
    data: int | None = None
    context: Tried = None
    expert: Tried = None
    expert_tensor: Tried = None
    chunks: Tried = None
    micro_batch: Tried = None
    microbatches: Tried = None
    schedule: str | None = None
    transfer: str | float | Hops | tuple[str | float, ...] | None = None
    engine: str | None = None
    precision: str | None = None
    zero: int | None = None
    recipe: Mapping[str, Value] = field(default_factory=dict)  # by the names of ``RECIPE``
    calibrate: tuple[str, ...] = ()
    save_calibration: str | None = None
    launched: str | None = None
    top: int | None = None
    framework: str | None = None
    emit: str | None = None
    rampup: Tried = None
    lengths: str | None = None
    packing: str | None = None

    @property
    def base(self) -> Layout:
        """What neither a search nor a file says of a layout."""
        # Sharing out the optimizer costs next to nothing and is what most launches do.
        zero = 1 if self.zero is None else self.zero
        said = {"sequence": self.sequence or SEQUENCE, "precision": self.precision or "bf16", **self.recipe}
        return Layout(zero=zero, **said)  # type: ignore[arg-type]  # fields of both, by one name

    def needs(self, *names: str) -> None:
        """Refuse if one of these is missing.

        Raises:
            InputError: all that are missing.
        """
        faults = [Fault(option_of(name), "it is required", "see --help") for name in names if not self.gives(name)]
        if faults:
            raise InputError(*faults)

    def gives(self, name: str) -> bool:
        """Whether an option was given; a list that is empty is not."""
        return getattr(self, name) not in (None, (), {})

    def refuses(self, *names: str, why: str) -> None:
        """Refuse options that would be passed over.

        Raises:
            InputError: all that were given.
        """
        faults = [Fault(option_of(name), why, "leave it out") for name in names if self.gives(name)]
        if faults:
            raise InputError(*faults)

    def with_job(self) -> PlanOptions:
        """With what a job file says where options are silent; of a series, the number of devices of each run.

        Raises:
            InputError: the file cannot be read, or its runs have different batches.
        """
        if self.job is None:
            return self
        jobs = [_on_devices(job, self.gpus) for job in jobs_of_file(Path(self.job))]
        known: dict[str, Tried | int | str] = {}
        # Without a device there is nothing to be said of a model: then the batch alone is asked about.
        if self.gpu and not self.model and (named := _model(jobs[0])):
            known["model"] = named
        if not self.gives("global_batch") and not self.gives("microbatches"):
            batches = _batches(jobs)
            if len(batches) > 1:
                rule = f"its runs have the global batches {', '.join(map(str, batches))}"
                raise InputError(Fault(self.job, rule, "give one as in --global-batch 64"))
            if batches:
                known["global_batch"] = batches
        gpus = tuple(dict.fromkeys(job.gpus for job in jobs if job.gpus))
        if gpus and not self.gives("gpus"):
            known["gpus"] = gpus
        if jobs[0].sequence is not None and not self.gives("sequence"):
            known["sequence"] = jobs[0].sequence
        # With a model the degrees are what is searched for; the micro-batch stays, as it sets what a kernel is fed.
        kept = ["micro_batch"] if self.model or "model" in known else ["micro_batch", "tensor", "context"]
        for name in kept:
            value = getattr(jobs[0], name)
            if value is not None and not self.gives(name):
                known[name] = (value,)
        # Of a series the first run speaks for all: how layers run is not what a series is made to compare.
        recipe = _recipe(jobs[0])
        precision = recipe.pop("precision", None)
        if precision is not None and not self.gives("precision"):
            known["precision"] = str(precision)
        return replace(self, **known, recipe={**recipe, **self.recipe})  # type: ignore[arg-type]  # options by name

    def command(self, emit: str | None, schedules: tuple[str, ...]) -> str:
        """The same question as a command line, printing what to paste.

        Args:
            emit: name of the framework; None for none.
            schedules: those that were asked for and that it runs.
        """
        # The factors are not written a second time by a command that is only to print.
        asked = replace(self, schedule=",".join(schedules) or None, emit=emit, save_calibration=None)
        words = ["debubble", "plan"]
        for option in fields(asked):
            if asked.gives(option.name):
                words += _words(option.name, getattr(asked, option.name))
        return shlex.join(words)


LISTS = (
    *("gpus", "global_batch", "tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "micro_batch"),
    *("microbatches", "rampup"),
)
PATHS = ("job", "model", "gpu", "save_calibration", "launched")  # and ``lengths``, which may be a number


def read_options(given: Mapping[str, Any]) -> PlanOptions:
    """The options as their types: lists of counts, paths as text, bytes as numbers.

    Args:
        given: the arguments of ``plan`` by name.

    Raises:
        InputError: what cannot be read, all at once.
    """
    made = {name: value for name, value in given.items() if value is not None}
    lists = [name for name in LISTS if name in made]
    read = together(*(partial(counts, made[name], name) for name in lists))
    made.update(zip(lists, read, strict=True))
    for name in PATHS:
        if name in made:
            made[name] = fspath(made[name])
    if not isinstance(made.get("transfer", ""), str | float | int | Hops):
        made["transfer"] = tuple(made["transfer"])
    if "lengths" in made:
        made["lengths"] = str(made["lengths"])
    if "nic" in made:
        made["nic"] = rate(made["nic"], "nic")
    if not isinstance(made.get("schedule", ""), str):
        made["schedule"] = ",".join(made["schedule"])
    measured = made["calibrate"]
    if isinstance(measured, str | PathLike):
        measured = [measured]
    made["calibrate"] = tuple(map(fspath, measured))
    recipe = {}
    for name in RECIPE:
        if name in made and name != "precision":
            recipe[name] = _part(name, made.pop(name))
    return PlanOptions(**made, recipe=recipe)


def _part(name: str, value: Any) -> Value:
    """A part of a recipe, held against what its field takes."""
    words = KINDS[name].form == "words" and isinstance(value, str)
    return value_of(name, value.split(",") if words else value, name)


def _model(job: Config) -> str:
    """The model that a configuration names in its framework's words; empty if it names none."""
    framework = FRAMEWORKS.get(job.framework or "")
    if framework is None or framework.model is None:
        return ""
    return framework.model(job)


def _recipe(job: Config) -> dict[str, Value]:
    """What somebody said of how a layer runs; what is recomputed is the search's own choice, as in other jobs.

    A framework's own word, as bf16-mixed, says nothing here.
    """
    known = job.known()
    recipe = {}
    for name in job.said(*RECIPE):
        if name == "recompute" or name not in known:
            continue
        value, legal = known[name], KINDS[name].words
        words = value if isinstance(value, tuple) else (value,)
        if not legal or all(word in legal for word in words):
            recipe[name] = value
    return recipe


def option_of(name: str) -> str:
    """The option that a keyword is on the command line."""
    return f"--{name.replace('_', '-')}"


def _words(name: str, value: object) -> Iterator[str]:
    """An option as words of a command line."""
    if name == "job":
        yield str(value)
    elif isinstance(value, Mapping):
        for part, said in value.items():
            yield from _of_recipe(part, said)
    elif name == "calibrate" and isinstance(value, tuple):
        for path in value:
            yield from ("--calibrate", path)
    elif isinstance(value, tuple):
        yield from (option_of(name), ",".join(map(str, value)))
    elif isinstance(value, float):
        yield from (option_of(name), repr(value).removesuffix(".0"))  # sizes are whole bytes
    else:
        yield from (option_of(name), str(value))


def _of_recipe(name: str, value: Value) -> Iterator[str]:
    """A part of a recipe as words of a command line."""
    if name in SWITCHES:
        yield option_of(name) if value else f"--no-{option_of(name)[2:]}"
    else:
        yield from _words(name, value)


def _on_devices(job: Config, gpus: Tried) -> Config:
    """A job on the devices that ``--gpus`` says, if its file leaves them to the launcher, as torchtitan's TOML does.

    Its replicas, and with them the global batch of so many local batches, follow from that.
    """
    if job.gpus is not None or gpus is None or len(gpus) != 1:
        return job
    with suppress(InputError):  # these devices do not hold its degrees: then they say nothing of its batch
        return settled(job.changed(gpus=gpus[0]))
    return job


def _batches(jobs: Sequence[Config]) -> tuple[int, ...]:
    """Samples in a step of each job, once each; a micro-batch counts as one sample if the file does not say."""
    batches = set()
    for job in jobs:
        if job.global_batch is not None:
            batches.add(job.global_batch)
        elif job.data and job.microbatches:
            batches.add(job.data * job.microbatches * (job.micro_batch or 1))
    return tuple(sorted(batches))


WARM_UP = 1  # first steps that are left out: kernels are compiled and caches filled in them
FAR = 2.0  # times the estimate; beyond it a run is hardly of this model, layout and device
DEGREES = ("tensor", "context", "expert", "expert_tensor", "micro_batch")  # that ops alone do not tell


def calibration_of(asked: PlanOptions, model: Model, cluster: Cluster, base: Layout) -> Calibration:
    """One calibration from all files together.

    Args:
        asked: ``calibrate``, the files; ``launched`` and the degrees that traces do not tell.
        model: of which the files are.
        cluster: on which they ran.
        base: what neither files nor options say of a layout.

    Raises:
        InputError: what cannot be read, or saved factors beside other files.
    """
    paths: tuple[str, ...] = asked.calibrate
    saved = [path for path in paths if path.lower().endswith(".toml")]
    # They are a fit already: mixing them with rows would count those rows twice.
    if saved and len(paths) > 1:
        raise InputError(Fault(saved[0], "factors that were saved stand alone", "give it alone, or rows and logs"))
    if saved:
        return read_calibration(Path(saved[0]))

    # Each kind of evidence tells other factors: stages tell kernels and hops, whole steps the rest.
    traces: list[StageRun] = []
    rows: list[Run] = []
    for path in map(Path, paths):
        if _is_trace(path):
            traces.append(_of_trace(path, asked, model, cluster, base))
        elif _is_log(path):
            rows.append(_of_log(path, model, cluster, base))
        else:
            rows += _of_table(path, model, cluster, base)
    source = ", ".join(paths)
    if not traces:
        if asked.launched:
            raise InputError(Fault("--launched", "it says how recordings and traces were launched", "leave it out"))
        return calibrate(rows, source)

    calibration = calibrate_stages(traces, rows, source)
    kernels = float(calibration.kernels.value)
    # Said and not refused: a throttled device may be that slow.
    if not 1 / FAR < kernels < FAR:
        tell(f"{source}: kernels take {kernels:.2g} times the estimate: were they of this model, layout and device?")
    return calibration


def _is_trace(path: Path) -> bool:
    """Whether it holds ops with their times: a folder, or a file of any format that ``diagnose`` reads."""
    return path.is_dir() or (path.is_file() and recognised(path) is not None and not is_log(path))


def _is_log(path: Path) -> bool:
    return path.suffix.lower() != ".csv" and is_step_log(first_bytes(path, HEAD))


def _of_table(path: Path, model: Model, cluster: Cluster, base: Layout) -> tuple[Run, ...]:
    """The runs of a CSV; those that cannot be used are told."""
    table = read_runs(path, Planned(model, cluster, base))
    if not table.runs:
        raise InputError(*(Fault(f"{path.name}: {rows} rows", why, "correct them") for why, rows in table.left_out))
    for why, rows in table.left_out:
        tell(f"{path.name}: {rows} rows left out: {why}")
    return table.runs


def _of_log(path: Path, model: Model, cluster: Cluster, base: Layout) -> Run:
    """The layout from the arguments that a log begins with, the step from the median of its steps."""
    steps, head = read_steps(path).seconds, config_of_log(path)
    missing = [MEGATRON.key(name) for name in ("pipeline", "tensor", "micro_batch") if getattr(head, name) is None]
    # Without a batch the micro-batches of a step are not known, and so neither is its work.
    if not missing and not head.flush:
        missing.append(MEGATRON.key("global_batch"))
    if missing:
        rule = f"its head does not print {', '.join(missing)}"
        raise InputError(Fault(str(path), rule, "give a log from its first line on, or rows as CSV"))
    _refuse_other_model(MEGATRON, head, model, str(path))
    layout = MEGATRON.layout(head, base)
    if len(steps) > 2 * WARM_UP:  # of two steps the first is half of the evidence
        steps = steps[WARM_UP:]
    return Run(model, replace(cluster, gpus=layout.gpus), layout, (), str(path), seconds=float(np.median(steps)))


def _of_trace(path: Path, asked: PlanOptions, model: Model, cluster: Cluster, base: Layout) -> StageRun:
    """The stages of a run as ``diagnose`` measures them, and the layout with which it was launched."""
    run = read([path], Ask())
    if run.paced:
        # Their durations were given: they say nothing of a model or a device.
        rule = "its ops were stretched to given durations"
        raise InputError(Fault(str(path), rule, "give a run without --pace"))
    summary = summarise(run)
    layout = _layout_of_run(run, summary, asked, model, base)
    return StageRun(
        model,
        replace(cluster, gpus=layout.gpus),
        layout,
        stage_costs(summary),
        outside=(summary.outside_ns or 0.0) / 1e9,
        overlapped=summary.window.timeline.program.schedule.joined is not None,
        source=str(path),
    )


def _layout_of_run(run: Observation, summary: Summary, asked: PlanOptions, model: Model, base: Layout) -> Layout:
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
        layout = _layout_of_configuration(Path(asked.launched), model, base, summary)
    else:
        layout = _layout_of_options(run, summary, asked, base)
        # Every factor depends on what was assumed, so it is said.
        assumed = f"tensor {layout.tensor}, context {layout.context}, micro-batch {layout.micro_batch}"
        tell(
            f"{run.source}: taken to have run with {assumed}, sequence {layout.sequence}, nothing recomputed and an "
            "even split; if it did not, give --launched with its configuration"
        )
    schedule = summary.window.timeline.program.schedule
    _refuse_other_pipeline(schedule, layout, asked.launched)
    chunks = schedule.stages // schedule.ranks
    return replace(layout, microbatches=schedule.microbatches, chunks=chunks, schedule=_plannable(schedule, chunks))


def _layout_of_configuration(path: Path, model: Model, base: Layout, summary: Summary) -> Layout:
    found = configurations_of(path)
    if len(found) > 1:
        names = ", ".join(config.name for config in found)
        raise InputError(Fault(str(path), f"it holds {len(found)} configurations: {names}", f"give {found[0].name}"))
    framework = FRAMEWORKS[found[0].framework or ""]
    _refuse_other_model(framework, found[0], model, str(path))
    # What was measured is known, whatever the configuration leaves to be worked out.
    measured = framework.filled(found[0]).filled(data=summary.replicas)
    schedule = summary.window.timeline.program.schedule
    return framework.layout(measured.changed(microbatches=schedule.microbatches), base)


def _layout_of_options(run: Observation, summary: Summary, asked: PlanOptions, base: Layout) -> Layout:
    schedule = summary.window.timeline.program.schedule
    given: dict[str, int] = {}
    for name in DEGREES:
        values: tuple[int, ...] = getattr(asked, name) or ()
        if len(values) == 1:  # several are values to plan with: they say nothing of what ran
            given[name] = values[0]
    # Devices that pipeline and replicas do not account for share a stage; without options they share its layers.
    members = (run.gpus or 1) // (schedule.ranks * summary.replicas)
    given.setdefault("tensor", max(members // given.get("context", 1), 1))
    # A recording of our own knows its samples; a profiler's trace does not.
    if "micro_batch" not in given and run.samples:
        given["micro_batch"] = max(run.samples // (summary.replicas * schedule.microbatches), 1)
    if "micro_batch" not in given:
        rule = "it does not tell how many samples a micro-batch has"
        raise InputError(Fault(run.source, rule, "give --micro-batch, or --launched with its configuration"))
    sequence = base.sequence
    if run.tokens and run.samples:
        sequence = run.tokens // run.samples
    known = {"pipeline": schedule.ranks, "data": summary.replicas, "sequence": sequence} | given
    return replace(base, **known)  # type: ignore[arg-type]  # degrees by name


def _refuse_other_model(framework: Framework, config: Config, model: Model, where: str) -> None:
    """Refuse what ran with another number of layers: factors of one model say little of another.

    Raises:
        InputError: the configuration says a number that is not the model's.
    """
    if config.layers not in (None, model.layers):
        value = f"{where}: {framework.key('layers')} = {config.layers}"
        raise InputError(Fault(value, f"{model.name} has {model.layers} layers", "give --model as it was launched"))


def _refuse_other_pipeline(schedule: Schedule, layout: Layout, launched: str | None) -> None:
    """Refuse a configuration that did not launch this run.

    Raises:
        InputError: it has other ranks or stages.
    """
    remedy = "give the configuration with which that run was launched"
    stages = layout.pipeline * layout.chunks
    if launched and (layout.pipeline, stages) != (schedule.ranks, schedule.stages):
        rule = f"it has {layout.pipeline} ranks and {stages} stages, the run {schedule.ranks} and {schedule.stages}"
        raise InputError(Fault(launched, rule, remedy))
    if layout.layers and len(layout.layers) != schedule.stages:
        rule = f"it splits its layers over {len(layout.layers)} stages, the run has {schedule.stages}"
        raise InputError(Fault(launched or "layers", rule, remedy))


def _plannable(schedule: Schedule, chunks: int) -> str:
    """The schedule as ``plan`` calls it, or the nearest plain one with as many stages."""
    name = recognise(schedule).name
    if name in SCHEDULES:
        return name
    if chunks == 1:
        return "1f1b"
    # Interleaved 1F1B takes whole groups of micro-batches only (Megatron-LM); looped BFS takes any number.
    return "interleaved" if schedule.microbatches % schedule.ranks == 0 else "looped-bfs"
