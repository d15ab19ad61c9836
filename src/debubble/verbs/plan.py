"""``plan``: the layout to launch, by batch arithmetic alone or, with a model, out of every legal layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..config.config import Config, Layout
from ..config.plan import Plan, Question
from ..core.errors import Fault, InputError, Refusal
from ..core.safe_output import replacing
from ..core.units import Hops, hops
from ..estimate.hardware import Cluster, Hardware, cluster_of, mixed_cluster, read_hardware
from ..estimate.model import Model
from ..estimate.read_model import read_model
from ..estimate.setting import Calibration
from ..frameworks.catalog import framework_of
from ..frameworks.engines import engine_named
from ..frameworks.framework import Framework, habits_of
from ..planning.batch import (
    BatchPlan,
    Bubbled,
    Growth,
    GrowthPlan,
    PlacementOrder,
    Rejected,
    batch_plan,
    batch_table,
    growth_plan,
    growth_table,
    orders,
    unsuited,
)
from ..planning.calibrate import written
from ..planning.judge import Wiring, judge_all, unequal
from ..planning.layout_plan import LayoutPlan, Search, layout_plan
from ..planning.search import USUAL, search
from ..planning.verdict import Found
from ..schedules.catalog import CATALOG, called, unknown
from .arguments import Counts, Hop, Size, hop, tell, together
from .pipeline_argument import Given, samples_of
from .plan_options import PlanOptions, calibration_of, read_options
from .sources import AnyPath

TOP = 10  # layouts that are kept: as many as a terminal shows
MOST_DEVICES = 10_000_000  # of one kind
MOST_COUNTS = 16  # numbers of devices: each is a search of its own
MOST_SIZES = 256  # of a batch that grows: each is simulated
SLOWEST = 1e8  # bytes a second: a gigabit card; less is a number without its unit
LISTS = ("tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "micro_batch")
# Options that mean nothing without a model.
OF_MODELS = (
    *("calibrate", "save_calibration", "launched", "framework", "emit", "price", "precision", "nic", "zero"),
    *("expert", "expert_tensor", "transfer", "engine", "lengths", "packing"),
)
GROWN = ("gpus", "tensor", "context", "pipeline", "data", "chunks", "micro_batch", "global_batch", "schedule")


def planned(asked: PlanOptions) -> LayoutPlan | BatchPlan | GrowthPlan:
    """The plan of layouts; with neither model nor device that of the batch, or of one that grows.

    Raises:
        InputError: what is missing or wrong.
        Refusal: no layout is legal, or none fits.
    """
    if asked.model is None and asked.gpu is None:
        return plan_batch(asked)
    return plan_search(asked)


def plan_search(asked: PlanOptions) -> LayoutPlan:
    """Search, and say what was found.

    Raises:
        InputError: what is missing or wrong.
        Refusal: no layout is legal, or none fits.
    """
    asked = _with_all_devices(asked)
    asked.needs("model", "gpu", "gpus", "global_batch")
    asked.refuses("microbatches", why="with a model the global batch says it")
    counts = asked.gpus or ()
    if len(counts) > MOST_COUNTS:
        rule = f"each of the {len(counts)} numbers is a search of its own"
        raise InputError(Fault("gpus", rule, f"give at most {MOST_COUNTS}"))
    framework, samples = _framework(asked), samples_of(asked.lengths, asked.base.sequence, asked.packing)
    model, *made = together(lambda: read_model(asked.model or ""), *(partial(_cluster, asked, gpus) for gpus in counts))
    _fitting(asked, model, made[0].device)
    clusters: dict[int, Cluster] = dict(zip(counts, made, strict=True))
    # Once for all numbers of devices: factors are of the hardware, not of a job's size.
    calibration = _calibration(asked, model, made[0])
    wiring = _wiring(asked, framework)
    asked = _with_chunks(asked, wiring)
    found: dict[int, Found] = {}
    for gpus, cluster in clusters.items():
        if len(clusters) > 1:
            tell(f"planning {gpus} GPUs ..")
        found[gpus] = search(model, cluster, _question(asked, gpus, framework), calibration, wiring=wiring)
        if asked.rampup is not None:
            found[gpus] = _those_that_grow_first(asked, found[gpus])
    if not any(result.plans for result in found.values()):
        raise Refusal(_nothing(found, clusters, _cures(asked, framework)))
    searched = Search(
        model=model,
        clusters=clusters,
        found=found,
        calibration=calibration,
        framework=framework,
        emit=asked.emit is not None,
        wiring=wiring,
        price=asked.price,
        top=asked.top or TOP,
    )
    searched = replace(searched, next=_next(asked, searched))
    if samples is not None:
        best = searched.best.plans[0].layout
        there = clusters[best.gpus]
        searched = replace(
            searched, unequal_samples=unequal(model, there, best, samples, calibration=calibration, wiring=wiring)
        )
    if asked.rampup is not None:
        searched = replace(searched, growth=_grown(asked, searched))
    return layout_plan(searched)


def _framework(asked: PlanOptions) -> Framework | None:
    if asked.price is not None and not 0 < asked.price < 1e6:
        raise InputError(Fault(f"price = {asked.price}", "it is above 0", "give the price of one device for an hour"))
    if asked.emit and asked.framework and asked.emit != asked.framework:
        rule = f"--framework {asked.framework} is another one"
        raise InputError(Fault(f"emit = {asked.emit}", rule, "give one of both"))
    name = asked.emit or asked.framework
    return None if name is None else framework_of(name)


def _with_all_devices(asked: PlanOptions) -> PlanOptions:
    """With the number of devices, if several kinds of them were listed (``h100*4,a100*4``).

    Raises:
        InputError: another number of devices, or hosts that cannot be told apart.
    """
    if "*" not in (asked.gpu or ""):
        return asked
    total = sum(many for _, many in _kinds(asked))
    faults = []
    if asked.gpus not in (None, (), (total,)):
        faults.append(
            Fault(f"gpus = {','.join(map(str, asked.gpus or ()))}", f"{asked.gpu} are {total}", "leave it out")
        )
    if asked.nodes is not None:
        faults.append(Fault(f"nodes = {asked.nodes}", "each kind is in nodes as its vendor sells it", "leave it out"))
    if faults:
        raise InputError(*faults)
    return replace(asked, gpus=(total,))


def _kinds(asked: PlanOptions) -> list[tuple[str, int]]:
    """Names of devices and how many of each, in the order of the pipeline's ranks.

    Raises:
        InputError: a part that is no name times a number.
    """
    found, faults = [], []
    for part in (asked.gpu or "").split(","):
        name, _, many = part.strip().partition("*")
        if many.isascii() and many.isdecimal() and 0 < int(many) <= MOST_DEVICES:
            found.append((name.strip(), int(many)))
        else:
            rule = "several kinds are listed as a name times a number each, in the order of the stages"
            faults.append(Fault(f"gpu = {part}", rule, "give them as in h100*4,a100*4"))
    if faults:
        raise InputError(*faults)
    return found


def _cluster(asked: PlanOptions, gpus: int) -> Cluster:
    if "*" in (asked.gpu or ""):
        kinds = _kinds(asked)
        devices = together(*(partial(read_hardware, name) for name, _ in kinds))
        parts = []
        for device, (_, many) in zip(devices, kinds, strict=True):
            parts.append(cluster_of(device, many, nic=asked.nic))
        return mixed_cluster(tuple(parts)) if len(parts) > 1 else parts[0]
    device, nodes, nic = read_hardware(asked.gpu or ""), asked.nodes, asked.nic
    if nodes is not None and gpus % nodes:
        rule = f"it does not divide {gpus} GPUs"
        raise InputError(Fault(f"nodes = {nodes}", rule, "give hosts of equally many devices"))
    if nic is not None and nic < SLOWEST:
        remedy = "give bytes a second with their unit, as in 50GB"
        raise InputError(Fault(f"nic = {nic:g}", "that is slower than any network card", remedy))
    per_node = None if nodes is None else gpus // nodes
    cluster = cluster_of(device, gpus, gpus_per_node=per_node, nic=nic)
    return replace(cluster, price=asked.price or 0.0)


def _fitting(asked: PlanOptions, model: Model, device: Hardware) -> None:
    """Refuse what this model or this device does not have."""
    faults = []
    for name, verb in (("expert", "spread"), ("expert_tensor", "share")):
        most = max(getattr(asked, name) or (1,))
        if model.experts is None and most > 1:
            faults.append(Fault(f"{name} = {most}", f"{model.name} has no experts to {verb}", "leave it out"))
    precision = asked.precision or "bf16"
    if precision not in (*device.flops, "fp16", "fp32"):
        has = " or ".join(device.flops)
        faults.append(Fault(f"precision = {precision}", f"{device.name} has no such matrix products", f"give {has}"))
    if faults:
        raise InputError(*faults)


def _calibration(asked: PlanOptions, model: Model, cluster: Cluster) -> Calibration | None:
    if not asked.calibrate:
        asked.refuses("save_calibration", "launched", why="there is none without --calibrate")
        return None
    found = calibration_of(asked, model, cluster, asked.base)
    if asked.save_calibration:
        with replacing(asked.save_calibration) as stream:
            stream.write(written(found).encode())
        tell(f"wrote {asked.save_calibration}")
    return found


def _wiring(asked: PlanOptions, framework: Framework | None) -> Wiring:
    """The engine that is named or that of the framework, and the hops that are stated.

    Raises:
        InputError: hops by link where several pipelines are tried, or no such engine.
    """
    stated = None if asked.transfer is None else hop(asked.transfer)
    if isinstance(stated, Hops) and len(asked.pipeline or ()) != 1:
        rule = "links are named by the ranks of one pipeline"
        raise InputError(Fault(f"transfer = {stated}", rule, "give --pipeline with one number, or one hop for all"))
    return Wiring(
        framework="" if framework is None else framework.wraps or framework.name,
        said=None if asked.engine is None else engine_named(asked.engine),
        hops=None if stated is None else hops(stated),
    )


def _with_chunks(asked: PlanOptions, wiring: Wiring) -> PlanOptions:
    """With the chunks a rank that a list of hops is for: it has p v - 1 values, one a boundary of stages.

    Raises:
        InputError: no number of chunks has so many boundaries, or other chunks were asked for.
    """
    if wiring.hops is None or not wiring.hops.boundaries:
        return asked
    (ranks,) = asked.pipeline or ()  # `_wiring` has refused several
    values = len(wiring.hops.boundaries)
    chunks, rest = divmod(values + 1, ranks)
    if rest:
        rule = f"{ranks} ranks have {ranks - 1} boundaries with one chunk each, {2 * ranks - 1} with two"
        raise InputError(Fault(f"transfer has {values} values", rule, "give one for each, or one for all"))
    if asked.chunks not in (None, (), (chunks,)):
        rule = f"transfer has {values} values, as {ranks} ranks of {chunks} chunks have boundaries"
        raise InputError(Fault(f"chunks = {','.join(map(str, asked.chunks or ()))}", rule, f"give {chunks}"))
    return replace(asked, chunks=(chunks,))


def _trained_by(word: str) -> str:
    """The schedule that goes by a name, which must be one that trains."""
    entry = called(word.strip())
    if entry is None or not entry.trains:
        raise InputError(unknown(word, (each for each in CATALOG.values() if each.trains)))
    return entry.name


def _schedules(asked: PlanOptions) -> list[str]:
    """The schedules that were asked for, as they were written."""
    return asked.schedule.split(",") if asked.schedule else []


def _question(asked: PlanOptions, gpus: int, framework: Framework | None) -> Question:
    """What the options fix, and the values that they list."""
    names = tuple(map(_trained_by, _schedules(asked)))
    able: tuple[str, ...] = USUAL
    if framework is not None:
        able = framework.schedules
        strange = [name for name in names if name not in able]
        if strange:
            rule = f"{framework.title} runs {', '.join(able)}"
            raise InputError(Fault(f"schedule = {','.join(strange)}", rule, "choose one of them, or --emit torch"))
    batches = asked.global_batch or ()
    if len(batches) > 1:
        raise InputError(Fault("global-batch", "with a model one value will do", "give one"))
    fixed = Config(
        gpus=gpus,
        global_batch=batches[0],
        data=asked.data,
        zero=asked.zero,
        framework=framework.name if framework else None,
        **asked.recipe,  # type: ignore[arg-type]  # fields by name
    )
    tries = {name: getattr(asked, name) for name in LISTS if asked.gives(name)}
    return Question(fixed, tries, names or able, _shared(asked, framework))


def _shared(asked: PlanOptions, framework: Framework | None) -> Layout:
    """What all layouts of a search share: weights are gathered beside the forward if the framework can do that."""
    base = asked.base
    if framework and base.zero > 1 and "zero" in framework.lacks:
        rule = f"{framework.title} shares out the optimizer's state alone"
        raise InputError(Fault(f"zero = {base.zero}", rule, "give --zero 1, or --emit torchtitan"))
    habits = {"overlap_gather": base.zero >= 1, **habits_of(framework), **asked.recipe}
    return replace(base, **habits)


def _sizes(asked: PlanOptions, layout: Layout) -> list[Growth]:
    """The sizes of a batch that grows, in one layout."""
    return sizes_of_growth(asked, Question(Config().changed(**{name: getattr(layout, name) for name in GROWN})))


def _those_that_grow_first(asked: PlanOptions, found: Found) -> Found:
    """The plans, those that run at every size of a batch that grows before those that do not."""
    return replace(found, plans=tuple(sorted(found.plans, key=lambda plan: not _takes_growth(asked, plan.layout))))


def _takes_growth(asked: PlanOptions, layout: Layout) -> bool:
    """Whether the schedule of a layout takes the micro-batches of every size of a batch that grows."""
    for row in _sizes(asked, layout):
        if row.bubbled is None:  # no whole micro-batches: no schedule takes that size
            continue
        if unsuited(layout.schedule, layout.pipeline, row.bubbled.layout.microbatches, layout.chunks):
            return False
    return True


def _grown(asked: PlanOptions, searched: Search) -> list[tuple[Growth, Plan | None]]:
    """The layout to launch at each size of a batch that grows."""
    best = searched.best.plans[0].layout
    rows = _sizes(asked, best)
    if len(rows) > MOST_SIZES:
        value = f"rampup = {','.join(map(str, asked.rampup or ()))}"
        raise InputError(Fault(value, f"each of the {len(rows)} sizes is simulated", f"give at most {MOST_SIZES}"))
    layouts = [replace(best, microbatches=row.bubbled.layout.microbatches) for row in rows if row.bubbled]
    # All sizes in one call: they share most of what is estimated.
    plans = iter(
        judge_all(searched.model, searched.clusters[best.gpus], layouts, searched.calibration, searched.wiring)
    )
    grown: list[tuple[Growth, Plan | None]] = []
    for row in rows:
        plan = None
        if row.bubbled is not None:
            plan = next(plans)
        grown.append((row, plan))
    return grown


def _next(asked: PlanOptions, searched: Search) -> str:
    """The same search for the framework that launches the fastest, printing what to paste."""
    found = searched.launched
    named = tuple(_schedules(asked))
    if found is None:
        return asked.command(None, named)
    # Only the schedules that were asked for and that it runs: the command must not be refused.
    framework = found[1]
    return asked.command(framework.name, tuple(name for name in named if name in framework.schedules))


def _cures(asked: PlanOptions, framework: Framework | None) -> str:
    """What would make room, of what was not asked for already."""
    # DeepSpeed's pipeline engine refuses ZeRO 2 and 3 (runtime/pipe/engine.py).
    shares_weights = framework is None or not (
        "zero" in framework.lacks or framework.zeros or framework.name == "deepspeed"
    )
    if asked.base.zero < 3 and shares_weights:
        return "give more devices, --zero 3, or a shorter --sequence"
    return "give more devices, or a shorter --sequence"


def _nothing(found: Mapping[int, Found], clusters: Mapping[int, Cluster], cures: str) -> str:
    """Why there is no layout at all."""
    lines = []
    for gpus, result in found.items():
        device = clusters[gpus].device
        if result.legal:
            lines.append(
                f"{gpus} x {device.name}: none of {result.legal:,} legal layouts fits: the smallest needs "
                f"{result.closest / 1e9:.0f} GB of {device.usable / 1e9:.0f} on its fullest rank; {cures}"
            )
        else:
            reasons = "; ".join(refused.reason for refused in result.rejected[:3])
            lines.append(f"{gpus} x {device.name}: no layout is legal: {reasons}")
    return "\n".join(lines)


def plan_batch(asked: PlanOptions) -> BatchPlan | GrowthPlan:
    """The table of a batch, or of one that grows.

    Raises:
        InputError: options that need a model, or too little to say anything.
    """
    asked.refuses(*OF_MODELS, why="it needs --model and --gpu")
    questions = [_question_of_batch(asked, gpus) for gpus in asked.gpus or (None,)]
    if asked.rampup is not None:
        asked.needs("global_batch", "pipeline")
        return growth_plan(sizes_of_growth(asked, questions[0]))
    found: list[Bubbled] = []
    refused: list[Rejected] = []
    for question in questions:
        some, others = batch_table(question)
        found += some
        refused += others
    if not asked.pipeline:  # those that were listed stay in the order of the question
        found.sort(key=lambda one: (one.layout.gpus, one.layout.global_batch, one.idle_share))
    return batch_plan(found, refused, _orders(asked, found))


def sizes_of_growth(asked: PlanOptions, question: Question) -> list[Growth]:
    """The sizes that ``rampup`` asks for, up to the one global batch.

    Raises:
        InputError: not three numbers, several global batches, or a batch that is not reached.
    """
    rampup, batches = asked.rampup or (), asked.global_batch or ()
    if len(rampup) != 3 or len(batches) != 1:
        rule = "it is start,increment,samples up to one global batch"
        raise InputError(Fault(f"rampup = {','.join(map(str, rampup))}", rule, "give three"))
    return growth_table(question, *rampup)


def _question_of_batch(asked: PlanOptions, gpus: int | None) -> Question:
    """What the options fix, and the values that they list; a micro-batch is one sample if nothing is said."""
    for name in ("tensor", "context"):
        listed = getattr(asked, name)
        if listed is not None and len(listed) > 1:
            raise InputError(Fault(f"{name} = {listed}", "without a model one value will do", "give one"))
    fixed = Config(
        gpus=gpus,
        tensor=(asked.tensor or (1,))[0],
        context=(asked.context or (1,))[0],
        data=asked.data,
        schedule=asked.schedule,
    )
    tries = {"chunks": asked.chunks or (1,), "micro_batch": asked.micro_batch or (1,)}
    listed = {name: getattr(asked, name) for name in ("pipeline", "global_batch", "microbatches")}
    return Question(fixed, tries | {name: values for name, values in listed.items() if values})


def _orders(asked: PlanOptions, found: list[Bubbled]) -> list[PlacementOrder]:
    """Which axes cross nodes, if hosts are given and one layout is asked for."""
    if asked.nodes is None or not found:
        return []
    layout = found[0].layout
    if layout.gpus % asked.nodes:
        rule = f"it does not divide {layout.gpus} GPUs"
        raise InputError(Fault(f"nodes = {asked.nodes}", rule, "give hosts with equally many devices"))
    sizes = {"pipeline": layout.pipeline, "data": layout.data, "context": layout.context, "tensor": layout.tensor}
    return orders(sizes, layout.gpus // asked.nodes)


def plan(
    job: AnyPath | None = None,
    *,
    gpus: Counts | None = None,
    model: AnyPath | None = None,
    gpu: AnyPath | None = None,
    global_batch: Counts | None = None,
    sequence: int | None = None,
    nodes: int | None = None,
    nic: Size | None = None,
    price: float | None = None,
    tensor: Counts | None = None,
    pipeline: Counts | None = None,
    data: int | None = None,
    context: Counts | None = None,
    expert: Counts | None = None,
    expert_tensor: Counts | None = None,
    chunks: Counts | None = None,
    micro_batch: Counts | None = None,
    microbatches: Counts | None = None,
    schedule: str | Sequence[str] | None = None,
    transfer: Hop | None = None,
    engine: str | None = None,
    precision: str | None = None,
    zero: int | None = None,
    recompute: str | None = None,
    recompute_modules: str | Sequence[str] | None = None,
    gradient_precision: str | None = None,
    optimizer_precision: str | None = None,
    gradient_copies: float | None = None,
    bucket: float | None = None,
    offload_layers: int | None = None,
    offload_optimizer: bool | None = None,
    pieces: int | None = None,
    sequence_parallel: bool | None = None,
    overlap: bool | None = None,
    overlap_gather: bool | None = None,
    gather_by_tensor: bool | None = None,
    tensor_overlap: bool | None = None,
    expert_overlap: bool | None = None,
    flex_dispatch: bool | None = None,
    keep_gathered: bool | None = None,
    weights_are_master: bool | None = None,
    fused_attention: bool | None = None,
    fused_kernels: bool | None = None,
    fused_loss: bool | None = None,
    graphs: bool | None = None,
    blocking_sends: bool | None = None,
    blocking_launches: bool | None = None,
    scattered_sends: bool | None = None,
    calibrate: AnyPath | Sequence[AnyPath] = (),
    save_calibration: AnyPath | None = None,
    launched: AnyPath | None = None,
    top: int | None = None,
    framework: str | None = None,
    emit: str | None = None,
    rampup: Counts | None = None,
    lengths: Given | None = None,
    packing: str | None = None,
) -> LayoutPlan | BatchPlan | GrowthPlan:
    """Find the layout to launch: every legal one, ranked, with where its time and memory go.

        >>> debubble.plan(model="llama3-8b", gpu="h100", gpus=8, global_batch=32).best.step_ms
        >>> debubble.plan(gpus=64, pipeline=8, global_batch=256).candidates[0].idle_share

    Without a model and a device, the batch and the bubbles alone. Values that are listed (``4,8``) are tried.

    Args:
        job: a job TOML or launch script, from which devices, batch and sequence are taken if no option says them.
        gpus: devices of the whole job; several to compare.
        model: its name, or its config.json.
        gpu: name of the device, or your own TOML file of it; ``h100*4,a100*4`` if stages lie on several, in this order.
        global_batch: samples of all replicas in a step.
        sequence: tokens in a sample; 4096 by default.
        nodes: hosts; else as the vendor sells the device.
        nic: bandwidth of a device to other hosts, bytes a second.
        price: of one device for an hour, for the cost of a billion tokens.
        tensor: devices that share each layer.
        pipeline: ranks of a pipeline.
        data: data-parallel replicas.
        context: devices that share each sequence.
        expert: devices over which experts are spread.
        expert_tensor: devices that share each expert.
        chunks: stages on each rank.
        micro_batch: samples in a micro-batch.
        microbatches: per pipeline and step, instead of a global batch.
        schedule: schedules to try.
        transfer: one hop between ranks as measured, on all links or by link, instead of the estimate's.
        engine: under which pipelines are simulated, as in ``megatron``; None for that of ``framework``, else ``ideal``.
        precision: of the matrix products: ``bf16``, ``fp16``, ``fp8`` or ``fp4``.
        zero: what replicas share out: 1 optimizer, 2 gradients, 3 weights.
        recompute: ``none``, ``selective`` or ``full``; the search's own choice by default.
        recompute_modules: parts of a layer that ``selective`` runs again; the attention core by default.
        gradient_precision: of gradients as they are kept and reduced: ``fp32``, ``bf16`` or ``fp16``.
        optimizer_precision: of Adam's moments: ``fp32``, ``bf16``, ``fp16`` or ``fp8``.
        gradient_copies: bytes a parameter of further copies of the gradients.
        bucket: bytes of gradients that replicas reduce in one call.
        offload_layers: layers of each stage whose activations wait on the host.
        offload_optimizer: whether the optimizer's state and its update are on the host.
        pieces: products into which each product beside a tensor collective is cut.
        sequence_parallel: whether norms and dropout are split over the tensor group too.
        overlap: whether gradients are reduced beside the last backward.
        overlap_gather: whether weights are gathered beside the first forward.
        gather_by_tensor: whether weights are gathered after the update, in a call for each tensor.
        tensor_overlap: whether tensor collectives run beside matrix products.
        expert_overlap: whether tokens travel to experts beside the products of another micro-batch.
        flex_dispatch: whether a token crosses to each node once, however many of its experts are there.
        keep_gathered: whether what sequence parallelism gathers is kept for the backward.
        weights_are_master: whether the fp32 weights are the only ones, cast for each product.
        fused_attention: whether the scores of attention stay on the chip.
        fused_kernels: whether element-wise work is fused.
        fused_loss: whether the loss works on the logits in place.
        graphs: whether the device replays a recorded graph of its kernels.
        blocking_sends: whether a rank sends and receives in turn and waits for each.
        blocking_launches: whether the host waits for each kernel.
        scattered_sends: whether each member of a tensor group sends its share of a hop.
        calibrate: measured rows as CSV, logs, recordings, traces, or saved factors.
        save_calibration: where to write the factors.
        launched: configuration with which the recordings and traces of ``calibrate`` were launched.
        top: layouts to keep.
        framework: that is to launch it: nothing is planned that it cannot run.
        emit: the same, and what to paste is printed.
        rampup: a batch that grows: start, increment, samples.
        lengths: of samples, if they are unequal: ``p50=800,p95=6000``, ``mean=1200,p95=4000``, or a file of lengths.
        packing: ``whole`` samples fill a sequence; ``cut`` from a stream of them; ``none``, each is one sample.

    Returns:
        The plan of layouts; with neither model nor device that of the batch, or of one that grows.

    Raises:
        InputError: what is missing or wrong, all at once where that can be told.
        Refusal: no layout is legal, or none fits.
    """
    return planned(read_options(locals()).with_job())
