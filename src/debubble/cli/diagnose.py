"""``diagnose``: how big the bubble of a measured run is, when its ranks idle, why, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .asking import measurement_options
from .console import Look, say, wrote
from .options import Verb, json_option, look_options
from .pictures import picture_options
from .report import MILLISECOND, emit, per_rank

if TYPE_CHECKING:
    from ..diagnose.report import Diagnosis
    from ..formats.source import Ask


@click.command(cls=Verb)
@click.argument("paths", metavar="PATH..", nargs=-1, required=True, type=click.Path(path_type=Path))
@measurement_options
@click.option("--perfetto", type=click.Path(path_type=Path), help="Also write the median window for ui.perfetto.dev.")
@picture_options
@look_options
@json_option
def diagnose(
    paths: tuple[Path, ...],
    ask: Ask,
    perfetto: Path | None,
    pictures: dict[str, Path],
    look: Look,
    as_json: bool,
) -> None:
    """Say how big the bubble of a measured run is, and why.

    PATH is a recording (the folder that `run --out` wrote), a trace file or a folder of them (Kineto, Chrome, Primus),
    or a table of ops. What it holds is told by its content.
    """
    from ..diagnose.report import diagnose as examine
    from .blocks import text
    from .diagnose_blocks import blocks
    from .sources import read_observation

    found = examine(read_observation(paths, ask))
    if pictures:
        draw(found, document(found), paths[0], pictures)
    if as_json:
        emit(document(found))
    else:
        say(text(blocks(found, look), look.width))
    if perfetto is not None:
        from ..formats.perfetto import write

        write(found.summary.window.timeline, perfetto)
        wrote(perfetto)


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


def document(d: Diagnosis) -> dict[str, Any]:
    """Everything about a run, as ``--json`` prints it."""
    from ..memory import peak_activations

    summary, schedule = d.summary, d.summary.window.timeline.program.schedule
    return {
        "source": d.run.source,
        "steps": summary.steps,
        "replicas": summary.replicas,
        "ranks": schedule.ranks,
        "chunks": schedule.stages // schedule.ranks,
        "microbatches": schedule.microbatches,
        "schedule": str(d.order),
        "nearest": d.order.nearest,
        "departure": d.order.departure or None,
        "paced": d.run.paced,
        **_windows(d),
        "per_rank": per_rank(summary.account, peak_activations(schedule)),
        "causes": _causes(d),
        "resim_ratio": d.causes.resim_ratio,
        "resim_without_transfer_ratio": d.causes.resim_without_transfer_ratio,
        "matched_share": d.run.matched_share,
        "clock_uncertainty_ms": d.run.clock_uncertainty_ns / MILLISECOND,
        "findings": _findings(d),
        "what_if": _what_if(d),
        "verdict": d.verdict,
        "remarks": d.remarks,
    }


def _windows(d: Diagnosis) -> dict[str, Any]:
    """The numbers over all windows: means of shares, medians of lengths, least and most beside them."""
    summary = d.summary
    lengths = [each.window for each in summary.accounts]
    return {
        "makespan_ms": summary.makespan_ns / MILLISECOND,
        "makespan_min_ms": min(lengths) / MILLISECOND,
        "makespan_max_ms": max(lengths) / MILLISECOND,
        "predicted_ms": _ms(d.run.predicted_ns),
        "step_ms": _ms(summary.step_ns),
        "outside_ms": _ms(summary.outside_ns),
        "idle_share": summary.idle_share,
        "idle_share_min": min(summary.idle_shares),
        "idle_share_max": max(summary.idle_shares),
        "pooled_idle_share": summary.pooled_idle_share,
        "bubble_ratio": summary.bubble_ratio,
        "evidence": summary.account.evidence,
        "windows": len(lengths),
        "left_out_steps": summary.left_out,
    }


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / MILLISECOND


def _causes(d: Diagnosis) -> list[dict[str, Any]]:
    from ..diagnose.report import REMEDIES

    window = d.causes.window
    return [
        {
            "cause": name,
            "cost_ms": cost / MILLISECOND,
            "cost_share": cost / window if window else 0.0,
            "evidence": "measured" if name in ("ideal", "unexplained") else "simulated",
            "remedy": REMEDIES.get(name, ""),
        }
        for name, cost in d.causes
    ]


def _findings(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "finding": each.sentence,
            "cause": each.cause,
            "cost_ms": each.cost_ns / MILLISECOND,
            "evidence": each.evidence,
            "remedy": each.remedy,
            "gain_ratio": each.gain_ratio,
            "spans": [
                {"rank": s.rank, "op": s.op, "start_ms": s.start / MILLISECOND, "end_ms": s.end / MILLISECOND}
                for s in each.spans
            ],
        }
        for each in d.findings
    ]


def _what_if(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "change": each.change,
            "step_ms": each.step_ns / MILLISECOND,
            "speedup": each.speedup,
            "microbatches": each.microbatches,
            "idle_share": each.idle_share,
            "peak_activations": each.peak_activations,
            "activations_ratio": each.activations_ratio,
            "assumes": each.assumes,
            "evidence": each.evidence,
        }
        for each in d.what_ifs
    ]
