"""Draws the gallery: the founding case as it was measured, every schedule, and what uneven work does to a pipeline.

    python examples/gallery/draw.py [FOLDER]

writes one SVG a picture and a README.md that shows them all, with the command that draws each, beside this file or in
FOLDER.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from debubble.cli.main import main
from debubble.schedules.catalog import CATALOG

HERE = Path(__file__).resolve().parent
SIZE = "-p 4 -m 8"


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: the name of its file, what it shows, and the command that draws it."""

    name: str
    says: str
    command: str


CASES = (
    Picture(
        "four-to-eight",
        "The founding case, measured: 4 GPUs as PP=2 x DP=2 with 8 micro-batches, then 8 GPUs as PP=4 x DP=2 with 4. "
        "Both timelines stand on one time axis.",
        "why examples/four-to-eight/recordings/four examples/four-to-eight/recordings/eight",
    ),
    Picture(
        "slow-last-stage",
        "The loss head makes the last stage 1.6 times as heavy: all others wait for it at every micro-batch.",
        f"show 1f1b {SIZE} --stage-scale 1,1,1,1.6",
    ),
    Picture(
        "slow-rank",
        "One slow GPU among 8, 25 % slower: it is the row without gaps, and all others wait for it.",
        "show 1f1b -p 8 -m 16 --rank-scale 1,1,1,1,1,1.25,1,1",
    ),
    Picture(
        "variable-microbatches",
        "Micro-batches of unequal length: the long ones open gaps on every rank.",
        f"show 1f1b {SIZE} --microbatch-scale 1,0.4,1.6,0.7,1.9,0.5,1.3,0.6",
    ),
)


def sizes_of(name: str) -> str:
    """Four ranks, eight micro-batches, and for the schedules that need it chunks or slices."""
    return SIZE + {
        "interleaved": " -v 2",
        "looped-bfs": " -v 2",
        "interleaved-zb": " -v 2",
        "seq1f1b": " --slices 2",
    }.get(name, "")


SCHEDULES = tuple(
    Picture(name, f"{entry.placement} placement; {entry.paper or 'inference'}", f"show {name} {sizes_of(name)}")
    for name, entry in CATALOG.items()
)


def draw(picture: Picture, folder: Path) -> None:
    """Write the SVG of one picture.

    Raises:
        RuntimeError: its command fails.
    """
    path = folder / f"{picture.name}.svg"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = main([*shlex.split(picture.command), "--svg", str(path)])
    if status:
        raise RuntimeError(f"{picture.command}: {said.getvalue()}")


def index() -> str:
    """The page that shows all pictures."""
    parts = [
        "# Gallery",
        "Every picture is made by the command above it; `python examples/gallery/draw.py` makes them all.",
    ]
    for title, pictures in (
        ("What work does to a pipeline", CASES),
        ("Every schedule, 4 ranks x 8 micro-batches", SCHEDULES),
    ):
        parts.append(f"## {title}")
        for each in pictures:
            parts += [
                f"### {each.name}",
                each.says,
                f"    debubble {each.command} --svg {each.name}.svg",
                f"![{each.name}]({each.name}.svg)",
            ]
    return "\n\n".join(parts) + "\n"


def draw_all(folder: Path) -> None:
    """Write every picture and the page that shows them."""
    with contextlib.chdir(HERE.parents[1]):  # commands name recordings from the root of the repository
        for picture in (*CASES, *SCHEDULES):
            draw(picture, folder)
    (folder / "README.md").write_text(index())


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE)
