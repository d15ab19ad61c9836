"""``plan`` with a model and devices: every legal layout, ranked, with where its time and memory go."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError, Refusal
from ..verbs.needs import needed, unused
from .console import say, warn, wrote
from .options import together

if TYPE_CHECKING:
    from pathlib import Path

    from ..config.layout import Layout
    from ..config.question import Question
    from ..estimate.constants import Calibration
    from ..estimate.hardware import Cluster, Hardware
    from ..estimate.model import Model
    from ..frameworks.framework import Framework
    from ..planning.search import Found
    from .plan_growth import Grown
    from .plan_text import Planned

TOP = 10
MOST_COUNTS = 16
MOST_SIZES = 256  # of a batch that grows
SLOWEST = 1e8  # bytes a second: a gigabit card


def plan_layout(said: dict[str, Any], *, as_json: bool, pictures: dict[str, Path]) -> int:
    """Search, and print what was found.

    Raises:
        InputError: what is missing or wrong on the command line.
        Refusal: no layout is legal, or none fits.
    """
    from ..estimate.read_model import read_model
    from ..planning.search import search
    from .plan_text import Planned, document, text

    needed(said, "model", "gpu", "gpus", "global_batch")
    unused(said, "microbatches", "weights", "split", why="with a model the global batch says it")
    if len(said["gpus"]) > MOST_COUNTS:
        rule = f"each of the {len(said['gpus'])} numbers is a search of its own"
        raise InputError(Fault("gpus", rule, f"give at most {MOST_COUNTS}"))
    backend = _backend(said)
    model, *made = together(
        lambda: read_model(said["model"]), *(partial(_cluster, said, gpus) for gpus in said["gpus"])
    )
    _fitting(said, model, made[0].device)
    clusters = dict(zip(said["gpus"], made, strict=True))
    calibration = _calibration(said, model, next(iter(clusters.values())))
    found: dict[int, Found] = {}
    for gpus, cluster in clusters.items():
        if len(clusters) > 1:
            warn(f"planning {gpus} GPUs ..")
        found[gpus] = search(model, cluster, _question(said, gpus, backend), calibration)
    if not any(one.plans for one in found.values()):
        raise Refusal(_nothing(found, clusters, _cures(said, backend)))
    asked = Planned(model, clusters, found, calibration, backend, said["price"], said["top"] or TOP)
    if said["rampup"] is not None:
        asked = replace(asked, growth=_grown(asked, said))
    if pictures:
        _draw(asked, said, pictures)
    if as_json:
        from .report import emit

        emit(document(asked))
    else:
        say(text(asked))
    return 0


def _grown(asked: Planned, said: dict[str, Any]) -> list[Grown]:
    """The best layout at each size of a batch that grows."""
    from ..config.config import Config
    from ..config.question import Question
    from ..planning.judge import judge_all
    from .plan_growth import Grown, sizes_of_growth

    best = asked.best.plans[0].layout
    fixed = ("gpus", "tensor", "context", "pipeline", "data", "chunks", "micro_batch", "global_batch", "schedule")
    rows = sizes_of_growth(said, Question(Config().changed(**{name: getattr(best, name) for name in fixed})))
    if len(rows) > MOST_SIZES:
        value = f"rampup = {','.join(map(str, said['rampup']))}"
        raise InputError(Fault(value, f"each of the {len(rows)} sizes is simulated", f"give at most {MOST_SIZES}"))
    whole = [row.bubbled.layout.microbatches for row in rows if row.bubbled]
    layouts = [replace(best, microbatches=many) for many in whole]
    plans = iter(judge_all(asked.model, asked.clusters[best.gpus], layouts, asked.calibration))
    return [Grown(row, next(plans) if row.bubbled else None) for row in rows]


def _fitting(said: dict[str, Any], model: Model, device: Hardware) -> None:
    """Refuse what this model or this device does not have."""
    faults = []
    for name, verb in (("expert", "spread"), ("expert_tensor", "share")) if model.experts is None else ():
        if (most := max(said[name] or (1,))) > 1:
            faults.append(Fault(f"{name} = {most}", f"{model.name} has no experts to {verb}", "leave it out"))
    precision = said["precision"] or "bf16"
    if precision not in (*device.flops, "fp16"):
        has = " or ".join(device.flops)
        faults.append(Fault(f"precision = {precision}", f"{device.name} has no such matrix products", f"give {has}"))
    if faults:
        raise InputError(*faults)


def _draw(asked: Planned, said: dict[str, Any], pictures: dict[str, Path]) -> None:
    from .page_plan import drawn_plan, figure_of_plan, page_of_plan
    from .pictures import write_all
    from .plan_text import document

    drawn = drawn_plan(asked)
    write_all(pictures, [figure_of_plan(asked, drawn[0])], lambda: page_of_plan(asked, document(asked), drawn, said))


def _cluster(said: dict[str, Any], gpus: int) -> Cluster:
    from ..estimate.hardware import cluster_of, read_hardware

    device, nodes = read_hardware(said["gpu"]), said["nodes"]
    if nodes is not None and gpus % nodes:
        raise InputError(
            Fault(f"nodes = {nodes}", f"it does not divide {gpus} GPUs", "give hosts of equally many devices")
        )
    nic = float(said["nic"]) if said["nic"] else None
    if nic is not None and nic < SLOWEST:
        remedy = "give bytes a second with their unit, as in 50GB"
        raise InputError(Fault(f"nic = {nic:g}", "that is slower than any network card", remedy))
    cluster = cluster_of(device, gpus, gpus_per_node=gpus // nodes if nodes else None, nic=nic)
    return replace(cluster, price=said["price"] or 0.0)


def _backend(said: dict[str, Any]) -> Framework | None:
    if said["price"] is not None and not 0 < said["price"] < 1e6:
        raise InputError(Fault(f"price = {said['price']}", "it is above 0", "give the price of one device for an hour"))
    if said["emit"] is None:
        return None
    from ..frameworks.catalog import framework_of

    return framework_of(said["emit"])


def _base(said: dict[str, Any]) -> Any:
    from ..config.layout import Layout

    zero = 1 if said["zero"] is None else said["zero"]
    return Layout(sequence=said["sequence"] or 4096, precision=said["precision"] or "bf16", zero=zero)


def _launched(said: dict[str, Any], backend: Framework | None) -> Layout:
    """What all layouts of a search share: weights are gathered beside the forward where the framework can do that."""
    base: Layout = _base(said)
    if backend and base.zero > 1 and "zero" in backend.lacks:
        rule = f"{backend.title} shares out the optimizer's state alone"
        raise InputError(Fault(f"zero = {base.zero}", rule, "give --zero 1, or --emit torchtitan"))
    habits = {"overlap_gather": base.zero >= 1} | dict(backend.habits if backend else {})
    return replace(base, **habits)  # type: ignore[arg-type]  # names of fields that are on or off


def _trained_by(word: str) -> str:
    """The schedule that goes by a name, which must be one that trains."""
    from ..schedules.catalog import CATALOG, called, unknown

    entry = called(word)
    if entry is None or not entry.trains:
        raise InputError(unknown(word, (each for each in CATALOG.values() if each.trains)))
    return entry.name


def _question(said: dict[str, Any], gpus: int, backend: Framework | None) -> Question:
    """What the options fix, and the values that they list."""
    from ..config.config import Config
    from ..config.question import Question
    from ..planning.space import USUAL

    words = said["schedule"].split(",") if said["schedule"] else []
    names = tuple(_trained_by(word.strip()) for word in words) or None
    able = backend.schedules if backend else USUAL
    strange = [name for name in names or () if backend and name not in able]
    if backend and strange:
        rule = f"{backend.title} runs {', '.join(able)}"
        raise InputError(Fault(f"schedule = {','.join(strange)}", rule, "choose one of them, or --emit torch"))
    lists = ("tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "micro_batch")
    if len(said["global_batch"]) > 1:
        raise InputError(Fault("global-batch", "with a model one value will do", "give one"))
    fixed = Config(
        gpus=gpus,
        global_batch=said["global_batch"][0],
        data=said["data"],
        zero=said["zero"],
        framework=backend.name if backend else None,
    )
    tries = {name: said[name] for name in lists if said[name]}
    return Question(fixed, tries, names or able, _launched(said, backend))


def _calibration(said: dict[str, Any], model: Model, cluster: Cluster) -> Calibration | None:
    if not said["calibrate"]:
        unused(said, "save_calibration", "launched", why="there is none without --calibrate")
        return None
    from ..planning.calibration_file import written
    from .plan_calibrate import calibration_of

    found = calibration_of(said, model, cluster, _base(said))
    if said["save_calibration"]:
        from ..core.atomic import replacing

        with replacing(said["save_calibration"]) as stream:
            stream.write(written(found).encode())
        wrote(said["save_calibration"])
    return found


def _cures(said: dict[str, Any], backend: Framework | None) -> str:
    """What would make room, of what was not asked for already."""
    zero = _base(said).zero
    shared = (
        "--zero 3, "
        if zero < 3 and not (backend and ("zero" in backend.lacks or backend.zeros or backend.name == "deepspeed"))
        else ""
    )
    return f"give more devices, {shared}or a shorter --sequence"


def _nothing(found: dict[int, Found], clusters: dict[int, Cluster], cures: str) -> str:
    """Why there is no layout at all."""
    lines = []
    for gpus, one in found.items():
        device = clusters[gpus].device
        if one.legal:
            lines.append(
                f"{gpus} x {device.name}: none of {one.legal:,} legal layouts fits: the smallest needs "
                f"{one.closest / 1e9:.0f} GB of {device.memory / 1e9:.0f} on its fullest rank; {cures}"
            )
        else:
            reasons = "; ".join(refused.reason for refused in one.rejected[:3])
            lines.append(f"{gpus} x {device.name}: no layout is legal: {reasons}")
    return "\n".join(lines)
