"""What follows: the sizes of a job that others imply, and those that a job need not say."""

from __future__ import annotations

from math import prod

from ..core.errors import Fault, InputError
from ..schedules.catalog import called
from .config import Config


def settled(config: Config) -> Config:
    """The same job with the sizes filled in that follow from others, and what a job need not say.

    gpus = tensor x context x pipeline x data, and global_batch = microbatches x micro_batch x data. A job need not say:
    context 1; tensor 1, unless devices, ranks and replicas tell it; schedule 1f1b; the chunks that a rank usually has
    in its schedule; no recomputation.

    Raises:
        InputError: sizes contradict each other; every contradiction.
    """
    faults: list[Fault] = []
    config = _scheduled(config.filled(context=1, schedule="1f1b", recompute="none"), faults)
    # With devices, ranks and replicas given, tensor x context is what is left; else nobody spoke of a tensor group.
    if not {"gpus", "pipeline", "data"} <= config.known().keys():
        config = config.filled(tensor=1)
    if "pipeline" in config.known():
        config = _solve(config, "gpus", ("tensor", "context", "pipeline", "data"), faults)
    known = config.known()
    if {"local_batch", "micro_batch"} <= known.keys() and "microbatches" not in known | dict.fromkeys(config.opened()):
        config = config.filled(microbatches=config.flush)  # torchtitan and DeepSpeed say the batch of one replica
    if "data" in config.known():
        config = _solve(config, "global_batch", ("microbatches", "micro_batch", "data"), faults)
    if faults:
        raise InputError(*faults)
    return config


def _scheduled(config: Config, faults: list[Fault]) -> Config:
    """With our name of its schedule, and its chunks."""
    if "schedule" in config.opened():
        return config.filled(chunks=1)
    entry = called(str(config.schedule))
    if entry is None or config.known().get("pipeline") == 1:  # who builds it says what is wrong with the name
        return config.filled(chunks=1)
    if config.known().get("chunks") == 1 and entry.chunks > 1:
        rule = f"{entry.name} has several on each rank"
        faults.append(Fault(f"{config.name}: chunks = 1", rule, f"give {entry.chunks} or none"))
    if entry.name != config.schedule:
        config = config.changed(schedule=entry.name)
    return config.filled(chunks=entry.chunks)


def _solve(config: Config, whole: str, parts: tuple[str, ...], faults: list[Fault]) -> Config:
    """Fill in the one size that is missing from ``whole = product of parts``, or check it where none is."""
    if config.opened() & {whole, *parts}:
        return config  # nothing follows from what is open, and it contradicts nothing
    known: list[str] = []
    unknown: list[str] = []
    for name in parts:
        (unknown if getattr(config, name) is None else known).append(name)
    product = prod(getattr(config, name) for name in known)
    total = getattr(config, whole)
    none = [name for name in known if getattr(config, name) < 1]
    for name in none:
        fault = Fault(f"{config.name}: {name} = {getattr(config, name)}", "a job has 1 or more", f"give {name}")
        if fault not in faults:  # data is a part of both products
            faults.append(fault)
    if none:
        return config
    if len(unknown) > 1 or (unknown and total is None):
        return config
    if total is None:
        return config.filled(**{whole: product})
    if (not unknown and total != product) or total % product:
        faults.append(_contradiction(config, whole, known, product))
        return config
    return config.filled(**dict.fromkeys(unknown, total // product))


def _contradiction(config: Config, whole: str, parts: list[str], product: int) -> Fault:
    total: int = getattr(config, whole)
    near = sorted({max(total // product, 1) * product, (total // product + 1) * product})
    stated = " x ".join(f"{name} {getattr(config, name)}" for name in parts if getattr(config, name) > 1)
    return Fault(
        f"{config.name}: {whole} = {total}",
        f"{stated} = {product} does not fit into it",
        f"give {whole} {' or '.join(map(str, near))}, or change one of the others",
    )
