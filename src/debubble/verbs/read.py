"""``read``: what was measured of a run, whatever file it came from, as an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

from ..core.observation import Observation
from ..readers.columns import parse_mapping
from ..readers.kineto.read import in_processes, on_ray
from ..readers.source import Ask
from ..readers.source import read as read_source
from ..reconstruct.positions import Said
from .arguments import steps as as_steps

AnyPath = str | PathLike[str]
Steps = str | tuple[int, int]  # ``"10:20"``: the first and the last


def read(
    run: AnyPath | Sequence[AnyPath],
    *,
    ranks: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    steps: Steps | None = None,
    columns: str | Mapping[str, str] | None = None,
    ray: bool = False,
) -> Observation:
    """Read what was measured of one run.

    Args:
        run: a recording, a trace, a table of ops, a folder of them, or several of one run.
        ranks: positions in the pipeline, if the files do not tell.
        data: data-parallel replicas, if they do not tell.
        chunks: stages on a rank, if they do not tell.
        steps: the first and the last to use, both included.
        columns: what a table's columns are called, ours to theirs: ``"rank=worker,.."``.
        ray: read the ranks of Kineto and Chrome traces as Ray tasks.

    Raises:
        InputError: nothing is there, nothing of it is known, several runs are mixed, or no window is whole.
        Refusal: there is no pipeline in it.
    """
    asked = ask_of(ranks=ranks, data=data, chunks=chunks, steps=steps, columns=columns, ray=ray)
    return read_source(paths_of(run), asked)


def ask_of(
    *,
    ranks: int | None,
    data: int | None,
    chunks: int | None,
    steps: Steps | None,
    columns: str | Mapping[str, str] | None,
    ray: bool,
) -> Ask:
    """What the user says beside the paths, as readers take it."""
    if isinstance(steps, str):
        steps = as_steps(steps)
    if isinstance(columns, str):
        columns = parse_mapping(columns)
    named = None if columns is None else dict(columns)
    spread = on_ray if ray else in_processes  # ranks of a folder are read side by side either way
    return Ask(Said(ranks, data, chunks, steps), named, spread)


def paths_of(run: AnyPath | Sequence[AnyPath]) -> list[Path | str]:
    """One path or several, as a list; addresses such as ``s3://`` stay as they are."""
    if isinstance(run, Path):
        return [run]
    if isinstance(run, str | PathLike):
        return [fspath(run)]
    paths: list[Path | str] = []
    for path in run:
        paths += paths_of(path)
    return paths
