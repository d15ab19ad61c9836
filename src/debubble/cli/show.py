"""``show``: simulate a schedule, draw it, and say how big its bubble is and where each rank's time goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import Look, say, warn, wrote
from .console import look as stdout_look
from .options import Verb, json_option, look_options
from .pictures import KINDS as PICTURES
from .schedule_argument import Memory, Sizes, exchange_of, memory_options, schedule_of, size_options
from .shown import Shown, document, simulated
from .transfer_options import Speeds, speed_options

if TYPE_CHECKING:
    from ..core.schedule import Schedule
    from ..drawing.html import Page


def _write_perfetto(shown: Shown, path: Path) -> None:
    from ..export import perfetto

    perfetto.write(shown.timeline, path)


def _write_torch_csv(shown: Shown, path: Path) -> None:
    from ..readers import torch_csv

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
        seen = stdout_look()
        say(catalog(max(80, seen.width) if seen.terminal else None))
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
    """Draw SCHEDULE, say how big its bubble is, and where the time of each rank goes.

    SCHEDULE is a name (see --list) or a schedule file in PyTorch's CSV format. Durations (20ms, 35us, 1.5s; a bare
    number is ms) are per micro-batch and rank.

    \b
    debubble show 1f1b -p 4 -m 8
    debubble show zb-auto -p 4 -m 8 --input 12ms --weight 6ms --forward 10ms --transfer 1ms --memory 2p
    debubble show interleaved -p 4 -m 8 -v 2 --stage-scale 1,1,1,1,1,1,1,1.6
    """  # noqa: D301 - click wants the character, not two
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
