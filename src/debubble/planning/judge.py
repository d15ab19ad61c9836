"""Judgement: a layout of a model on a cluster is simulated with its own stage costs and becomes a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layout, Parts, Plan, columns
from ..core.costs import Costs
from ..core.lower import lower
from ..core.memory import peak_activations
from ..core.op import KINDS, Kind
from ..core.program import Program
from ..core.schedule import Shape
from ..core.simulate import simulate
from ..core.timeline import Timeline
from ..estimate.count import flops_per_token
from ..estimate.factors import GENERIC, Calibration
from ..estimate.hardware import Cluster
from ..estimate.memory import activation_bytes, logits_bytes, passing_bytes, state_bytes
from ..estimate.model import Model
from ..estimate.network import hop_time
from ..estimate.outside import data_time, optimizer_time, tied_time
from ..estimate.setting import Setting
from ..estimate.stages import Slice, StageTime, blocks, stage_parameters, stage_time
from ..schedules.catalog import build
from .many_costs import windows
from .screen import Screened, screen

__all__ = ["Screened", "judge", "judge_all", "screen", "simulated"]

Column = NDArray[np.float64]
SECOND = 1e9  # nanoseconds


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One layout ready for simulation: what its stages hold and take, and three sets of costs.

    Costs are those of stages that all take the mean with free transfers, of each stage's own time, and with hops.
    """

    layout: Layout
    at: Setting
    held: Slice
    stages: StageTime
    program: Program
    durations: NDArray[np.int64]
    transfers: NDArray[np.int64]


def judge(model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None = None) -> Plan:
    """Exact simulation of one layout with the estimated cost of each stage, its parts, and the bytes of each rank.

    Raises:
        InputError: the schedule does not suit the shape.
    """
    return judge_all(model, cluster, [layout], calibration)[0]


def judge_all(
    model: Model, cluster: Cluster, layouts: Sequence[Layout], calibration: Calibration | None = None
) -> list[Plan]:
    """``judge`` for many layouts; those that run the same schedule on the same shape share one sweep.

    Raises:
        InputError: a schedule does not suit its shape.
    """
    plans: dict[int, Plan] = {}
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, layout in enumerate(layouts):
        shape = (layout.schedule, layout.pipeline, layout.microbatches, layout.chunks)
        alike.setdefault(shape, []).append(number)
    for numbers in alike.values():
        cases = [_case(model, cluster, layouts[number], calibration) for number in numbers]
        spans = windows(
            cases[0].program,
            np.concatenate([case.durations for case in cases]),
            np.concatenate([case.transfers for case in cases]),
        )
        for place, (number, case) in enumerate(zip(numbers, cases, strict=True)):
            plans[number] = _plan(model, cluster, case, spans[3 * place : 3 * place + 3].astype(float))
    return [plans[number] for number in range(len(layouts))]


def simulated(
    model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None = None
) -> tuple[Timeline, Costs]:
    """The window that ``judge`` measures, op by op, and the costs of the stages that it comes from.

    Raises:
        InputError: the schedule does not suit the shape.
    """
    case = _case(model, cluster, layout, calibration)
    costs = Costs(case.durations[2][:, :, None], case.transfers[2][:, :, None], "estimated")
    return simulate(case.program, costs), costs


def _case(model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None) -> _Case:
    at = Setting(model, cluster, columns([layout], model.layers), factors=calibration or GENERIC)
    held = slices(model, layout)
    stages = stage_time(at, blocks(at), held)
    program = _program(layout)
    table = _durations(stages)
    even = np.broadcast_to(np.rint(table.mean(axis=1, keepdims=True)).astype(np.int64), table.shape)
    free = np.zeros_like(table)
    hops = _transfers(at, program)
    taken, delayed = (_taken(hops), free) if at.blocking[0] else (free, hops)
    durations, transfers = np.stack([even, table, table + taken]), np.stack([free, free, delayed])
    return _Case(layout, at, held, stages, program, durations, transfers)


def _plan(model: Model, cluster: Cluster, case: _Case, spans: Column) -> Plan:
    """The plan of a case, from its windows: even stages and free transfers, its own stages, its own stages and hops."""
    layout, at, held, stages, program = case.layout, case.at, case.held, case.stages, case.program
    table = case.durations[1]
    own = float(table[Kind.F].sum() + table[Kind.B].sum()) * program.schedule.microbatches / program.schedule.ranks
    window, bubble, imbalance, transfer = spans[2], spans[0] - own, spans[1] - spans[0], spans[2] - spans[1]
    data, update = _outside(at, program, held, stages)
    busy = layout.microbatches / layout.pipeline * SECOND
    ideal, recompute, tensor, context, expert, gathered = (
        busy * float(getattr(stages, n).sum()) for n in ("ideal", "recompute", "tensor", "context", "expert", "data")
    )
    parts = Parts(
        ideal,
        0.0,
        recompute,
        tensor,
        context,
        expert,
        float(bubble),
        float(imbalance),
        float(transfer),
        gathered + data,
        update,
        at.constants.step * SECOND,
    )
    work = busy * float((stages.forward + stages.backward).sum())
    parts = replace(parts, kernels=work - ideal - recompute - tensor - context - expert - gathered)
    memory = _memory(at, program, held)
    peak = memory.sum(axis=0)
    fullest = int(peak.argmax())
    tokens = layout.global_batch * layout.sequence
    step = parts.step
    flops = flops_per_token(model, layout.sequence) * tokens
    return Plan(
        layout=layout,
        step=step,
        parts=parts,
        idle_share=max(0.0, float(1 - work / window)),
        peak_bytes=tuple(int(b) for b in peak),
        memory=dict(zip(NAMES, (int(b) for b in memory[:, fullest]), strict=True)),
        tokens_per_second_per_gpu=tokens / (step / SECOND) / layout.gpus,
        mfu=flops / (step / SECOND) / layout.gpus / cluster.device.peak(layout.precision),
        fits=bool(peak.max() <= cluster.device.memory),
        reasons=_reasons(model, layout, stages),
    )


def slices(model: Model, layout: Layout) -> Slice:
    """What each stage of a layout holds, one entry a stage."""
    split = layout.split(model.layers)
    first = np.concatenate([[0], np.cumsum(split)])
    moe = np.array([sum(map(model.has_experts, range(a, b))) for a, b in pairwise(first)], float)
    dense = np.array(split, float) - moe
    stage = np.arange(len(split))
    again = np.full(len(split), np.inf if layout.recompute_layers is None else layout.recompute_layers)
    return Slice(dense, moe, again, (stage == 0).astype(float), (stage == len(split) - 1).astype(float))


@lru_cache(maxsize=64)
def _lowered(schedule: str, ranks: int, microbatches: int, chunks: int) -> Program:
    return lower(build(schedule, Shape(ranks, microbatches, chunks)))


def _program(layout: Layout) -> Program:
    return _lowered(layout.schedule, layout.pipeline, layout.microbatches, layout.chunks)


def _durations(stages: StageTime) -> NDArray[np.int64]:
    table = np.zeros((KINDS, len(stages.forward)))
    weight = np.minimum(stages.weight, stages.backward)
    table[Kind.F], table[Kind.B] = stages.forward, stages.backward
    table[Kind.I], table[Kind.W] = stages.backward - weight, weight
    return np.rint(SECOND * table).astype(np.int64)


def _transfers(at: Setting, program: Program) -> NDArray[np.int64]:
    """Delay of each stage's input, nanoseconds: forward from the stage before, backward from the one behind."""
    place = program.schedule.placement[0].astype(np.int64)
    stride = int(at.layouts.gpus[0] / at.layouts.pipeline[0])
    node = place * stride // at.cluster.gpus_per_node
    apart = (node[1:] != node[:-1]) | (stride >= at.cluster.gpus_per_node)
    volume = np.full(len(apart), float((2 * at.tokens * at.model.hidden / at.spread)[0]))
    between = np.where(place[1:] == place[:-1], 0.0, hop_time(at.network, apart.astype(float), volume))
    table = np.zeros((KINDS, len(place)))
    table[Kind.F, 1:] = between
    table[Kind.B, :-1] = table[Kind.I, :-1] = between
    return np.rint(SECOND * at.factors.transfer.value * table).astype(np.int64)


def _taken(hops: NDArray[np.int64]) -> NDArray[np.int64]:
    """What blocking transfers add to each op: receiving its input and sending its output, nanoseconds."""
    sent = np.zeros_like(hops)
    sent[Kind.F, :-1] = hops[Kind.F, 1:]
    for kind in (Kind.B, Kind.I):
        sent[kind, 1:] = hops[kind, :-1]
    return hops + sent


def _by_rank(program: Program, stage: Column) -> Column:
    """Sums over the stages that each rank holds (both copies where there are two)."""
    place = program.schedule.placement
    summed: Column = np.sum([np.bincount(row, stage, program.schedule.ranks) for row in place], axis=0)
    return summed


def _outside(at: Setting, program: Program, held: Slice, stages: StageTime) -> tuple[float, float]:
    """Data-parallel traffic that shows, and the update, of the rank that has most of it, nanoseconds."""
    shared, routed = (_by_rank(program, np.broadcast_to(x, held.dense.shape)) for x in stage_parameters(at, held))
    beside = (_by_rank(program, stages.forward), _by_rank(program, stages.backward))
    data = at.factors.data.value * data_time(at, shared, routed, beside) + tied_time(at)
    return SECOND * float(data.max()), SECOND * float(optimizer_time(at, shared, routed).max())


NAMES = ("weights", "gradients", "optimizer", "activations", "logits", "other")


def _memory(at: Setting, program: Program, held: Slice) -> Column:
    """Bytes of each rank by name, float64[names, ranks]."""
    ranks = program.schedule.ranks
    shared, routed = (_by_rank(program, np.broadcast_to(x, held.dense.shape)) for x in stage_parameters(at, held))
    copies = len(program.schedule.placement)
    kept = _by_rank(program, activation_bytes(at, held)) / copies * peak_activations(program.schedule)
    other = passing_bytes(at) + at.constants.workspace
    rows = (*state_bytes(at, shared, routed), kept, _by_rank(program, held.last) * logits_bytes(at), other)
    return np.stack([np.broadcast_to(row, (ranks,)) for row in rows]) * at.factors.memory.value


def _reasons(model: Model, layout: Layout, stages: StageTime) -> tuple[str, ...]:
    """What to look at, in sentences."""
    found = []
    slot = stages.forward + stages.backward
    worst = int(slot.argmax())
    if len(slot) > 1 and slot[worst] > 1.1 * slot.mean():
        ends = {0: " with the embedding", len(slot) - 1: " with the head and the loss"}.get(worst, "")
        layers = layout.split(model.layers)[worst]
        found.append(
            f"stage {worst}{ends} ({layers} layers) takes {slot[worst] / slot.mean():.2f} times the mean stage"
        )
    if layout.pipeline > 1 and layout.microbatches < layout.pipeline:
        many = f"{layout.microbatches} micro-batch{'es' if layout.microbatches > 1 else ''}"
        found.append(f"{many} cannot keep {layout.pipeline} ranks busy")
    return (*found, *model.warnings)
