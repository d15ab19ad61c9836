"""The options of ``plan`` as they were read: lists of values to try, and what is fixed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..config.config import RECIPE, SWITCHES, Config, Value
from ..config.derive import settled
from ..config.fields import KINDS, value_of
from ..config.layout import Layout
from ..core.errors import Fault, InputError
from ..core.units import Hops
from ..frameworks.catalog import FRAMEWORKS
from .arguments import counts, rate, together
from .sources import jobs_of_file

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
    transfer: str | float | Hops | None = None
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
