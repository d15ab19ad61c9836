"""``check``: prove a schedule or a configuration legal, or list every fault with its place and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from ..verbs.rates_argument import WAYS
from ..verbs.schedule_argument import Sizes, exchange_of, schedule_of
from .console import say
from .options import COUNT, DURATION, Parsed, Verb, json_option, rate_options, size_options

if TYPE_CHECKING:
    from ..core.costs import Rates
    from ..core.errors import Deadlock, Violation
    from ..core.exchange import Exchange
    from ..core.legality import Verdict
    from ..core.program import Sends
    from ..core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, as ``--json`` prints it."""

    key: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        said = [part for part in (self.key, self.value) if part and part not in self.rule]
        return ": ".join([*said, self.rule]) + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a user believes of a schedule.

    Args:
        makespan: nanoseconds.
        placement: ``loop``, ``v``, or the rank of each stage.
        batch: samples that are cut into micro-batches.
    """

    makespan: float | None = None
    placement: str | tuple[int, ...] | None = None
    batch: int | None = None


def _placement(text: str, name: str) -> str | tuple[int, ...]:
    if text in ("loop", "v"):
        return text
    if all(part.strip().isdecimal() for part in text.split(",")):
        return tuple(map(int, text.split(",")))
    raise InputError(Fault(f"{name} = {text}", "it says where stages live", "give loop, v, or ranks as in 0,1,2,3"))


@click.command(
    cls=Verb, short_help="Prove a schedule or a configuration legal.", context_settings={"ignore_unknown_options": True}
)
@click.argument("given", nargs=-1, type=click.UNPROCESSED, metavar="SCHEDULE|FILE|LAYOUT|FLAGS")
@size_options
@click.option(
    "--sends",
    type=click.Choice(list(WAYS)),
    multiple=True,
    default=("async", "rendezvous"),
    help="Ways of sending to try; give it again for more.  [default: async and rendezvous]",
)
@click.option("--makespan", type=DURATION, help="A makespan that somebody claims: can it be?")
@click.option("--placement", type=Parsed("loop|v|0,1,..", _placement), help="Where your stages live: does it fit?")
@click.option("--batch", type=COUNT, help="Samples that your micro-batches are cut from: is it divisible?")
@click.option("--framework", help="Whose configuration: megatron, torchtitan, torch, deepspeed, nemo or nanotron.")
@click.option("--backend", hidden=True)
@click.option("--model", help="Name or config.json of the model, for its layers and heads.")
@click.option("--gpu", help="Device, to tell whether there is room without recomputation.")
@rate_options
@json_option
def check(given: tuple[str, ...], sizes: Sizes, rates: Rates, *, as_json: bool, **said: Any) -> int:
    """Prove a schedule or a configuration legal, or list every fault with its place and a remedy.

    SCHEDULE is a schedule file in PyTorch's CSV format, with SEND and RECV cells or without, or a name. Each op must
    stand there once, where its stage lives and after what it builds on; each send must meet its receive; and no rank
    may wait for ever, whether sends wait or not.

    A configuration is a FILE (launch script, YAML, JSON, TOML, Python), Megatron's LAYOUT string, or FLAGS, the
    framework's own or plain ones (--gpus --tensor --pipeline --data --context --expert --layers --heads --kv-heads
    --experts --sequence --micro-batch --global-batch --split). All that it breaks is listed, each with the nearest
    legal values and the idle share that they cost. Exit status 1 where something is wrong.

    \b
    debubble check schedule.csv
    debubble check 1f1b -p 8 -m 32 --forward 1 --backward 1 --makespan 71
    debubble check pretrain.sh --framework megatron
    debubble check --framework megatron --layers 64 --pipeline 7
    """  # noqa: D301 - click wants the character, not two
    from .check_configuration import Asked, check_configuration, is_configuration, parted, refuse_strangers

    places, words = parted(given)
    asked = Asked(places, words, said["framework"] or said["backend"], said["model"], said["gpu"], sizes, said["batch"])
    if asked.framework or any(is_configuration(place) for place in places):
        return check_configuration(asked, as_json=as_json)
    refuse_strangers((*words, *places[1:]), ("--framework", "--json", *_options()))
    if not places:
        raise InputError(Fault("schedule", "it is required", "give a file, a name, or --framework and flags"))
    claims = Claims(said["makespan"], said["placement"], said["batch"])
    return _check_schedule(places[0], sizes, said["sends"], claims, rates, as_json=as_json)


def _options() -> list[str]:
    return [option for parameter in check.params for option in parameter.opts if option.startswith("-")]


def _check_schedule(
    schedule: str, sizes: Sizes, sends: tuple[str, ...], claims: Claims, rates: Rates, *, as_json: bool
) -> int:
    from ..core.legality import verify
    from ..core.program import Sends

    order = schedule_of(schedule, sizes)
    given = exchange_of(schedule, order)
    verdict = verify(order, given, tuple(Sends(way) for way in sends))
    faults = [
        *(_broken(order, given, violation) for violation in verdict.broken),
        *(_stuck(way, circle) for way, circle in verdict.stuck),
        *_claimed(order, claims),
        *(_too_short(order, rates, claims.makespan) if verdict.legal and claims.makespan is not None else ()),
    ]
    warnings = _warnings(order) if verdict.legal else ()
    if as_json:
        from .report import emit

        emit(_document(order, verdict, sends, faults, warnings))
    else:
        say(_text(order, given, sends, faults, warnings))
        for line in _waits(verdict):
            say(line)
    return 1 if faults else 0


def _broken(schedule: Schedule, given: Exchange | None, violation: Violation) -> Row:
    """A broken law: the cell that breaks it, or nothing where a cell is missing."""
    value = ""
    if violation.position >= 0:
        offsets = schedule.offsets if given is None else given.offsets
        row = int(offsets[violation.rank]) + violation.position
        op = row if given is None else int(given.op[row])
        value = schedule.op(op).text(schedule.slices)
    return Row(violation.place, value, violation.sentence, violation.remedy)


def _stuck(way: Sends, circle: Deadlock) -> Row:
    remedy = "reorder the ops of one rank of the circle"
    if any(text[:2] in ("S ", "R ") for text in circle.cycle):
        remedy = "let one of them receive first, or leave SEND and RECV cells out: they are placed where none can block"
    return Row(f"sends = {way.value}", " -> ".join(circle.cycle), "deadlock: each waits for the next for ever", remedy)


def _claimed(schedule: Schedule, claims: Claims) -> list[Row]:
    """Claims that need no clock."""
    faults = []
    held = _stages_by_rank(schedule)
    if claims.placement is not None and not _fits(schedule, claims.placement):
        text = claims.placement if isinstance(claims.placement, str) else ",".join(map(str, claims.placement))
        needed = ", ".join(f"rank {rank}: {' and '.join(map(str, stages))}" for rank, stages in enumerate(held))
        rule = f"{schedule.name} runs its stages elsewhere, so ranks would wait for each other for ever"
        faults.append(Row("placement", text, rule, f"place stages as it needs them: {needed}"))
    if claims.batch is not None and claims.batch % schedule.microbatches:
        faults.append(_indivisible(claims.batch, schedule.microbatches))
    return faults


def _indivisible(batch: int, microbatches: int) -> Row:
    least, larger = divmod(batch, microbatches)
    cut = [f"{larger} of {least + 1}", f"{microbatches - larger} of {least}"]
    if microbatches <= 8:
        cut = [str(least + (n < larger)) for n in range(microbatches)]
    legal = [n for n in range(1, batch + 1) if batch % n == 0]
    near = sorted(sorted(legal, key=lambda n: abs(n - microbatches))[:8])
    rule = f"a batch of {batch} falls into micro-batches of {', '.join(cut)} samples; ranks that expect one size hang"
    return Row("microbatches", str(microbatches), rule, f"give a divisor of {batch}: {', '.join(map(str, near))}")


def _fits(schedule: Schedule, placement: str | tuple[int, ...]) -> bool:
    from ..core.schedule import loop_placement, v_placement

    if placement == "v":
        wanted = v_placement(schedule.ranks)[0].tolist()
    elif placement == "loop":
        wanted = loop_placement(schedule.ranks, -(-schedule.stages // schedule.ranks))[0].tolist()
    else:
        wanted = list(placement)
    return bool(schedule.placement[0].tolist() == wanted)


def _stages_by_rank(schedule: Schedule) -> list[list[int]]:
    return [
        sorted({int(stage) for copy in schedule.placement for stage in (copy == rank).nonzero()[0]})
        for rank in range(schedule.ranks)
    ]


def _too_short(schedule: Schedule, rates: Rates, claimed: float) -> list[Row]:
    """A claim that no run of this order can keep."""
    from ..core.bounds import lower_bound
    from ..core.costs import costs_of
    from ..core.lower import lower
    from ..core.simulate import simulate
    from .report import MILLISECOND

    costs = costs_of(rates, schedule)
    least, bound = simulate(lower(schedule), costs).makespan, lower_bound(schedule, costs)
    if round(claimed) >= least:
        return []
    rule = f"{schedule.name} takes {least / MILLISECOND:g}ms with these durations"
    rule += f", and no order of the same ops less than {bound / MILLISECOND:g}ms"
    return [Row("makespan", f"{claimed / MILLISECOND:g}ms", rule, "the claim is impossible: correct it")]


def _warnings(schedule: Schedule) -> tuple[str, ...]:
    from ..core.op import Kind

    found = []
    if schedule.microbatches < schedule.ranks:
        found.append(f"m < p: {schedule.microbatches} micro-batches cannot keep {schedule.ranks} ranks busy")
    last = schedule.unit[(schedule.kind == Kind.F) & (schedule.stage == schedule.stages - 1)]
    if schedule.placement.shape[0] == 1 and (last[1:] < last[:-1]).any():
        rule = "PyTorch's runtime takes losses in order of execution, so its gradients would be wrong without an error"
        found.append(f"the last stage runs forwards out of order: {rule}; debubble run keeps losses by micro-batch")
    return tuple(found)


def _document(
    schedule: Schedule, verdict: Verdict, sends: tuple[str, ...], faults: list[Row], warnings: tuple[str, ...]
) -> dict[str, Any]:
    stuck = {way.value: _circle(circle) for way, circle in verdict.stuck}
    return {
        "legal": not faults,
        "faults": [{"key": row.key, "value": row.value, "rule": row.rule, "remedy": row.remedy} for row in faults],
        "warnings": warnings,
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "placement": _stages_by_rank(schedule),
        "deadlocks": {way: stuck.get(way) for way in sends} if not verdict.broken else {},
    }


def _waits(verdict: Verdict) -> list[str]:
    """Who waits for whom, of the first way of sending that deadlocks."""
    return [f"  {violation}" for _, circle in verdict.stuck[:1] for violation in circle.violations]


def _circle(circle: Deadlock) -> dict[str, Any]:
    return {
        "cycle": [text.split(" (")[0] for text in circle.cycle],
        "waits": [{"rank": v.rank, "position": v.position, "sentence": v.sentence} for v in circle.violations],
    }


def _text(
    schedule: Schedule, given: Exchange | None, sends: tuple[str, ...], faults: list[Row], warnings: tuple[str, ...]
) -> str:
    sizes = f"{schedule.ranks} ranks, {schedule.stages} stages, {schedule.microbatches} micro-batches"
    verdict = "legal" if not faults else "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = [f"{schedule.name}: {sizes}: {verdict}", *(f"  {row}" for row in faults)]
    if not faults:
        order = "placed for it" if given is None else "as it states them"
        lines += [f"  no deadlock with {WAYS[way]} (sends and receives {order})" for way in sends]
    return "\n".join([*lines, *(f"  warning: {sentence}" for sentence in warnings)])
