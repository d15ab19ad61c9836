"""``diagnose``: how big the bubble of a measured run is, when its ranks idle, why, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError, Refusal, nearest
from .console import Look, say, warn, wrote
from .diagnose_document import document
from .options import PLACE, Parsed, Verb, json_option, look_options
from .pictures import picture_options
from .report import emit
from .trace_options import measurement_options

if TYPE_CHECKING:
    from ..core.observation import Observation
    from ..diagnosis.diagnose import Diagnosis
    from ..readers.source import Ask
    from ..reconstruct.device_ops import Reading


def _schedule(text: str, name: str) -> str:  # noqa: ARG001 - the type's signature
    from ..schedules.catalog import CATALOG

    if text not in CATALOG:
        raise nearest(text, CATALOG, "schedule")
    return text


@click.command(cls=Verb)
@click.argument("paths", metavar="PATH..", nargs=-1, required=True, type=PLACE)
@measurement_options
@click.option("--expect", type=Parsed("schedule", _schedule), help="The schedule that was asked for.")
@click.option("--record", type=click.Path(path_type=Path), metavar="DIR", help="Distil the traces into this folder.")
@click.option("--torch-csv", type=click.Path(path_type=Path), help="Write the order that ran as PyTorch's CSV.")
@click.option("--perfetto", type=click.Path(path_type=Path), help="Also write the median window for ui.perfetto.dev.")
@picture_options
@look_options
@json_option
def diagnose(
    paths: tuple[Path, ...], ask: Ask, pictures: dict[str, Path], look: Look, *, as_json: bool, **given: Any
) -> None:
    """Say how big the bubble of a measured run is, and why.

    PATH is a recording (the folder that `run --out` or `--record` wrote), a trace file or a folder of them (Kineto,
    Chrome, Nsight, Primus), or a table of ops; or an address such as s3://bucket/run. What it holds is told by its
    content. With --record each host distils the traces of its own ranks into one folder, to be diagnosed as a whole.
    """
    from ..diagnosis.diagnose import diagnose as examine
    from .blocks import text
    from .diagnose_blocks import blocks

    run = _observed(paths, ask, given["record"])
    if run is None:
        return
    found = examine(run, given["expect"])
    if pictures:
        draw(found, document(found), paths[0], pictures)
    if as_json:
        emit(document(found))
    else:
        say(text(blocks(found, look), look.width))
    _write(found, given["perfetto"], given["torch_csv"])


def _observed(paths: tuple[Path, ...], ask: Ask, record: Path | None) -> Observation | None:
    """What was measured; None where it was distilled, and what is here is not all of a run."""
    from ..readers.source import gather, merge
    from .progress import reading

    with reading(paths):
        gathered = gather(paths, ask)
    if record is None:
        return merge(gathered, ask)
    _distil(gathered, record)
    try:
        return merge(gathered, ask)
    except (InputError, Refusal) as error:
        warn(f"recorded; alone these ranks cannot be diagnosed: {error}")
        return None


def _distil(gathered: Reading | Observation, folder: Path) -> None:
    from ..readers.distilled import distil
    from ..reconstruct.device_ops import Reading

    if not isinstance(gathered, Reading):
        rule = "what was given is a recording already"
        raise InputError(Fault(f"--record {folder}", rule, "leave --record out, or give traces"))
    written = distil(gathered, folder)
    wrote(f"{folder}: {len(written)} ranks, {sum(path.stat().st_size for path in written):,} bytes")


def _write(found: Diagnosis, perfetto: Path | None, torch_csv: Path | None) -> None:
    from ..export.perfetto import write as write_perfetto
    from ..readers.torch_csv import write as write_csv

    timeline = found.summary.window.timeline
    if perfetto is not None:
        write_perfetto(timeline, perfetto)
        wrote(perfetto)
    if torch_csv is not None:
        write_csv(timeline.program.schedule, torch_csv)
        wrote(torch_csv)


def draw(found: Diagnosis, document: dict[str, Any], path: Path, pictures: dict[str, Path]) -> None:
    """Write the pictures of a measured run that were asked for.

    Args:
        found: about the run.
        document: that ``--json`` prints.
        path: of the recording or trace.
        pictures: where to, by kind.
    """
    from .page import figure_of_diagnosis, page_of_diagnosis
    from .pictures import write_all

    write_all(pictures, [figure_of_diagnosis(found, path)], lambda: page_of_diagnosis(found, document, path))
