"""What ``synth`` says: the order, how close to the bound it is, what it holds, what each engine would make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import MILLISECOND, duration, percent
from .advice import files, numbers
from .sections import Column, Figure, Figures, Paste, Picture, Ranks, Report, Section, Sentences, Table, Unit

if TYPE_CHECKING:
    from ..synthesis.synthesis import Joint, Synthesis

MOST_PEAKS = 8


def report(found: Synthesis, *, detail: bool = False) -> Report:
    """The sections of a schedule that was searched for."""
    # Infeasible: the notes say the least cap that works.
    if found.order is None or found.timeline is None or found.account is None:
        return Report(found.title, found.notes)
    sections: list[Section] = [
        Picture(
            "", found.order.name, found.timeline, found.account, found.per_rank, found.title, release=found.release
        ),
        Figures(list(_figures(found)), list(_beside(found))),
    ]
    if detail:
        sections.append(Ranks("", found.per_rank, found.account.window / MILLISECOND))
    sections += _engines(found)
    said = [_ended(found), *found.notes, *_robust(found), found.on_megatron]
    sections.append(Sentences("", said, plain=True, margin=1))
    if detail:
        run = f"debubble run --schedule schedule.csv -p {found.ranks} -m {found.microbatches} --check --out runs/found"
        sections += [Paste("Run it", run), *files(found.order), numbers(found)]
    return Report(found.title, list(_verdict(found)), sections)


def of_layers(found: Joint, *, detail: bool = False) -> Report:
    """The same with the split in front."""
    inner = report(found.synthesis, detail=detail)
    columns = [Column("split", left=True), Column("step", Unit.TIME), Column("", left=True)]
    marks = {found.split: "best", found.even_split: "even"}
    rows = [(",".join(map(str, split)), spent, marks.get(split, "")) for split, spent in found.tried]
    best = ",".join(map(str, found.split))
    lines = [f"The split {best} gives {found.split_gain_ratio:.3f} x over the even one, each with its own schedule."]
    if found.schedule_gain_ratio is not None:
        known = found.synthesis.best_known
        lines.append(f"The schedule gives {found.schedule_gain_ratio:.3f} x over {known} on the same split.")
    sections: list[Section] = [*inner.sections, Table("Splits that were solved", columns, rows)]
    return Report(found.title, [*lines, *inner.verdict], [*sections, Sentences("", lines, plain=True, margin=1)])


def _figures(found: Synthesis) -> Iterator[Figure]:
    spent, what = found.makespan_ms, "of the step"
    if found.objective == "span":
        spent, what = found.span_ms, "the longest rank's own time"
    yield Figure(found.objective, spent or 0.0, Unit.TIME, what, found.evidence)
    yield Figure("lower bound", found.lower_bound_ms or 0.0, Unit.TIME, _gap(found), "proved")
    if found.best_known_ms is not None:
        gain = f"{found.best_known}, {found.gain_ratio:.3f} x"
        yield Figure("best known", found.best_known_ms, Unit.TIME, gain, found.evidence)


def _gap(found: Synthesis) -> str:
    if found.status == "optimal":
        return "optimal"
    return f"gap {percent(found.gap_share or 0.0)}"


def _beside(found: Synthesis) -> Iterator[Figure]:
    peaks = " ".join(f"{peak:.3g}" for peak in found.peak_activations)
    if len(found.peak_activations) > MOST_PEAKS:
        peaks = f"{max(found.peak_activations):.3g} at most"
    caps = "" if found.caps is None else f" of {max(found.caps):.3g}"
    yield Figure("peak activations", peaks + caps)
    yield Figure("engine", found.engine)


def _engines(found: Synthesis) -> Iterator[Table]:
    """What every engine would make of the order, where that differs."""
    # To the microsecond: engines that agree are one line nobody needs.
    known = {round(spent or 0.0, 3) for spent in found.per_engine_ms.values()}
    if len(known) < 2:
        return
    columns = [Column("the same order under", left=True), Column("step", Unit.TIME)]
    rows = [(name, "cannot run" if spent is None else spent) for name, spent in found.per_engine_ms.items()]
    yield Table("", columns, rows)


def _ended(found: Synthesis) -> str:
    why = {
        "proved": "the solver proved that no order is shorter",
        "bound reached": "it meets a bound that no order is below",
        "budget": "the budget ended; a longer one may find more",
        "interrupted": "interrupted; this is the best so far",
    }[found.stopped]
    return f"Found by {found.method}, after {found.evaluations:,} orders: {why}."


def _robust(found: Synthesis) -> Iterator[str]:
    held = found.robust
    if held is not None:
        p95, nominal = duration(held.p95_ms * MILLISECOND), duration(held.best_nominal_p95_ms * MILLISECOND)
        yield (
            f"If ops vary by {percent(held.sigma)} (seed {held.seed}, {held.steps:,} steps), 95 % of steps take at most"
            f" {p95}; with the order that is best without jitter {nominal}."
        )


def _verdict(found: Synthesis) -> Iterator[str]:
    spent, even = duration(MILLISECOND * (found.makespan_ms or 0.0)), ""
    if found.robust is not None:  # chosen for this; a shorter step without jitter may lose with it
        p95 = duration(MILLISECOND * found.robust.p95_ms)
        yield f"95 % of steps take at most {p95} as ops vary, the least of {found.robust.orders} orders."
        even = " if nothing varies"
    if found.status == "optimal":
        yield f"{spent}{even}, and no order of these ops is shorter under {found.engine}."
    else:
        yield f"{spent}{even}, {percent(found.gap_share or 0.0)} above a bound that no order is below."
    if found.gain_ratio is not None:
        yield f"{found.best_known}, the best known schedule that fits, is {found.gain_ratio:.3f} x as long{even}."
