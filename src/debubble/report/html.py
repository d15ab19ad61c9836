"""Reports as a page to explore in a browser: each section in its place, with the same text as everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from ..core.units import MILLISECOND
from ..drawing.html import Page, Run
from ..drawing.html import html as page_html
from .sections import Figure, Figures, Parts, Paste, Picture, Ranks, Report, Section, Sentences, Table

MOST_LINES = 64  # of a table: more are scrolled past; --json has all
MOST_RANKS = 1024  # with a line of their own: as many as the picture has rows of a pixel
SHARE, RATIO = "idle share", "bubble ratio"

Item = dict[str, Any]


def html(report: Report) -> str:
    """A report as one offline file."""
    return page_html(page(report))


def page(report: Report) -> Page:
    """The parts of a page, each from the section of its kind; tables and sentences keep their order.

    Figures are its tiles, pictures its timelines, parts its causes; what is to be pasted is at its end.
    """
    tiles: list[Item] = []
    runs: list[Run] = []
    causes: list[Item] = []
    take: list[Item] = []
    for section in report.filled:
        match section:
            case Figures():
                tiles += _tiles(section)
            case Picture():
                runs.append(_run(section))
            case Parts():
                causes.append(_parts(section))
            case Paste():
                take.append(_paste(section))
    return Page(
        title=report.title,
        verdict=list(report.verdict),
        next=report.next,
        tiles=tiles,
        runs=runs,
        causes=causes,
        sections=_tables(report.filled),
        sliders=report.sliders,
        take=take,
    )


def _tiles(section: Figures) -> Iterator[Item]:
    """A tile each; the two numbers called bubble share one, each by its name and what it is of."""
    figures = [*section.figures, *section.beside]
    for figure, following in zip_longest(figures, figures[1:]):
        # It has been said in the tile before it.
        if figure.name == RATIO:
            continue
        # Both in one tile: apart, people compare one run's share with another's ratio.
        if figure.name == SHARE and following is not None and following.name == RATIO:
            yield _both(figure, following)
        else:
            yield _tile(figure.name, figure.text, [figure.what, figure.evidence])


def _both(share: Figure, ratio: Figure) -> Item:
    what = f"{SHARE} = {share.what or 'idle / (ranks x window)'}; {RATIO} = {ratio.what or 'idle / busy'}, {ratio.text}"
    return _tile(f"{SHARE} ({RATIO})", f"{share.text} ({ratio.text})", [what, share.evidence])


def _tile(name: str, value: str, notes: Sequence[str]) -> Item:
    return {"name": f"{name[:1].upper()}{name[1:]}", "value": value, "note": "; ".join(filter(None, notes))}


def _run(picture: Picture) -> Run:
    ranks = Ranks("", picture.ranks, picture.account.window / MILLISECOND)
    table = {"head": ranks.head_with_units, "lines": ranks.cells(MOST_RANKS), "note": ranks.note(MOST_RANKS)}
    per_rank = [asdict(rank) for rank in picture.ranks]
    return Run(picture.name, picture.timeline, picture.account, per_rank, table, picture.release)


def _parts(section: Parts) -> Item:
    *cells, whole = section.cells()
    rows = []
    for part, (name, cost, share, what) in zip(section.parts, cells, strict=True):
        rows.append(
            {
                "cause": name,
                "cost_ms": part.cost_ms,
                "cost_share": part.share,
                "cells": [cost, share],
                "evidence": part.evidence,
                "remedy": "; ".join(filter(None, (what, part.remedy))),
            }
        )
    made = {"name": section.name, "rows": rows, "whole": section.whole, "total": whole[1:3], "note": section.note}
    if section.hint:
        made["hint"] = section.hint
    return made


def _tables(sections: Sequence[Section]) -> list[Item]:
    """Tables and sentences in their order; tables that follow each other under one title share a part of the page."""
    parts: list[Item] = []
    title = ""
    tables: list[Item] = []
    for section in sections:
        # Pictures, figures and causes between two tables have places of their own: they do not part them.
        if isinstance(section, Table):
            if not tables or section.title != title:
                title, tables = section.title, []
                parts.append({"title": title, "hint": section.hint, "tables": tables})
            tables.append(_table(section))
        elif isinstance(section, Sentences):
            tables = []
            parts.append({"title": section.title, "hint": "", "tables": [], "sentences": list(section.lines)})
    for part in parts:
        _name_once(part)
    return parts


def _name_once(part: Item) -> None:
    """Take away the name of a table that stands alone under a title and a hint which say the same at more length."""
    tables, about = part["tables"], part["title"].partition(" ")[0]
    if about and part["hint"] and len(tables) == 1 and tables[0]["name"].startswith(about):
        tables[0]["name"] = ""


def _table(section: Table) -> Item:
    made: dict[str, Any] = {
        "name": section.name,
        "head": section.head,
        "lines": section.cells()[:MOST_LINES],
        "wordy": [],
        "left": [],
        "notes": list(section.notes),
    }
    for number, column in enumerate(section.columns):
        if column.long:
            made["wordy"].append(number)
        if column.left:
            made["left"].append(number)
    if section.bars:
        made["head"] = [*section.head, ""]
        made["bar"] = list(section.bars[:MOST_LINES])
    if section.shades:
        made["shade"] = [list(line) for line in section.shades[:MOST_LINES]]
    return made


def _paste(section: Paste) -> Item:
    made: dict[str, object] = {"name": section.title, "file": section.file}
    if section.maker:
        # The page makes it from the ops that it holds: the same text twice would double a large page.
        made |= {"maker": section.maker, "run": section.run}
    else:
        made["text"] = section.text
    return made
