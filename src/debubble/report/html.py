"""Reports as a page to explore in a browser: each section in its place, with the same text as everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ..core.rank_time import MILLISECOND
from ..core.units import percent
from ..diagnosis.remedies import Sliders
from ..drawing.html import Page, Run
from ..drawing.html import Sliders as PageSliders
from ..drawing.html import html as page_html
from .figures import milliseconds
from .rank_table import ranks_table
from .sections import Figure, Figures, Parts, Paste, Picture, Ranks, Report, Section, Sentences, Table

MOST_LINES = 64  # of a table; --json has all
MOST_RANKS = 1024  # with a line of their own

Part = Mapping[str, object]


def html(report: Report) -> str:
    """A report as one offline file."""
    return page_html(page(report))


def page(report: Report) -> Page:
    """The parts of a page, each from the section of its kind; tables and sentences stand in their order.

    Figures are its tiles, pictures its timelines, parts its causes; what is to be pasted stands at its end.
    """
    return Page(
        title=report.title,
        verdict=list(report.verdict),
        next=report.next,
        tiles=[tile for section in report.sections if isinstance(section, Figures) for tile in _tiles(section)],
        runs=[_run(picture) for picture in report.pictures],
        causes=[_parts(section) for section in report.sections if isinstance(section, Parts)],
        sections=_tables(report.sections),
        sliders=page_sliders(report.sliders),
        take=[_paste(section) for section in report.sections if isinstance(section, Paste)],
    )


def _tiles(section: Figures) -> Iterator[Part]:
    """A tile each; the two numbers called bubble share one, each by its name and what it is of."""
    figures = [*section.figures, *section.beside]
    for figure, following in zip(figures, [*figures[1:], None], strict=True):
        if figure.name == RATIO:
            continue
        if figure.name == SHARE and following is not None and following.name == RATIO:
            yield _both(figure, following)
        else:
            yield _tile(figure.name, figure.text, [figure.what, figure.evidence])


SHARE, RATIO = "idle share", "bubble ratio"


def _both(share: Figure, ratio: Figure) -> Part:
    what = f"{SHARE} = {share.what or 'idle / (ranks x window)'}; {RATIO} = {ratio.what or 'idle / busy'}, {ratio.text}"
    return _tile(f"{SHARE} ({RATIO})", f"{share.text} ({ratio.text})", [what, share.evidence])


def _tile(name: str, value: str, notes: Sequence[str]) -> Part:
    return {"name": f"{name[:1].upper()}{name[1:]}", "value": value, "note": "; ".join(note for note in notes if note)}


def _run(picture: Picture) -> Run:
    headers, rows, note = ranks_table(Ranks("", picture.ranks, picture.account.window / MILLISECOND), MOST_RANKS)
    per_rank = [asdict(rank) for rank in picture.ranks]
    table = {"head": headers, "lines": rows, "note": note}
    return Run(picture.name, picture.timeline, picture.account, per_rank, table, picture.release)


def _parts(section: Parts) -> Part:
    digits = section.digits
    rows = [
        {
            "cause": part.name,
            "cost_ms": part.cost_ms,
            "cost_share": part.share,
            "cells": [milliseconds(part.cost_ms, digits), percent(part.share)],
            "evidence": part.evidence,
            "remedy": "; ".join(words for words in (part.what, part.remedy) if words),
        }
        for part in section.parts
    ]
    total = [milliseconds(section.whole_ms, digits), "100.0 %"]
    hint = {"hint": section.hint} if section.hint else {}
    return {"name": section.name, "rows": rows, "whole": section.whole, "total": total, "note": section.note} | hint


def _tables(sections: Sequence[Section]) -> list[Part]:
    """Tables and sentences in their order; tables that follow each other under one title share a section."""
    found: list[dict[str, object]] = []
    tables: list[Part] = []
    for section in sections:
        if isinstance(section, Table) and section.rows:
            if not found or found[-1]["title"] != section.title or not found[-1]["tables"]:
                tables = []
                found.append({"title": section.title, "hint": section.hint, "tables": tables})
            tables.append(_table(section))
        elif isinstance(section, Sentences) and section.lines:
            found.append({"title": section.title, "hint": "", "tables": [], "sentences": list(section.lines)})
    return list(found)


def _table(section: Table) -> Part:
    shown = slice(MOST_LINES)
    made: dict[str, object] = {
        "name": section.name,
        "head": [column.title for column in section.columns] + ([""] if section.bars else []),
        "lines": section.cells()[shown],
        "wordy": [n for n, column in enumerate(section.columns) if column.long],
        "notes": list(section.notes),
    }
    if section.bars:
        made["bar"] = list(section.bars)[shown]
    if section.shades:
        made["shade"] = [list(line) for line in section.shades][shown]
    return made


def page_sliders(start: Sliders | None) -> PageSliders | None:
    """Where the sliders of a page start, op by op."""
    if start is None:
        return None
    replay, schedule = start.replay, start.replay.schedule
    durations, hops = (table[schedule.kind, schedule.stage, schedule.unit] for table in replay.tables)
    return PageSliders(
        run=start.run,
        name=replay.name,
        durations=durations,
        hops=hops,
        outside=replay.outside,
        pair_scale=replay.costs.pair_scale,
        input_share=replay.input_share,
        orders=start.orders,
        note=start.note,
    )


def _paste(section: Paste) -> Part:
    made = {"maker": section.maker, "run": section.run} if section.maker else {"text": section.text}
    return {"name": section.title, "file": section.file} | made
