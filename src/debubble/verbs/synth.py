"""``synth``: the best schedule for these costs, this memory, these links and this engine, with its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.bounds import Instance, no_limit, searchable
from ..core.costs import Costs, link_table
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.observation import Observation, Window
from ..core.schedule import (
    KINDS,
    Kind,
    Release,
    Schedule,
    Shape,
    from_rows,
    loop_placement,
    peak_activations,
    v_placement,
)
from ..core.simulate import makespan
from ..core.units import MILLISECOND, count_bytes, duration, hops, nanoseconds
from ..diagnosis.causes import fitted, spent, summarise
from ..frameworks.engines import ENGINES, engine_of
from ..frameworks.megatron import KEYS as MEGATRON_KEYS
from ..schedules.catalog import build
from ..schedules.entry import caps_of
from ..synthesis.problem import Problem
from ..synthesis.search import Budget, Jitter, read_jitter
from ..synthesis.synthesis import Joint, Synthesis, jointly, synthesised
from .arguments import Hop, Size, hop, size, tell, together, weight_list
from .sources import read

Durations = str | float | Sequence[float]  # ``"10ms"`` or one for each stage, ``"10ms,12ms,.."``
PARTS = {"forward": Kind.F, "input": Kind.I, "weight": Kind.W}
DEFAULT = 1e6  # nanoseconds, as in ``show``: F 1 ms, B 2 ms
BUDGET = "30s"
EVERY = 1.0  # seconds between two lines of progress


def synth(
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int = 1,
    placement: str | None = None,
    forward: Durations | None = None,
    input: Durations | None = None,
    weight: Durations | None = None,
    transfer: Hop | None = None,
    engine: str | None = None,
    cap: str | float | None = None,
    activation: str | Size | None = None,
    static: str | Size = 0,
    release: str = "w",
    split_layers: str | Sequence[float] | None = None,
    objective: str = "makespan",
    jitter: str | None = None,
    budget: str | float = BUDGET,
    evaluations: int | None = None,
    from_: str | PathLike[str] | None = None,
) -> Synthesis | Joint:
    """Search the schedule with the shortest step.

        >>> debubble.synth(ranks=8, microbatches=16, cap=6, budget="5s").makespan_ms

    One duration is per micro-batch and **rank** (a chunk takes 1/chunks of it); a list has one for each stage, its own
    time. What is not known of a measurement is read from it, or asked for.

    Args:
        ranks: of the pipeline.
        microbatches: per step.
        chunks: stages on each rank.
        placement: ``linear`` (one chunk), ``loop`` or ``v`` (two chunks); None for linear or loop.
        forward: F; 1 ms if none of the three is given.
        input: I, the gradient of the input.
        weight: W, the gradient of the weights.
        transfer: one hop between ranks, ``1ms,6-7=30ms`` by link, or one for each boundary of stages.
        engine: whose communication counts: ``megatron``, ``torch``, ..; None for ``ideal``.
        cap: most micro-batches that a rank may hold, ``6``, ``1.5p``, one for each rank; or bytes, ``80GB``.
        activation: bytes that a micro-batch keeps on a rank, or one for each rank; with a cap in bytes.
        static: bytes that lie on a rank all the time (weights, gradients, optimizer), or one for each rank.
        release: when a backward frees activations: at ``w``, ``half`` at I and half at W, or at ``i``.
        split_layers: weights of the layers, ``0.3,1*32,1.5``: durations are then those of a layer of weight 1, and
            the split is searched with the schedule.
        objective: ``makespan``, or ``span``, the longest rank's own time.
        jitter: how much ops vary, ``5%``, or ``measured`` with ``from_``; and a link that is slow now and then,
            ``5%,6-7=30ms@10%``.
        budget: seconds of search.
        evaluations: orders to simulate at most, for answers that do not depend on the machine; None for no limit.
        from_: a recording or a trace, whose costs, hops and engine count, and, without a cap, whose peaks of
            activations on each rank.

    Raises:
        InputError: what is missing, cannot be read or contradicts; all at once where there are several.
    """
    measured = None if from_ is None else measured_costs(from_, engine)
    shape = _shape(ranks, microbatches, chunks, placement, measured)
    spent = {"forward": forward, "input": input, "weight": weight}
    progress = _Progress()
    limit = Budget(_seconds(budget), evaluations, solver=evaluations is None)
    drawn = _jitter(jitter, measured)
    executes = _engine(engine, measured)
    if objective not in ("makespan", "span"):
        raise InputError(Fault(f"objective = {objective}", "no such objective", "give makespan or span"))
    if cap is None and measured is not None:
        room = measured.room(Release(release))
    else:
        room = _room(cap, activation, static, shape)

    def problem(durations: NDArray[np.int64]) -> Problem:
        costs = measured.costs if measured else Costs(durations, _transfers(transfer, shape))
        split = measured is None or measured.split
        made = Instance(
            shape.placement[0], shape.microbatches, costs, room, split=split, release=Release(release), engine=executes
        )
        return Problem(made, span=objective == "span")

    if split_layers is not None:
        if measured is not None:
            raise InputError(Fault("--split-layers beside --from", "a trace has one time a stage", "leave one out"))
        joint = jointly(_layers(split_layers), _of_a_layer(spent), shape, problem, (limit, _engines(), progress))
        if isinstance(joint, Synthesis):
            return _with_least_bytes(joint, cap, activation, static)
        return replace(joint, synthesis=_with_launch(joint.synthesis))
    if measured is None:
        found = synthesised(problem(_durations(spent, shape)), limit, _engines(), jitter=drawn, progress=progress)
        return _with_launch(_with_least_bytes(found, cap, activation, static))
    own = measured.order
    nothing = np.zeros((KINDS, shape.stages, 1), np.int64)  # its costs are there already
    found = synthesised(problem(nothing), limit, _engines(), jitter=drawn, own=own, progress=progress)
    return _with_launch(measured.beside(found, limits_memory=cap is None))


def _jitter(text: str | None, measured: Measured | None) -> Jitter | None:
    if text is None:
        return None
    return read_jitter(text, None if measured is None else measured.variation)


def _with_launch(found: Synthesis) -> Synthesis:
    """The answer with a sentence on Megatron-LM: it has options for two published orders, and none for another."""
    if found.order is None:
        return found
    flags = _megatron_flags(found.order)
    if flags:
        return replace(found, on_megatron=f"Megatron-LM launches this order: {flags}.")
    kinds = "1F1B and interleaved 1F1B in groups, with full backwards"
    return replace(
        found,
        on_megatron=f"No option of Megatron-LM launches this order: its layout options place layers, and what it runs"
        f" on them is {kinds}. PyTorch's runtime takes it as a file.",
    )


def _with_least_bytes(
    found: Synthesis, cap: str | float | None, activation: str | Size | None, static: str | Size
) -> Synthesis:
    """Where nothing fits and the cap was in bytes: how many the ranks need."""
    if found.order is not None or activation is None:
        return found
    need = _bytes(static, "static", found.ranks) + _bytes(activation, "activation", found.ranks)
    rank = int(need.argmax())
    gigabytes = np.ceil(need[rank] / 1e8) / 10  # up, so that what is named is enough
    said = f"rank {rank} needs most: --cap {gigabytes:g}GB would do in place of {cap}"
    return replace(found, notes=(*found.notes, said))


def _megatron_flags(order: Schedule) -> str:
    """The options with which Megatron-LM runs this order; empty if it cannot."""
    ranks, chunks = order.ranks, order.stages // order.ranks
    flags = {"pipeline": ranks}
    if chunks == 1:
        name, shape = "1f1b", Shape(ranks, order.microbatches)
    else:
        # Rank 0 begins with one group of its first chunk, whatever comes then.
        first = order.stage[: order.offsets[1]]
        group = int(np.argmax(first != 0))
        name, shape = "interleaved", Shape(ranks, order.microbatches, chunks, group=group or None)
        flags |= {"chunks": chunks, "group": group}
    try:
        theirs = build(name, shape)
    except InputError:
        return ""
    if not order.same_order(theirs):
        return ""
    return " ".join(f"{MEGATRON_KEYS[key]} {value}" for key, value in flags.items())


class _Progress:
    """Says now and then what the search has: seconds, the best, the bound."""

    def __init__(self) -> None:
        self._last, self._said = 0.0, (0, 0)

    def __call__(self, seconds: float, value: int, bound: int) -> None:
        if (value, bound) != self._said and seconds - self._last > EVERY:
            self._last, self._said = seconds, (value, bound)
            tell(f"{seconds:5.1f} s: best {duration(value)}, bound {duration(bound)}")


def _engines() -> Mapping[str, Callable[[Schedule], Engine]]:
    return {name: lambda schedule, name=name: engine_of(name, schedule) for name in ENGINES}  # type: ignore[misc]


def _shape(
    ranks: int | None, microbatches: int | None, chunks: int, placement: str | None, measured: Measured | None
) -> Schedule:
    """The pipeline as a schedule without ops: its placement and its micro-batches."""
    if measured is not None:
        order = measured.order
        said = {"ranks": (ranks, order.ranks), "microbatches": (microbatches, order.microbatches)}
        faults = [
            Fault(f"{name} = {given}", f"the measurement has {held}", "leave it out")
            for name, (given, held) in said.items()
            if given is not None and given != held
        ]
        if faults:
            raise InputError(*faults)
        return from_rows("synth", [()] * order.ranks, order.placement, order.microbatches)
    missing = [
        Fault(option, "a search needs to know it", f"give {example}")
        for option, example, value in (("--ranks", "-p 4", ranks), ("--microbatches", "-m 8", microbatches))
        if value is None
    ]
    word = placement or ("linear" if chunks == 1 else "loop")
    rules = {"linear": chunks == 1, "loop": chunks > 1, "v": chunks == 2}
    if word not in rules:
        missing.append(Fault(f"placement = {word}", "no such placement", "give linear, loop or v"))
    elif not rules[word]:
        rule = {"linear": "it has one chunk a rank", "loop": "it has several", "v": "it has two"}[word]
        missing.append(Fault(f"placement = {word}, chunks = {chunks}", rule, "give -v, or another placement"))
    if missing or ranks is None or microbatches is None:
        raise InputError(*missing)
    homes = v_placement(ranks) if word == "v" else loop_placement(ranks, chunks)
    return from_rows("synth", [()] * ranks, homes, microbatches)


def _durations(spent: Mapping[str, Durations | None], shape: Schedule) -> NDArray[np.int64]:
    """Nanoseconds of each kind and stage, int64[kinds, stages, 1]."""
    given = [name for name, value in spent.items() if value is not None]
    # All or none: the three are of one model, and a default beside a measured one would be a guess.
    if 0 < len(given) < len(PARTS):
        lacking = " and ".join(f"--{name}" for name in spent if name not in given)
        rule = f"{lacking} would have to be guessed"
        raise InputError(Fault(f"--{given[0]} without {lacking}", rule, "give all three, or none"))
    chunks = shape.stages // shape.ranks
    made = together(*(lambda name=name: _by_stage(spent[name], name, shape.stages, chunks) for name in PARTS))
    table = np.zeros((KINDS, shape.stages, 1), np.int64)
    for kind, values in zip(PARTS.values(), made, strict=True):
        table[kind, :, 0] = np.rint(values)
    if not table.any():
        values = ", ".join(f"--{name} {spent[name]}" for name in PARTS)
        raise InputError(Fault(values, "where nothing takes time every order is as good", "give one above 0"))
    table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table


def _by_stage(value: Durations | None, name: str, stages: int, chunks: int) -> NDArray[np.float64]:
    """One duration, shared out over chunks, or one for each stage."""
    if value is None:
        return np.full(stages, DEFAULT / chunks)
    texts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Sequence) else [value]
    made = together(*(lambda text=text: nanoseconds(str(text).strip(), name) for text in texts))
    if len(made) == 1 and stages > 1:
        return np.full(stages, made[0] / chunks)
    if len(made) != stages:
        rule = f"it is one duration of a rank, or one for each of the {stages} stages"
        raise InputError(Fault(f"{name} has {len(made)} durations", rule, f"give 1 or {stages}"))
    return np.array(made)


def _of_a_layer(spent: Mapping[str, Durations | None]) -> tuple[float, float, float]:
    """F, I and W of a layer of weight 1, nanoseconds."""
    one = _durations(spent, from_rows("", [()], [0], 1))
    return float(one[Kind.F, 0, 0]), float(one[Kind.I, 0, 0]), float(one[Kind.W, 0, 0])


def _layers(value: str | Sequence[float]) -> tuple[float, ...]:
    return weight_list(value, "split-layers")


def _transfers(value: Hop | None, shape: Schedule) -> NDArray[np.int64]:
    return np.rint(link_table(hops(hop(0 if value is None else value, "transfer")), shape)).astype(np.int64)


def _engine(name: str | None, measured: Measured | None) -> Engine:
    """The engine by name; of torch's two loops for one chunk a rank that which interleaves forwards and backwards."""
    if name is None:
        return IDEAL if measured is None else measured.engine
    return engine_of(name, build("1f1b", Shape(2, 2)))


def _seconds(value: str | float) -> float:
    """Seconds of a budget; a bare number is seconds here, for milliseconds are no search."""
    text = str(value)
    seconds = nanoseconds(text if text[-1:].isalpha() else f"{text}s", "budget") / 1e9
    if not 0 < seconds < 1e6:
        raise InputError(Fault(f"budget = {value}", "a search takes some time", "write it as in 30s"))
    return seconds


def _room(
    cap: str | float | None, activation: str | Size | None, static: str | Size, shape: Schedule
) -> NDArray[np.int64]:
    """Half activations of a chunk that fit on each rank, int64[ranks]."""
    ranks, chunks = shape.ranks, shape.chunks_of().max(axis=0)
    if cap is None:
        return no_limit(shape.placement[0], shape.microbatches)
    if not (isinstance(cap, str) and cap.strip().upper().endswith("B")):
        if activation is not None:
            rule = "it turns a cap in bytes into micro-batches, and this cap is a number of them"
            raise InputError(Fault(f"--activation beside --cap {cap}", rule, "leave it out, or give --cap as in 80GB"))
        held = np.array(caps_of(cap, ranks))
    else:
        if activation is None:
            rule = "what a micro-batch keeps has to be known"
            raise InputError(
                Fault(f"cap = {cap}", rule, "give --activation and --static, or a number of micro-batches")
            )
        free = count_bytes(cap, "cap") - _bytes(static, "static", ranks)
        held = free / _bytes(activation, "activation", ranks)
    whole = np.floor(2 * held * chunks + 1e-9)  # half activations of chunks; of a third of one nothing can be kept
    room: NDArray[np.int64] = np.minimum(whole, 2.0 * shape.microbatches * chunks).astype(np.int64)
    return room


def _bytes(value: str | Size, name: str, ranks: int) -> NDArray[np.float64]:
    """Bytes of each rank, float64[ranks]."""
    texts: list[str | Size] = [*value.split(",")] if isinstance(value, str) else [value]
    made = together(*(lambda text=text: size(text, name) for text in texts))
    if len(made) not in (1, ranks):
        rule = f"it is one size, or one for each of the {ranks} ranks"
        raise InputError(Fault(f"{name} has {len(made)} sizes", rule, f"give 1 or {ranks}"))
    if name == "activation" and min(made) == 0:
        raise InputError(Fault(f"{name} = {value}", "a micro-batch keeps something", "give more than 0 bytes"))
    found: NDArray[Any] = np.broadcast_to(np.array(made, float), (ranks,))
    return found


def _with_whole_backwards(costs: Costs, order: Schedule) -> Costs:
    """A full backward as its two halves, where only these were measured: named schedules may not split theirs."""
    if not order.splits or bool((order.kind == Kind.B).any()):
        return costs
    durations, transfers = costs.durations.copy(), costs.transfers.copy()
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    transfers[Kind.B] = transfers[Kind.I]
    return replace(costs, durations=durations, transfers=transfers)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The median window of a run.

    Args:
        order: what ran.
        costs: of each op and hop, as measured.
        split: whether its backwards were split into I and W; else a search cannot split them either.
        engine: that ran it.
        window: how long it took, nanoseconds.
        again: what simulating it with these costs under this engine gives, nanoseconds.
        variation: standard deviation of the logarithm of durations, of each kind and stage, over micro-batches and
            steps, float64[kinds, stages]; 0 where there is one op or none.
    """

    order: Schedule
    costs: Costs
    split: bool
    engine: Engine
    window: int
    again: int
    variation: NDArray[np.float64]

    def room(self, release: Release) -> NDArray[np.int64]:
        """Half activations of a chunk that each rank held at most: what fitted is known, what else would is not."""
        chunks = self.order.chunks_of().max(axis=0)
        held: NDArray[np.int64] = np.rint(2 * chunks * peak_activations(self.order, release)).astype(np.int64)
        return held

    def beside(self, found: Synthesis, *, limits_memory: bool) -> Synthesis:
        """The answer with what was measured next to it.

        Args:
            found: the answer.
            limits_memory: whether its cap was what the run held.
        """
        if found.makespan_ms is None:
            return found
        then = duration(1e6 * found.makespan_ms)
        compared = (
            f"measured: {duration(self.window)}; the same order simulated: {duration(self.again)}; this order: {then},"
            f" {self.again / (1e6 * found.makespan_ms):.2f} x"
        )
        notes = [compared, *found.notes]
        if limits_memory:
            notes.append("no rank holds more activations than the run did, which fitted; --cap allows more")
        return replace(
            found,
            measured_ms=self.window / MILLISECOND,
            measured_again_ms=self.again / MILLISECOND,
            notes=tuple(notes),
        )


def measured_costs(run: str | PathLike[str] | Observation, engine: str | None = None) -> Measured:
    """Read a recording or a trace for a search.

    Args:
        run: where it is, or what was read.
        engine: who ran it, if that is not in there.

    Raises:
        InputError: nobody says who ran it, or it is no pipeline whose orders can be searched.
    """
    observation = run if isinstance(run, Observation) else read(run)
    summary = summarise(observation)
    timeline = summary.window.timeline
    order = timeline.program.schedule
    faults = []
    if not searchable(order):
        rule = "a search orders whole micro-batches of one copy of the weights, with backwards, one op at a time"
        faults.append(Fault(f"from = {order.name}", rule, "give a run of such a schedule"))
    name = engine or observation.engine
    if not name:
        rule = "an order is good for one engine, and the measurement does not say which ran"
        faults.append(Fault("--engine", rule, "give it; ideal if sends wait for nobody and nothing takes turns"))
    if faults or not name:
        raise InputError(*faults)
    executes = engine_of(name, order)
    costs = _with_whole_backwards(fitted(timeline), order)
    again = makespan(lower(order, executes), costs)
    mixed = order.splits and not bool((order.kind == Kind.B).any())
    return Measured(order, costs, mixed, executes, timeline.makespan, again, _variation(summary.windows, order))


def _variation(windows: Sequence[Window], order: Schedule) -> NDArray[np.float64]:
    """How much durations vary, by kind and stage, over the windows that ran this order."""
    sigma = np.zeros((KINDS, order.stages))
    same = [each.timeline for each in windows if each.timeline.program.schedule.same_order(order)]
    # In logarithms, so that the spread is a share, whatever the op takes; an op of no time says nothing of it.
    taken = np.log(np.maximum([spent(timeline) for timeline in same], 1))
    for kind, stage in np.unique(np.stack([order.kind, order.stage]), axis=1).T:
        sigma[kind, stage] = taken[:, (order.kind == kind) & (order.stage == stage)].std()
    return sigma
