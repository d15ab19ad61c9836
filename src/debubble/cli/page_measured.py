"""Tables of a measured run alone: findings, replicas by stages, receives, what would help, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ..core.units import percent

Section = dict[str, Any]
Document = dict[str, Any]

MOST_LINES = 64  # of a table; --json has all
HOT = 1.05  # work over the median of all stages, from which a cell is marked


def sections_of(document: Document) -> Iterator[Section]:
    """The sections that a document of ``diagnose --json`` has something for."""
    if document["findings"]:
        yield _findings(document["findings"])
    if document["heat"]:
        yield _replicas(document["heat"])
    if document["transfers"]:
        yield _receives(document)
    if document["what_if"]:
        yield _helps(document["what_if"])
    yield _sure(document)


def _findings(found: Sequence[Document]) -> Section:
    lines = [
        [
            each["finding"],
            _ms(each["cost_ms"]),
            each["evidence"],
            each["remedy"],
            f"{each['gain_ratio']:.2f} x" if each["gain_ratio"] else "",
        ]
        for each in found[:MOST_LINES]
    ]
    head = ["finding", "ms", "evidence", "what would help", "samples/s with it"]
    return _section("What was found", "Dearest first.", {"head": head, "lines": lines, "wordy": [0, 3]})


def _replicas(heat: Sequence[Document]) -> Section:
    """Work of each stage in each replica; what takes longest is darkest."""
    usual = median(work for each in heat for work in each["stage_ms"]) or 1.0
    ranked = sorted(heat, key=lambda each: -each["makespan_ms"])[:MOST_LINES]
    most = max(max(each["stage_ms"], default=usual) for each in heat) / usual
    lines = [
        [
            f"replica {each['replica']}",
            _ms(each["makespan_ms"]),
            percent(each["idle_share"]),
            *(f"{_ms(work)}{' ▲' if work >= HOT * usual else ''}" for work in each["stage_ms"]),
        ]
        for each in ranked
    ]
    over = max(most, HOT) - 1  # differences of less than that are never dark
    shade = [[0.0, 0.0, 0.0, *(max(0.0, (work / usual - 1) / over) for work in each["stage_ms"])] for each in ranked]
    head = ["", "window ms", "idle share", *(f"stage {stage} ms" for stage in range(len(heat[0]["stage_ms"])))]
    more = f" The {len(ranked)} slowest of {len(heat)}." if len(ranked) < len(heat) else ""
    hint = (
        "Measured: the mean work of each stage in a step, the slowest replica first; darker is above the median stage "
        f"({_ms(usual)} ms), ▲ by {percent(HOT - 1)} or more.{more}"
    )
    table = {"head": head, "lines": lines, "shade": shade}
    return _section("Replicas by stages", hint, table)


def _receives(document: Document) -> Section:
    links = sorted(document["transfers"], key=lambda each: -(each["waiting_ms"] + each["transfer_ms"]))[:MOST_LINES]
    lines = [
        [
            f"rank {each['sender']} to {each['receiver']}",
            str(each["receives"]),
            _ms(each["waiting_ms"]),
            _ms(each["transfer_ms"]),
            f"{each['usual_transfer_ms']:.3f}",
            percent(each["waiting_share"]),
        ]
        for each in links
    ]
    head = ["", "receives", "waiting ms", "transfer ms at most", "one transfer ms", "waiting", ""]
    hint = "Measured: a receive that runs before its send has begun waits; it does not transfer. Bars are the waiting."
    if (share := document["receive_waiting_share"]) is not None:
        hint += f" Of all receives together {percent(share)} is waiting."
    bar = [each["waiting_share"] for each in links]
    return _section("Receives: waiting or transfer", hint, {"head": head, "lines": lines, "bar": bar})


def _helps(answers: Sequence[Document]) -> Section:
    shown = answers[:MOST_LINES]
    lines = [
        [
            each["change"],
            "limit" if each["bound"] else "change",
            str(each["microbatches"]),
            f"{each['peak_activations']:g}",
            f"{each['activations_ratio']:.2f} x",
            _ms(each["step_ms"]),
            f"{each['speedup']:.2f} x",
            "; ".join(each["assumes"]),
        ]
        for each in shown
    ]
    head = ["change", "kind", "m", "in flight", "memory", "step ms", "samples/s", "if", ""]
    most = max(each["speedup"] for each in shown) or 1.0
    hint = (
        "Simulated from the measured durations, per sample. A limit is what nobody can do: it shows what something "
        "costs. Memory is that of activations on the worst rank, with over without."
    )
    table = {"head": head, "lines": lines, "wordy": [0, 7], "bar": [each["speedup"] / most for each in shown]}
    return _section("What would help", hint, table)


def _sure(document: Document) -> Section:
    least, most = document["makespan_min_ms"], document["makespan_max_ms"]
    shares = f"{percent(document['idle_share_min'])} to {percent(document['idle_share_max'])}"
    lines = [
        ["pipeline windows", f"{document['windows']}, of {_ms(least)} to {_ms(most)} ms"],
        ["idle share of a window", shares],
        ["idle share of all windows pooled", f"{percent(document['pooled_idle_share'])}"],
        ["simulated again, of the window", f"{percent(document['resim_ratio'])}"],
        ["the same without transfers", f"{percent(document['resim_without_transfer_ratio'])}"],
        ["clocks of two ranks agree within", f"{document['clock_uncertainty_ms']:.3f} ms"],
    ]
    if document["left_out_steps"]:
        lines.append(["steps left out as warm-up or cut off", _listed(document["left_out_steps"])])
    if document["matched_share"] is not None:
        lines.append(["transfers whose two ends were matched", percent(document["matched_share"])])
    if torn := document["torn_ranks"]:
        lines.append(["torn: ranks that talk to ranks which were not measured", _listed(torn)])
    table = {"head": ["", "measured"], "lines": lines, "wordy": [1]}
    return _section("How sure this is", "", table)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_LINES]))
    return f"{shown} and {len(numbers) - MOST_LINES} more" if len(numbers) > MOST_LINES else shown


def _section(title: str, hint: str, *tables: dict[str, Any]) -> Section:
    return {"title": title, "hint": hint, "tables": list(tables)}


def _ms(value: float) -> str:
    return f"{value:,.1f}"
