"""``show``: simulate a schedule, draw it, and say how big its bubble is and where each rank's time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Look, say, warn, wrote
from .given import Memory, Sizes, exchange_of, memory_options, schedule_of, size_options
from .options import Verb, json_option, look_options
from .pictures import KINDS as PICTURES
from .sending import Speeds, speed_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..account import Account
    from ..costs import Costs, Rates
    from ..draw.html import Page
    from ..exchange import Exchange
    from ..program import Sends
    from ..schedule import Schedule
    from ..timeline import Timeline
    from .closed_form import ClosedForm

_SAME = 1e-6  # relative: durations are whole nanoseconds, formulas are not


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A schedule simulated, with everything that is said about it.

    Args:
        schedule: what was asked for.
        rates: how fast it was said to be.
        timeline: simulated.
        account: where its time went.
        peak: activations that each rank holds at most, float64[ranks].
        lower_bound: nanoseconds that no schedule can beat.
        closed: the closed form that the simulation agrees with, or None.
        warnings: sentences.
    """

    schedule: Schedule
    rates: Rates
    timeline: Timeline
    account: Account
    peak: NDArray[np.float64]
    lower_bound: int
    closed: ClosedForm | None
    warnings: tuple[str, ...]


def _write_perfetto(shown: Shown, path: Path) -> None:
    from ..formats import perfetto

    perfetto.write(shown.timeline, path)


def _write_torch_csv(shown: Shown, path: Path) -> None:
    from ..formats import torch_csv

    torch_csv.write(shown.schedule, path)


def _picture(kind: str) -> Callable[[Shown, Path], None]:
    def write(shown: Shown, path: Path) -> None:
        from .pictures import write as write_picture
        from .show_text import title

        def page() -> Page:
            from .page import page_of_shown

            return page_of_shown(shown, document(shown))

        write_picture(kind, path, [(title(shown), shown.timeline)], page)

    return write


FILES: dict[str, tuple[str, Callable[[Shown, Path], None]]] = {
    **{kind: (sentence, _picture(kind)) for kind, sentence in PICTURES.items()},
    "perfetto": ("Write a trace that ui.perfetto.dev opens; gzipped where F ends in .gz.", _write_perfetto),
    "torch-csv": ("Write the schedule in PyTorch's format.", _write_torch_csv),
}


def _file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each kind of file; the command takes those that were given as ``files``."""

    @wraps(command)
    def with_files(*args: Any, **given: Any) -> Any:
        files = {name: path for name in FILES if (path := given.pop(name.replace("-", "_")))}
        return command(*args, files=files, **given)

    for name, (sentence, _) in reversed(FILES.items()):
        path = click.Path(path_type=Path)
        with_files = click.option(f"--{name}", type=path, metavar="F", help=sentence)(with_files)
    return with_files


class _Show(Verb):
    """Notes whether JSON is wanted before ``--list`` has its turn, which ends the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = "--json" in args
        return super().parse_args(ctx, args)


def _list(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from .report import emit
    from .show_text import catalog, catalog_document

    if ctx.meta[__name__]:
        emit(catalog_document())
    else:
        say(catalog())
    ctx.exit()


@click.command(cls=_Show, short_help="Draw a schedule.")
@click.argument("schedule")
@size_options
@speed_options
@click.option("--forward-only", is_flag=True, help="Leave the backwards out (inference).")
@memory_options
@_file_options
@look_options
@json_option
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the schedules.")
def show(
    schedule: str,
    sizes: Sizes,
    speeds: Speeds,
    forward_only: bool,
    memory: Memory,
    files: dict[str, Path],
    look: Look,
    as_json: bool,
) -> None:
    r"""Draw SCHEDULE, say how big its bubble is, and where the time of each rank goes.

    SCHEDULE is a name (see --list) or a schedule file in PyTorch's CSV format. Durations (20ms, 35us, 1.5s; a bare
    number is ms) are per micro-batch and rank.

    \b
    debubble show 1f1b -p 4 -m 8
    debubble show zb-auto -p 4 -m 8 --input 12ms --weight 6ms --forward 10ms --transfer 1ms --memory 2p
    debubble show interleaved -p 4 -m 8 -v 2 --stage-scale 1,1,1,1,1,1,1,1.6
    """
    order = _built(schedule_of(schedule, sizes, speeds.rates, memory), forward_only)
    given = None if forward_only or speeds.sends.value == "async" else exchange_of(schedule, order)
    shown = simulated(order, speeds.rates, memory.release, sends=speeds.sends, given=given)
    for sentence in shown.warnings:
        warn(f"warning: {sentence}")
    for option, path in files.items():
        FILES[option][1](shown, path)
        wrote(path)
    if as_json:
        from .report import emit

        emit(document(shown))
    else:
        from .show_text import text

        say(text(shown, look))


def _built(schedule: Schedule, forward_only: bool) -> Schedule:
    if forward_only and not schedule.forward_only:
        from ..schedules.forward_only import forward_only as without_backwards

        return without_backwards(schedule)
    return schedule


def simulated(
    schedule: Schedule,
    rates: Rates,
    release: str = "w",
    *,
    sends: Sends | None = None,
    given: Exchange | None = None,
) -> Shown:
    """Simulate a schedule at these rates and account for its time.

    Args:
        schedule: what to simulate.
        rates: how fast it is.
        release: when a split backward frees activations.
        sends: what a transfer takes up; None for nothing.
        given: where sends and receives stand, where somebody wrote that down.

    Raises:
        InputError: factors that do not suit the schedule.
        Refusal: the schedule is illegal or deadlocks.
    """
    from ..account import account
    from ..costs import costs_of
    from ..lower import lower
    from ..memory import Release, peak_activations
    from ..program import Sends
    from ..simulate import simulate
    from ..synth.bounds import lower_bound

    costs: Costs = costs_of(rates, schedule)
    timeline = simulate(lower(schedule, sends or Sends.ASYNC, given), costs)
    spent = account(timeline)
    return Shown(
        schedule=schedule,
        rates=rates,
        timeline=timeline,
        account=spent,
        peak=peak_activations(schedule, Release(release)),
        lower_bound=lower_bound(schedule, costs),
        closed=_agreed(schedule, rates, spent),
        warnings=_warnings(schedule),
    )


def document(shown: Shown) -> dict[str, Any]:
    """What ``--json`` prints."""
    from .report import MILLISECOND, bubbles, per_rank

    schedule = shown.schedule
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "makespan_ms": shown.account.window / MILLISECOND,
        "lower_bound_ms": shown.lower_bound / MILLISECOND,
        **bubbles(shown.account),
        "evidence": "exact" if shown.closed else shown.account.evidence,
        "sends": shown.timeline.program.sends.value,
        "per_rank": per_rank(shown.account, shown.peak),
        "warnings": shown.warnings,
    }


def _agreed(schedule: Schedule, rates: Rates, spent: Account) -> ClosedForm | None:
    """The closed form of the schedule's catalog entry, if the simulation found the same bubble."""
    from ..synth.catalog import ENTRIES
    from .closed_form import closed_form

    base = schedule.name.removesuffix(" forward only")
    if base not in ENTRIES or not spent.window:
        return None
    forward, gradient, weight, backward = rates.by_kind()
    if schedule.forward_only:
        gradient = weight = backward = 0.0
    pair = forward + backward if rates.pair is None else rates.pair
    times = {"F": forward, "I": gradient, "W": weight, "B": backward, "F&B": pair}
    sizes = {
        "p": schedule.ranks,
        "m": schedule.microbatches,
        "v": schedule.chunks_of().sum(0).max(),
        "s": schedule.slices,
    }
    closed = closed_form(ENTRIES[base].bubble, sizes | times)
    idle = spent.window - spent.compute
    return closed if closed and abs(idle - closed.idle).max() <= _SAME * spent.window else None


def _warnings(schedule: Schedule) -> tuple[str, ...]:
    m, p = schedule.microbatches, schedule.ranks
    if m >= p:
        return ()
    some = "1 micro-batch" if m == 1 else f"{m} micro-batches"
    return (f"m < p: {some} cannot keep {p} ranks busy at the same time; -m {p} is the least that can",)
