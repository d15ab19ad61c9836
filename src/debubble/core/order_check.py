"""An order held against the laws, against deadlock under each engine, and against what somebody claims of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from .bounds import lower_bound
from .costs import Rates, costs_of
from .engine import IDEAL, RENDEZVOUS, Engine, way_of
from .errors import Deadlock, Violation
from .laws import violations
from .lower import lower
from .posts import Exchange, mismatches
from .results import HIDDEN, Result
from .schedule import Kind, Schedule, loop_placement, v_placement
from .simulate import simulate
from .units import MILLISECOND

BOTH = (IDEAL, RENDEZVOUS)  # sends that wait for nobody, and sends that wait until the other side receives
MOST_LISTED = 8  # micro-batches whose sizes are listed one by one, and divisors that are offered


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a schedule.

    Args:
        broken: laws that it breaks, whatever the sends.
        stuck: engines under which it deadlocks, with the circle; none were tried where a law is broken.
    """

    broken: tuple[Violation, ...]
    stuck: tuple[tuple[Engine, Deadlock], ...]

    @property
    def legal(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken and not self.stuck


def verify(schedule: Schedule, given: Exchange | None = None, ways: tuple[Engine, ...] = BOTH) -> Verdict:
    """Judge a schedule without raising.

    Args:
        schedule: any order of ops.
        given: where its sends and receives stand, if somebody wrote that down.
        ways: engines to try; those that take no order of sends from outside use their own.
    """
    broken = violations(schedule)
    if broken:
        return Verdict(tuple(broken), ())
    try:
        lower(schedule)
    except Deadlock as circle:  # of computations alone, so there is no way of sending that helps
        return Verdict((), tuple((engine, circle) for engine in ways))
    if given is not None and (wrong := mismatches(schedule, given)):
        return Verdict(tuple(wrong), ())
    stuck = []
    for engine in ways:
        try:
            if engine.takes_orders:
                lower(schedule, engine, given)
            else:
                lower(schedule, engine)
        except Deadlock as circle:
            stuck.append((engine, circle))
    return Verdict((), tuple(stuck))


@dataclass(frozen=True, slots=True)
class OrderFault:
    """One fault.

    Args:
        key: where, or which claim.
        value: the op or value that is there; empty if it is missing.
        rule: what it breaks.
        remedy: what to do about it, or empty.
    """

    key: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        said = [part for part in (self.key, self.value) if part and part not in self.rule]
        text = ": ".join([*said, self.rule])
        if self.remedy:
            text += f"; {self.remedy}"
        return text


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits for ever: at which position, and for what."""

    rank: int
    position: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Circle:
    """Ops that wait for each other."""

    cycle: tuple[str, ...]
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class OrderCheck(Result):
    """An order that was checked.

    Args:
        legal: whether nothing is wrong with it, or with what was claimed.
        faults: all that is wrong.
        warnings: what is legal but poor.
        schedule: its name.
        ranks: positions in the pipeline.
        stages: of the model.
        microbatches: per step.
        placement: the stages of each rank.
        deadlocks: for each way of sending that was tried, who waits for whom; None if nobody does for ever.
        states_transfers: whether the file says where its sends and receives are.
    """

    schema: ClassVar[str] = "check-order/1"

    legal: bool
    faults: tuple[OrderFault, ...]
    warnings: tuple[str, ...]
    schedule: str
    ranks: int
    stages: int
    microbatches: int
    placement: tuple[tuple[int, ...], ...]
    deadlocks: Mapping[str, Circle | None]
    states_transfers: bool
    ways: tuple[str, ...] = field(metadata=HIDDEN)
    waits: tuple[str, ...] = field(metadata=HIDDEN)

    @property
    def exit_status(self) -> int:
        """Exit status: 1 if anything is wrong."""
        return int(not self.legal)


@dataclass(frozen=True, slots=True)
class Claims:
    """What a user believes of an order.

    Args:
        makespan: nanoseconds.
        placement: ``loop``, ``v``, or the rank of each stage.
        batch: samples that are cut into micro-batches.
    """

    makespan: float | None = None
    placement: str | tuple[int, ...] | None = None
    batch: int | None = None


def check_order(
    order: Schedule, placed: Exchange | None, ways: Sequence[Engine], claims: Claims, rates: Rates
) -> OrderCheck:
    """Hold an order against the laws, against deadlock under each way of sending, and against claims.

    Args:
        order: what to check.
        placed: where its sends and receives are, if somebody wrote that down.
        ways: of sending, to try.
        claims: what a user believes of it.
        rates: at which a claimed makespan is judged.
    """
    verdict = verify(order, placed, tuple(ways))
    faults = [_broken(order, placed, violation) for violation in verdict.broken]
    faults += [_stuck(way, circle) for way, circle in verdict.stuck]
    faults += _claimed(order, claims)
    if verdict.legal and claims.makespan is not None:
        faults += _too_short(order, rates, claims.makespan)
    warnings: tuple[str, ...] = ()
    if verdict.legal:
        warnings = tuple(_warnings(order))
    deadlocks: dict[str, Circle | None] = {}
    if not verdict.broken:  # no way of sending was tried with an order that breaks a law
        deadlocks = {way_of(way): None for way in ways}
        deadlocks |= {way_of(way): _circle(circle) for way, circle in verdict.stuck}
    return OrderCheck(
        legal=not faults,
        faults=tuple(faults),
        warnings=warnings,
        schedule=order.name,
        ranks=order.ranks,
        stages=order.stages,
        microbatches=order.microbatches,
        placement=_stages_by_rank(order),
        deadlocks=deadlocks,
        states_transfers=placed is not None,
        ways=tuple(way_of(way) for way in ways),
        waits=tuple(str(violation) for _, circle in verdict.stuck[:1] for violation in circle.violations),
    )


def _broken(order: Schedule, placed: Exchange | None, violation: Violation) -> OrderFault:
    """A broken law: the cell that breaks it, or nothing if a cell is missing."""
    value = ""
    if violation.position >= 0:
        # Positions count the cells of what was given, and there sends and receives have cells of their own.
        if placed is None:
            op = int(order.offsets[violation.rank]) + violation.position
        else:
            op = int(placed.op[int(placed.offsets[violation.rank]) + violation.position])
        value = order.op(op).text(order.slices)
    return OrderFault(violation.place, value, violation.sentence, violation.remedy)


def _stuck(way: Engine, circle: Deadlock) -> OrderFault:
    remedy = "reorder the ops of one rank of the circle"
    if any(text[:2] in ("S ", "R ") for text in circle.cycle):
        remedy = "let one of them receive first, or leave SEND and RECV cells out: they are placed where none can block"
    rule = "deadlock: each waits for the next for ever"
    return OrderFault(f"sends = {way_of(way)}", " -> ".join(circle.cycle), rule, remedy)


def _circle(circle: Deadlock) -> Circle:
    cycle = tuple(text.split(" (")[0] for text in circle.cycle)
    return Circle(cycle, tuple(Wait(v.rank, v.position, v.sentence) for v in circle.violations))


def _claimed(order: Schedule, claims: Claims) -> Iterator[OrderFault]:
    """Claims that need no clock."""
    if claims.placement is not None and not _fits(order, claims.placement):
        text = claims.placement
        if not isinstance(text, str):
            text = ",".join(map(str, text))
        held = enumerate(_stages_by_rank(order))
        needed = ", ".join(f"rank {rank}: {' and '.join(map(str, stages))}" for rank, stages in held)
        rule = f"{order.name} runs its stages elsewhere, so ranks would wait for each other for ever"
        yield OrderFault("placement", text, rule, f"place stages as it needs them: {needed}")
    if claims.batch is not None and claims.batch % order.microbatches:
        yield _indivisible(claims.batch, order.microbatches)


def _indivisible(batch: int, microbatches: int) -> OrderFault:
    least, larger = divmod(batch, microbatches)
    cut = [f"{larger} of {least + 1}", f"{microbatches - larger} of {least}"]
    if microbatches <= MOST_LISTED:
        cut = [str(least + (n < larger)) for n in range(microbatches)]
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    near = sorted(sorted(divisors, key=lambda n: abs(n - microbatches))[:MOST_LISTED])
    rule = f"a batch of {batch} falls into micro-batches of {', '.join(cut)} samples; ranks that expect one size hang"
    remedy = f"give a divisor of {batch}: {', '.join(map(str, near))}"
    return OrderFault("microbatches", str(microbatches), rule, remedy)


def _fits(order: Schedule, placement: str | tuple[int, ...]) -> bool:
    if placement == "v":
        wanted = v_placement(order.ranks)[0].tolist()
    elif placement == "loop":
        wanted = loop_placement(order.ranks, -(-order.stages // order.ranks))[0].tolist()
    else:
        wanted = list(placement)
    return bool(order.placement[0].tolist() == wanted)


def _stages_by_rank(order: Schedule) -> tuple[tuple[int, ...], ...]:
    held: list[set[int]] = [set() for _ in range(order.ranks)]
    for copy in order.placement.tolist():
        for stage, rank in enumerate(copy):
            held[rank].add(stage)
    return tuple(tuple(sorted(stages)) for stages in held)


def _too_short(order: Schedule, rates: Rates, claimed: float) -> Iterator[OrderFault]:
    """A claim that no run of this order can keep."""
    costs = costs_of(rates, order)
    least, bound = simulate(lower(order), costs).makespan, lower_bound(order, costs)
    if round(claimed) >= least:
        return
    rule = f"{order.name} takes {least / MILLISECOND:g}ms with these durations"
    rule += f", and no order of the same ops less than {bound / MILLISECOND:g}ms"
    yield OrderFault("makespan", f"{claimed / MILLISECOND:g}ms", rule, "the claim is impossible: correct it")


def _warnings(order: Schedule) -> Iterator[str]:
    if order.microbatches < order.ranks:
        yield f"m < p: {order.microbatches} micro-batches cannot keep {order.ranks} ranks busy"
    last = order.unit[(order.kind == Kind.F) & (order.stage == order.stages - 1)]
    if order.placement.shape[0] == 1 and (last[1:] < last[:-1]).any():
        rule = "PyTorch's runtime takes losses in order of execution, so its gradients would be wrong without an error"
        yield f"the last stage runs forwards out of order: {rule}; debubble run keeps losses by micro-batch"
