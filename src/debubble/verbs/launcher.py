"""The framework that will run what is advised: by the name that ``--framework`` has for it, or as the evidence says."""

from __future__ import annotations

from collections.abc import Callable

from ..config.config import Config
from ..core.errors import InputError
from ..diagnosis.replay import Launcher, Replay
from ..frameworks.catalog import framework_of
from ..frameworks.framework import Framework


def launcher_of(framework: str | None, config: Config | None = None) -> Launcher | None:
    """What a framework runs; None if nobody said which one it is.

    Args:
        framework: as ``--framework`` names it; None for what the run's own configuration says.
        config: of the run, if there is one: what it says is asked of the framework's rules together with each change.

    Raises:
        InputError: no framework has this name.
    """
    name = framework
    if name is None and config is not None:
        name = config.framework
    if name is None:
        return None
    runs = framework_of(name)
    own = None
    if config is not None and config.framework == runs.name:
        own = config  # keys of another framework would be asked of rules that do not know them
    return Launcher(runs.title, frozenset(runs.schedules), _refusal_by(runs, own))


def _refusal_by(framework: Framework, config: Config | None) -> Callable[[Replay, Replay], str]:
    """Why a framework refuses a changed run, by a rule that the run as it is does not break; empty if it takes it."""

    def refusal(run: Replay, changed: Replay) -> str:
        base = config or _sizes(run)
        try:
            # A law that the run breaks already is none of the change's: it ran all the same.
            before = framework.broken(base).laws
            asked = framework.with_schedule(_changed(base, run, changed), changed.name or "1f1b")
            breaches = [each for each in framework.broken(asked).faults if each.law not in before]
        except InputError as error:
            return f"{framework.title} cannot be told: {error.faults[0].rule}"
        if not breaches:
            return ""
        return f"{framework.title} refuses it: {framework.worded(breaches[0].rule)}"

    return refusal


def _sizes(run: Replay) -> Config:
    """A measured run as a configuration: what its ops tell."""
    return Config(
        name="run",
        pipeline=run.schedule.ranks,
        data=run.data,
        chunks=run.chunks,
        microbatches=run.schedule.microbatches,
        micro_batch=run.micro_batch,
        schedule=run.name,
    )


def _changed(config: Config, run: Replay, changed: Replay) -> Config:
    """A configuration with the sizes that a change gives it; what follows from them is worked out anew."""
    new: dict[str, int | None] = {}
    # None is absent: a split over other ranks is worked out anew, not kept.
    if changed.schedule.ranks != run.schedule.ranks:
        new |= {"pipeline": changed.schedule.ranks, "data": changed.data, "split": None, "first": None, "last": None}
    if changed.chunks != run.chunks:
        new |= {"chunks": changed.chunks, "chunk_layers": None, "split": None}
    if changed.micro_batch != run.micro_batch:
        new |= {"micro_batch": changed.micro_batch}
    if changed.schedule.microbatches != run.schedule.microbatches:
        new |= {"microbatches": changed.schedule.microbatches}
    known = config.known()
    if "local_batch" in known:  # torchtitan's and DeepSpeed's word for the micro-batches of one replica together
        grown = changed.schedule.microbatches * (changed.micro_batch or 1)
        grown_from = run.schedule.microbatches * (run.micro_batch or 1)
        new |= {"local_batch": round(config.number("local_batch") * grown / grown_from)}
    if "global_batch" in known and changed.batch != 1:
        new |= {"global_batch": round(config.number("global_batch") * changed.batch)}
    return config.changed(**new)
