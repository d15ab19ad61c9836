"""``why``: the throughput of two or more runs, factored, with what the bubble explains and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from .console import Look, say
from .options import COUNT, PLACE, Parsed, Verb, json_option, look_options
from .pictures import picture_options
from .report import MILLISECOND, emit
from .trace_options import measurement_options

if TYPE_CHECKING:
    from ..diagnosis.compared_run import ComparedRun
    from ..diagnosis.why import Comparison
    from ..readers.source import Ask
    from .sources import Run


def _share(text: str, name: str) -> float:
    number, sign, _ = text.strip().partition("%")
    try:
        value = float(number) / (100 if sign else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(Fault(f"{name} = {text}", "a gate is a share below 100 %", "write it as in 3%"))
    return value


@click.command(cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=PLACE, metavar="A B | SERIES")
@measurement_options
@click.option("--micro-batch", type=COUNT, help="Samples in one micro-batch, which logs do not tell.")
@click.option("--gate", type=Parsed("share", _share), help="Exit 1 where B is slower by more than this, as in 3%.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a pull request.")
@picture_options
@look_options
@json_option
def why(runs: tuple[Path, ...], ask: Ask, pictures: dict[str, Path], look: Look, *, as_json: bool, **given: Any) -> int:
    """Say why run B is slower (or faster) than run A, and what to change.

    Each run is a job TOML (what you know of it), a launch script or configuration, a recording (the folder that
    `run --out` wrote), a trace or a folder of traces, or a log of steps (Megatron-LM, DeepSpeed, CSV). A TOML with
    [[run]] tables is a series; each run of it is compared with the first. What traces and logs do not tell is taken
    from the options, for all of them.
    """
    from ..diagnosis.series import series
    from .sources import read_runs

    both = read_runs(runs, ask, given["micro_batch"])
    if len(both) < 2:
        rule = "one run alone is neither slower nor faster"
        raise InputError(Fault(" ".join(map(str, runs)), rule, "give a second one, or a series of [[run]] tables"))
    comparisons = series([run.what for run in both])
    status = _status(comparisons, given["gate"])
    if pictures:
        _draw(comparisons[-1], runs, pictures)
    if as_json:
        emit(_document(comparisons) | _fits(both))
    else:
        _tell(comparisons, both, look, as_markdown=given["as_markdown"])
    return status


def _draw(last: Comparison, runs: Sequence[Path], pictures: dict[str, Path]) -> None:
    from .page_why import figures_of_comparison, page_of_comparison
    from .pictures import write_all

    write_all(pictures, figures_of_comparison(last), lambda: page_of_comparison(last, _comparison(last), runs))


def _tell(comparisons: Sequence[Comparison], runs: Sequence[Run], look: Look, *, as_markdown: bool) -> None:
    from .blocks import markdown, text
    from .why_blocks import blocks, fit_blocks, series_blocks

    found = blocks(comparisons[0], look) if len(comparisons) == 1 else series_blocks(comparisons, look)
    found += fit_blocks([run.fit for run in runs if run.fit is not None])
    say(markdown(found) if as_markdown else text(found, look.width))


def _fits(runs: Sequence[Run]) -> dict[str, Any]:
    """The fits of the logs among the runs."""
    from .fit_document import document_of

    found = [document_of(run.fit) for run in runs if run.fit is not None]
    return {"fits": found} if found else {}


def _status(comparisons: Sequence[Comparison], gate: float | None) -> int:
    if gate is None:
        return 0
    blind = [c.b.name for c in comparisons if c.ratio is None]
    if blind:
        rule = "there is no throughput to hold against it"
        raise InputError(Fault(f"gate, {', '.join(blind)}", rule, "state measured.tokens_per_second of both runs"))
    return int(any(c.ratio is not None and c.ratio.value < 1 - gate for c in comparisons))


def _document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    from ..diagnosis.series import frontier

    documents = [_comparison(c) for c in comparisons]
    if len(documents) == 1:
        return documents[0]
    found = frontier(comparisons)
    return {
        "base": comparisons[0].a.name,
        "runs": documents,
        "frontier": None if found is None else {name: getattr(found, name) for name in found.__slots__},
    }


def _comparison(c: Comparison) -> dict[str, Any]:
    from ..diagnosis.verdict import checks, verdict

    return {
        "throughput_ratio": c.ratio.value if c.ratio is not None else None,
        "unit": c.unit,
        "evidence": c.ratio.evidence if c.ratio is not None else None,
        "factors": c.factors,
        "busy_evidence": c.busy_evidence or None,
        "a": _side(c.a),
        "b": _side(c.b),
        **_bounded("bubble_explains", c.explains),
        **_bounded("left_over", c.left_over),
        "left_over_parts": c.left_over_parts,
        "recompute_ratio": c.recompute_ratio,
        "realised_share": c.realised_share,
        "ceiling_ratio": c.b.ceiling_ratio,
        "ceiling_barrier_ratio": c.b.ceiling_barrier_ratio,
        "tie_hop_ms": c.tie_hop_ns / MILLISECOND if c.tie_hop_ns is not None else None,
        "verdict": verdict(c),
        "check": checks(c),
        "next": [_way_out(answer) for answer in c.next],
        "causes": _causes(c),
        "missing": [{"side": ask.side, "key": ask.key, "reason": ask.reason} for ask in c.asks],
    }


def _bounded(name: str, bounds: tuple[float, float] | None) -> dict[str, Any]:
    """One number where it is known, and the two bounds always."""
    known = bounds is not None and bounds[0] == bounds[1]
    return {f"{name}_ratio": bounds[0] if known and bounds is not None else None, f"{name}_bounds": bounds}


def _side(run: ComparedRun) -> dict[str, Any]:
    own, job = run.own, run.job
    known = own is not None and own.known
    speeds = {**run.predicted, **run.speeds}
    return {
        "name": run.name,
        "gpus": run.gpus,
        "pipeline": job.pipeline,
        "data": job.data,
        "microbatches": job.microbatches,
        "schedule": job.schedule,
        "idle_share": own.most if own is not None and known else None,
        "bubble_ratio": own.bubble_ratio if own is not None and known else None,
        "most_busy": own.busy[1] if own is not None and known else None,
        "idle_share_bounds": (own.least, own.most) if own is not None else None,
        "evidence": own.evidence if own is not None else None,
        "busy": run.busy.value if run.busy is not None else None,
        "busy_evidence": run.busy.evidence if run.busy is not None else None,
        "overstated": run.overstated,
        "window_share": run.window_share,
        "makespan_ms": run.causes.window / MILLISECOND if run.causes is not None else None,
        "outside_ms": run.outside_ns / MILLISECOND if run.measured else None,
        "peak_activations": run.peak_activations,
        "throughput": {unit: {"value": each.value, "evidence": each.evidence} for unit, each in speeds.items()},
        "ceiling_ratio": run.ceiling_ratio,
        "ceiling_barrier_ratio": run.ceiling_barrier_ratio,
        "causes": [{"cause": name, "cost_ms": cost / MILLISECOND} for name, cost in run.causes or ()],
        "remarks": run.remarks,
    }


def _causes(c: Comparison) -> list[dict[str, Any]]:
    """Why each window takes as long as it does, side by side; empty where one of them has no timeline."""
    if c.a.causes is None or c.b.causes is None:
        return []
    return [
        {
            "cause": name,
            "a_ms": here / MILLISECOND,
            "b_ms": there / MILLISECOND,
            "a_share": here / c.a.causes.window if c.a.causes.window else 0.0,
            "b_share": there / c.b.causes.window if c.b.causes.window else 0.0,
            "difference_ms": (there - here) / MILLISECOND,
        }
        for (name, here), (_, there) in zip(c.a.causes, c.b.causes, strict=True)
    ]


def _way_out(answer: Any) -> dict[str, Any]:
    return {
        "change": answer.change,
        "predicted_ratio": answer.speedup,
        "microbatches": answer.microbatches,
        "peak_activations": answer.peak_activations,
        "idle_share": answer.idle_share,
        "activations_ratio": answer.activations_ratio,
        "assumes": answer.assumes,
        "evidence": answer.evidence,
    }
