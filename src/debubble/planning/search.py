"""The search: every legal layout of a model on so many devices, screened by closed forms, simulated exactly, ranked.

What is not legal is counted by its reason; what looks most promising on the screen is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ..config.config import RECOMPUTE, Layout
from ..config.plan import Layouts, Plan, Question
from ..core.errors import Fault, InputError
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import Calibration
from ..frameworks.catalog import framework_of
from ..frameworks.framework import Framework
from ..schedules.catalog import CATALOG
from .batch import Rejected, chunks_of, sizes_of, unlaunchable, unsuited
from .idle import SCHEDULES, columns
from .judge import UNSAID, Screened, Wiring, judge_all, screen
from .splits import candidate_splits, head_in_layers, split_by_speed
from .verdict import OWN, SAME, Found, Interval, by_rank, nearest, published, traits, weighed

USUAL = ("1f1b", "interleaved", "zb-h1", "zb-v")
MOST_CHUNKS = 12  # of a rank, if nobody asks for more: each adds a hop to every micro-batch
UNEVEN_CHUNKS = 3  # up to which layers need not divide over all stages
MOST_RANKS = 128  # as many as the deepest published models have layers
LARGEST_MICRO_BATCH = 8  # beyond it kernels gain nothing, and the bubble grows
SHORTEST_SLICE = 4096  # tokens of a sequence on one device of a context group, unless the user asks for less
MOST_LAYOUTS = 400_000  # three seconds of screening
MOST_OPS = 400_000  # of a schedule that is simulated: half a second


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All legal layouts.

    Args:
        layouts: as columns.
        family: which rows differ in recomputation alone, int64[n]; in each family the least comes first.
        split: which of ``splits`` each row has, int64[n].
        splits: layers of each stage.
        base: what all share.
        in_pipelines: what else all of 2 ranks or more share.
        rejected: why others fell out, and how many.
    """

    layouts: Layouts
    family: NDArray[np.int64]
    split: NDArray[np.int64]
    splits: tuple[tuple[int, ...], ...]
    base: Layout
    in_pipelines: Mapping[str, bool]
    rejected: tuple[Rejected, ...]

    def __len__(self) -> int:
        return len(self.family)

    def layout(self, row: int) -> Layout:
        """One row as a layout."""
        numbers = {name: int(getattr(self.layouts, name)[row]) for name in _VARIED if name not in _WORDS}
        if numbers["expert_tensor"] == numbers["tensor"]:
            numbers["expert_tensor"] = 0  # as a layout says it that means the tensor group
        limit = float(self.layouts.recompute_layers[row])
        base = replace(self.base, **self.in_pipelines) if numbers["pipeline"] > 1 else self.base  # type: ignore[arg-type]
        return replace(
            base,
            **numbers,  # type: ignore[arg-type]  # the whole numbers of a layout
            schedule=SCHEDULES[int(self.layouts.schedule[row])],
            recompute=RECOMPUTE[int(self.layouts.recompute[row])],
            recompute_layers=None if np.isinf(limit) else int(limit),
            layers=self.splits[int(self.split[row])],
        )


_WORDS = ("schedule", "recompute", "recompute_layers")
_DEGREES = ("tensor", "pipeline", "data", "context", "expert", "expert_tensor")
_VARIED = (*_DEGREES, "zero", "chunks", "micro_batch", "microbatches", *_WORDS)
Row = tuple[float, ...]


def space(model: Model, cluster: Cluster, question: Question) -> Space:
    """Enumerate.

    Raises:
        InputError: a schedule that does not exist, or more layouts than a search can look at.
    """
    builder = _Builder(model, cluster, question)
    rows = list(_bounded(builder.rows()))
    table = np.array(rows, np.float64).reshape(len(rows), len(_VARIED) + 2)
    one = columns([question.base], model.layers)
    splits = tuple(split for split, _ in builder.splits)
    number = table[:, -1].astype(np.int64)
    ends = np.array([_ends(split, ranks) for split, ranks in builder.splits], np.float64).reshape(-1, 3)
    filled = {f.name: np.full(len(rows), getattr(one, f.name)[0]) for f in fields(Layouts)}
    filled |= {name: table[:, column] for column, name in enumerate(_VARIED)}
    # DeepSpeed, say, behaves otherwise in pipelines than without one.
    piped = dict(builder.framework.in_pipelines) if builder.framework else {}
    for name in question.config.said(*piped):
        del piped[name]  # what was asked for holds in pipelines too
    filled |= {name: np.where(filled["pipeline"] > 1, value, filled[name]) for name, value in piped.items()}
    filled |= {name: ends[number, column] for column, name in enumerate(("first", "most", "last"))}
    rejected = tuple(Rejected(cause, reason, {}, count) for (cause, reason), count in builder.refused.items())
    return Space(Layouts(**filled), table[:, -2].astype(np.int64), number, splits, question.base, piped, rejected)


def _ends(split: tuple[int, ...], ranks: int) -> tuple[float, float, float]:
    """Layers of the first stage, of one in between, and of the last, as the screen takes them.

    Where ranks have several chunks, the one in between is a chunk of the fullest rank on average: 32 layers on 15 of 16
    stages are 3 and 2, but no rank of two holds eight times 3.
    """
    chunks = len(split) // ranks
    # One chunk a rank: its stage is its rank.
    if chunks == 1:
        return split[0], max(split[1:-1], default=0), split[-1]
    fullest = max(sum(split[rank::ranks]) for rank in range(ranks))
    return split[0], fullest / chunks, split[-1]


def _bounded(rows: Iterator[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number >= MOST_LAYOUTS:
            rule = f"there are more than {MOST_LAYOUTS:,} layouts"
            raise InputError(Fault("plan", rule, "fix some of --tensor, --pipeline, --micro-batch, --schedule"))
        yield row


@dataclass(frozen=True, slots=True)
class _Builder:
    model: Model
    cluster: Cluster
    question: Question
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    splits: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict)
    # Of each number of ranks and chunks, and of each split: met again for every spread over devices.
    candidates: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    modes: dict[tuple[int, ...], tuple[tuple[int, float], ...]] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """Devices of the whole job."""
        return self.question.config.number("gpus")

    @property
    def batch(self) -> int:
        """Samples of all replicas in a step."""
        return self.question.config.number("global_batch")

    @property
    def framework(self) -> Framework | None:
        """What is to launch it; None for any."""
        name = self.question.config.framework
        return None if name is None else framework_of(name)

    def rows(self) -> Iterator[Row]:
        """All rows, family after family."""
        family = 0
        for degrees in self._degrees():
            *spread, b, m = degrees
            for schedule, chunks, split in self._pipelines(spread[1], m):
                number = self.splits.setdefault((split, spread[1]), len(self.splits))
                if split not in self.modes:
                    self.modes[split] = tuple(self._recompute(split))
                where = (*spread, chunks, b, m, SCHEDULES.index(schedule))
                for mode in self.modes[split]:
                    yield (*where, *mode, family, number)
                family += 1

    def _degrees(self) -> Iterator[tuple[int, ...]]:
        """``_DEGREES``, what replicas share out, micro-batch, micro-batches."""
        for t, c, p in self._replicas():
            d = self.gpus // (t * c * p)
            # Experts are spread over context and data alike: Megatron-LM folds both into expert groups.
            for (e, shards), zero in product(self._experts(t, c * d), tuple(self._zeros(p))):
                for b in self._sizes(d):
                    yield t, p, d, c, e, shards, zero, b, self.batch // (d * b)

    def _zeros(self, ranks: int) -> Iterator[int]:
        """What replicas share out: as the framework does by itself, or of that what was asked for."""
        backend = self.framework
        if backend is None or backend.zeros is None:
            yield self.question.base.zero
            return
        able = backend.zeros(ranks)
        for zero in self.question.values("zero") or able[:1]:
            if zero in able:
                yield zero
            else:
                what = " or ".join(map(str, able))
                self._refuse("framework", f"{backend.title} shares a model out as ZeRO-{what} does on {ranks} ranks")

    def _replicas(self) -> Iterator[tuple[int, int, int]]:
        """Tensor, context and pipeline, where they leave the replicas that were asked for."""
        gpus = self.gpus
        data = [d for d in self.question.values("data") if gpus % d == 0]
        for d in set(self.question.values("data")).difference(data):
            self._refuse("devices", f"{d} replicas do not divide {gpus} GPUs; {_nearest(gpus, d)}")
        if self.question.values("data") and not data:
            return
        for t, c, p in self._replica():
            d = gpus // (t * c * p)
            if not data or d in data:
                yield t, c, p
            else:
                asked = " or ".join(map(str, data))
                self._refuse("devices", f"tensor {t} x context {c} x pipeline {p} leaves {d} replicas, not {asked}")

    def _replica(self) -> Iterator[tuple[int, int, int]]:
        """Tensor, context and pipeline of one replica, however many there are."""
        for t in self._tensors():
            for c in self._contexts(self.gpus // t):
                for p in self._ranks(self.gpus // (t * c)):
                    yield t, c, p

    def _refuse(self, cause: str, reason: str) -> None:
        self.refused[cause, reason] += 1

    def _lacks(self, what: str) -> bool:
        """Whether the framework that is to launch it cannot be told this of a layout."""
        backend = self.framework
        if backend is None or what not in backend.lacks:
            return False
        if what in ("context", "expert") and self.question.values(what):
            self._refuse("framework", f"{backend.title} has no {what} parallelism in its pipelines")
        return True

    def _tensors(self) -> Iterator[int]:
        model, gpus = self.model, self.gpus
        for t in self.question.values("tensor") or _divisors(gpus, self.cluster.gpus_per_node):
            if gpus % t:
                self._refuse("devices", f"tensor {t} does not divide {gpus} GPUs; {_nearest(gpus, t)}")
            elif model.heads % t:
                self._refuse("heads", f"tensor {t} does not share {model.heads} heads without rest")
            # Fewer heads than devices are copied, as Megatron-LM does with groups of queries; no head is cut.
            elif model.kv_heads % t and t % model.kv_heads:
                self._refuse("heads", f"tensor {t} is no multiple or divisor of {model.kv_heads} key-value heads")
            else:
                yield t

    def _contexts(self, rest: int) -> Iterator[int]:
        sequence = self.question.base.sequence
        longest = max(sequence // SHORTEST_SLICE, 1)
        for c in self.question.values("context") or _powers(min(rest, longest)):
            if c > 1 and self._lacks("context"):
                continue
            if rest % c:
                near = _nearest(rest, c)
                self._refuse("devices", f"context {c} does not divide the {rest} GPUs that tensor leaves; {near}")
            # Each device takes one piece from the front and one from the back, so that causal work comes out even.
            elif c > 1 and sequence % (2 * c):
                self._refuse("sequence", f"a sequence of {sequence} is not cut into 2 x {c} pieces")
            else:
                yield c

    def _ranks(self, rest: int) -> Iterator[int]:
        for p in self.question.values("pipeline") or _divisors(rest, MOST_RANKS):
            if rest % p:
                near = _nearest(rest, p)
                self._refuse(
                    "devices", f"pipeline {p} does not divide the {rest} GPUs that tensor and context leave; {near}"
                )
            elif self.cluster.kinds_of_ranks(p) is None:
                self._refuse("devices", f"pipeline {p} would lay one rank on devices of two kinds")
            elif p > self.model.layers:
                self._refuse("layers", f"{self.model.layers} layers cannot fill {p} ranks")
            else:
                yield p

    def _experts(self, tensor: int, replicas: int) -> Iterator[tuple[int, int]]:
        """Devices over which experts are spread, and those that share each of them."""
        e = self.model.experts
        if e is None:
            yield 1, tensor
            return
        for shards in self._shards(tensor, tensor * replicas):
            group, what = tensor * replicas // shards, "data x context"
            if shards != tensor:
                what = f"tensor x {what} / expert tensor {shards} ="
            for n in self.question.values("expert") or _divisors(gcd(group, e.count), e.count):
                if n > 1 and self._lacks("expert"):
                    continue
                if group % n or e.count % n:
                    near = _nearest(gcd(group, e.count), n)
                    self._refuse("experts", f"expert {n} does not divide {what} {group} and {e.count} experts; {near}")
                else:
                    yield n, shards

    def _shards(self, tensor: int, devices: int) -> Iterator[int]:
        """Devices that share each expert: the tensor group, or each device has its experts whole."""
        backend = self.framework
        lacks = backend.lacks if backend else frozenset()
        usual = tuple(dict.fromkeys((tensor, 1)))  # both are common; what lies between is asked for by number
        if "expert" in lacks:
            usual = (tensor,)
        elif "expert tensor" in lacks:
            usual = (1,)
        for n in self.question.values("expert_tensor") or usual:
            if backend and n > 1 and "expert tensor" in lacks:
                self._refuse("framework", f"{backend.title} leaves each expert whole, on one device")
            elif devices % n:
                near = _nearest(devices, n)
                self._refuse("experts", f"expert tensor {n} does not divide the {devices} devices of a stage; {near}")
            else:
                yield n

    def _sizes(self, data: int) -> Iterator[int]:
        batch = self.batch
        if batch % data:
            near = sorted({batch // data * data, (batch // data + 1) * data} - {0})
            nearest = " or ".join(map(str, near))
            self._refuse("batch", f"a global batch of {batch} does not divide over {data} replicas; nearest {nearest}")
            return
        for b in self.question.values("micro_batch") or _divisors(batch // data, LARGEST_MICRO_BATCH):
            if batch % (data * b):
                self._refuse("batch", f"micro-batches of {b} do not fill the {batch // data} samples of a replica")
            else:
                yield b

    def _pipelines(self, p: int, m: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Schedule, chunks and split of layers for so many ranks and micro-batches."""
        if p == 1:
            if not self.question.values("chunks") or 1 in self.question.values("chunks"):
                yield "1f1b", 1, (self.model.layers,)
            return
        for name in self.question.schedules or USUAL:
            for v in self._chunks(name, p):
                if self._suits(name, p, m, v):
                    yield from ((name, v, split) for split in self._splits(p, v))

    def _suits(self, name: str, p: int, m: int, v: int) -> bool:
        """Whether a schedule takes this shape; if not, why is counted."""
        reason = f"more than {MOST_OPS:,} ops in a step"
        if 2 * p * v * m <= MOST_OPS:
            reason = unsuited(name, p, m, v)
        if not reason and self.framework:
            reason = unlaunchable(self.framework.name, name, p, m, v, zero=self.question.base.zero)
        if reason:
            self._refuse("schedule", reason)
        return not reason

    def _chunks(self, name: str, p: int) -> Iterator[int]:
        wanted, any_number = self.question.values("chunks"), CATALOG[name].any_chunks
        if any_number and not wanted:  # few chunks even where stages come out unequal
            layers = self.model.layers
            wanted = tuple(v for v in range(2, MOST_CHUNKS + 1) if v <= UNEVEN_CHUNKS or layers % (p * v) == 0)
        least = 2 if any_number else 1  # interleaved with one chunk is 1F1B
        for v in chunks_of(name, wanted):
            if v > self.model.layers // p and self.question.values("chunks"):
                self._refuse("layers", f"{self.model.layers} layers cannot fill {p} x {v} stages")
            elif least <= v <= self.model.layers // p:
                yield v

    def _splits(self, ranks: int, chunks: int) -> Iterator[tuple[int, ...]]:
        """The candidates, as far as the framework has words for them; its own alone where it deals layers by itself."""
        backend = self.framework
        if backend and backend.deals:
            stages = ranks * chunks
            found = backend.deals(sizes_of(self.model, self.question.base.sequence), stages)
            if not found:
                self._refuse("layers", f"{backend.title} would leave some of {stages} stages without a layer")
            yield from found
            return
        if self.cluster.parts:
            yield self._by_speed(ranks, chunks)
        sizes = (ranks, chunks)
        if sizes not in self.candidates:
            found = candidate_splits(self.model, ranks, chunks, self.question.base.sequence)
            bare = not self._lacks("bare ends")
            self.candidates[sizes] = tuple(split for split in found if bare or min(split))
        yield from self.candidates[sizes]

    def _by_speed(self, ranks: int, chunks: int) -> tuple[int, ...]:
        """More layers where devices are faster."""
        kinds = self.cluster.kinds_of_ranks(ranks) or ()
        speeds = [self.cluster.parts[kind].device.speed for kind in kinds]
        head = head_in_layers(self.model, self.question.base.sequence)
        return split_by_speed(self.model.layers, speeds * chunks, head)

    def _recompute(self, split: tuple[int, ...]) -> Iterator[tuple[int, float]]:
        """Mode and layers of each stage, the least first; the one mode that was asked for, if any."""
        asked = self.question.config.recompute
        if asked in (None, "none"):
            yield 0, np.inf
        # Without parts to run again, and scores that are not kept anyway, selective recomputation changes nothing.
        has_parts = not self.question.base.fused_attention or self.question.base.recompute_modules
        if asked == "selective" or (asked is None and has_parts):
            yield 1, np.inf
        if asked in ("none", "selective"):
            return
        # Of what lies between none and all, quarters: memory falls evenly with each layer, so a finer choice saves
        # less than a quarter of a full recomputation.
        most = max(split)
        if not self._lacks("some layers"):
            for layers in sorted({-(-most * quarter // 4) for quarter in (1, 2, 3)} - {most}):
                yield 2, layers
        yield 2, np.inf


def _divisors(of: int, most: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, min(of, most) + 1) if of % n == 0)


def _nearest(of: int, value: int) -> str:
    """The divisors next to a value that is none."""
    below, above = 1, 0
    for divisor in _divisors(of, of):
        if divisor <= value:
            below = divisor
        else:
            above = divisor
            break
    return f"nearest {below} or {above}" if above else f"nearest {below}"


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(most.bit_length()) if 2**n <= most)


SIMULATED = 200  # layouts: nearly all the time of a search
NEAR = 1.1  # the screen's bytes over the device's, up to which a layout is judged exactly before it is ruled out
AT_ONCE = 20_000  # layouts a screen takes in one go: some 100 columns of them stay in a few hundred megabytes


def search(
    model: Model,
    cluster: Cluster,
    question: Question,
    calibration: Calibration | None = None,
    *,
    simulated: int = SIMULATED,
    wiring: Wiring = UNSAID,
) -> Found:
    """Find the fastest layouts that fit.

    Args:
        model: what is trained.
        cluster: on what.
        question: what is fixed and what may be chosen.
        calibration: of the cost model; None for the generic one.
        simulated: how many layouts to simulate.
        wiring: under which engine, and with which hops. The screen before takes hops from the estimate.

    Raises:
        InputError: nothing can be enumerated (see ``space``).
    """
    named = question.config.framework
    framework = framework_of(named) if named else None
    legal = space(model, cluster, question)
    seen = _screened(model, cluster, legal, calibration)
    memory = cluster.device.usable
    # The closed form errs by some per cent, and the exact order is what is asked for: many are simulated, not the best.
    chosen = promising(legal, seen, memory, simulated)
    judged = judge_all(model, cluster, [legal.layout(row) for row in chosen], calibration, wiring)
    judged = [_remarked(plan, framework) for plan in judged]
    if judged:  # by the step to expect, not by the one on a cluster that does not stall
        judged = weighed(judged, _rows(legal, chosen), model, cluster, calibration)
    fitting = sorted((plan for plan in judged if plan.fits), key=lambda plan: by_rank(plan, memory))
    plans = tuple(sorted(without_twins(fitting), key=lambda plan: by_rank(plan, memory)))
    refused = [*legal.rejected, *_ruled_out(seen, chosen, memory, (len(judged), len(fitting), len(plans)))]
    return Found(
        plans=plans,
        legal=len(legal),
        simulated=len(judged),
        rejected=_together(refused),
        interval=_interval(model, cluster, plans[0].layout if plans else question.base, framework, calibration),
        memory=memory,
        closest=float(seen.peak_bytes.min()) if len(legal) else 0.0,
    )


def _interval(
    model: Model, cluster: Cluster, layout: Layout, framework: Framework | None, calibration: Calibration | None
) -> Interval:
    """How far off a prediction may be: by the user's own rows where there are any, else by published runs."""
    if calibration is not None and calibration.rows:
        return Interval({OWN: calibration.source or "the user"}, calibration.rows, calibration.band, 1.0)
    return nearest(traits(model, cluster, layout, framework.name if framework else ""), published())


def _ruled_out(
    seen: Screened, chosen: NDArray[np.int64], memory: float, left: tuple[int, int, int]
) -> Iterator[Rejected]:
    """Why each legal layout that is no plan is none: with the plans, their counts sum to the legal layouts.

    Args:
        seen: the screen of all.
        chosen: rows that were simulated.
        memory: bytes of a device.
        left: how many were simulated, of them fit, and of them are no twins.
    """
    judged, fitting, plans = left
    others = np.delete(seen.peak_bytes, chosen) > memory
    reasons = (
        ("memory", f"the fullest rank needs more than {memory / 1e9:.0f} GB", int(others.sum()) + judged - fitting),
        (
            "behind",
            f"slower than the {judged} simulated by the closed form, or by the lower bound where none holds, or "
            "recomputes needlessly",
            int((~others).sum()),
        ),
        ("twin", "the same work as another: so many samples a device, in a context group or without", fitting - plans),
    )
    yield from (Rejected(cause, reason, {}, count) for cause, reason, count in reasons if count)


def _remarked(plan: Plan, backend: Framework | None) -> Plan:
    """With what the framework that is to launch it does by itself."""
    if backend is None or backend.remark is None:
        return plan
    return replace(plan, reasons=(*plan.reasons, backend.remark(plan.layout)))


def _screened(model: Model, cluster: Cluster, legal: Space, calibration: Calibration | None) -> Screened:
    parts = [
        screen(model, cluster, _rows(legal, slice(start, start + AT_ONCE)), calibration)
        for start in range(0, len(legal), AT_ONCE)
    ]
    if not parts:
        return Screened(np.zeros(0), np.zeros(0))
    return Screened(np.concatenate([p.step for p in parts]), np.concatenate([p.peak_bytes for p in parts]))


def _rows(legal: Space, which: slice | NDArray[np.int64]) -> Layouts:
    columns = {name: getattr(legal.layouts, name)[which] for name in type(legal.layouts).__slots__}
    return replace(legal.layouts, **columns)


def promising(legal: Space, seen: Screened, memory: float, many: int) -> NDArray[np.int64]:
    """Rows to simulate, fastest first: of each family those near the limit, and the two that recompute least below it.

    Args:
        legal: the space.
        seen: its screen.
        memory: bytes of a device.
        many: rows at most.
    """
    near = np.flatnonzero(seen.peak_bytes <= NEAR * memory)
    family, below = legal.family[near], (seen.peak_bytes[near] <= memory).astype(np.int64)
    # Less recomputation is always faster: behind two rows of a family that surely fit, no third can win.
    first = np.searchsorted(family, family)  # the rows of a family lie together
    before = np.cumsum(below) - below
    short = near[before - before[first] < 2]
    fastest = short[np.argsort(seen.step[short], kind="stable")]
    is_doubtful = seen.peak_bytes[fastest] > memory  # by the screen too large, at most half of what is simulated
    doubtful = np.flatnonzero(is_doubtful)[: many // 2]
    safe = np.flatnonzero(~is_doubtful)[: many - len(doubtful)]
    return fastest[np.sort(np.concatenate((doubtful, safe)))]


def without_twins(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """One of each set of layouts that the estimate cannot tell apart, the one with the fewest devices a sequence.

    A micro-batch of two samples on two devices of a context group, and of one sample on one, are the same work.

    Args:
        plans: best first.
    """
    kept: dict[tuple[object, ...], Plan] = {}
    for plan in plans:
        alone = replace(plan.layout, context=1, data=1, micro_batch=1)
        share = plan.layout.micro_batch / plan.layout.context
        key = (alone, share)
        other = kept.get(key)
        # The first that comes is the fastest; one within what could be measured replaces it if it is plainer.
        near = other is not None and plan.expected_step <= other.expected_step * (1 + SAME)
        if other is None or (near and plan.layout.context < other.layout.context):
            kept[key] = plan
    return tuple(kept.values())


def _together(refused: list[Rejected]) -> tuple[Rejected, ...]:
    """Equal reasons counted, the most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    for one in refused:
        counts[one.cause, one.reason] = counts.get((one.cause, one.reason), 0) + one.count
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(Rejected(cause, reason, {}, count) for (cause, reason), count in ranked)
