"""Calibration from what users have: measured rows as CSV, logs of Megatron-LM, or factors that were saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Fault, InputError

if TYPE_CHECKING:
    from ..estimate.factors import Calibration
    from ..estimate.hardware import Cluster
    from ..estimate.model import Model
    from ..plan import Layout
    from ..planning.measured import Row

HEAD = 4_000_000  # bytes of a log in which its arguments stand
WARM_UP = 1  # first steps that are left out


def calibration_of(paths: tuple[str, ...], model: Model, cluster: Cluster, base: Layout) -> Calibration:
    """One calibration from all files together.

    Raises:
        InputError: what cannot be read, or saved factors beside other files.
    """
    from ..planning.calibrate import calibrate
    from ..planning.calibration_file import measured_rows, read_calibration

    saved = [path for path in paths if path.lower().endswith(".toml")]
    if saved and len(paths) > 1:
        raise InputError(Fault(saved[0], "factors that were saved stand alone", "give it alone, or rows and logs"))
    if saved:
        return read_calibration(Path(saved[0]), model, cluster, base)
    rows = [
        row
        for path in map(Path, paths)
        for row in (
            [_of_log(path, model, cluster, base)] if _is_log(path) else measured_rows(path, model, cluster, base)
        )
    ]
    return calibrate(rows, ", ".join(paths))


def _is_log(path: Path) -> bool:
    from ..formats.steplog import is_log

    with path.open("rb") as stream:
        return path.suffix.lower() != ".csv" and is_log(stream.read(HEAD))


def _of_log(path: Path, model: Model, cluster: Cluster, base: Layout) -> Row:
    """The layout from the arguments that a log begins with, the step from the median of its steps."""
    import numpy as np

    from ..formats.steplog import read_steps
    from ..frameworks.flags import dump_pairs
    from ..frameworks.laid_out import laid_out
    from ..frameworks.megatron import MEGATRON
    from ..frameworks.read import read_setup
    from ..planning.measured import Row

    steps = read_steps(path).seconds
    with path.open("rb") as stream:
        text = stream.read(HEAD).decode("utf-8", errors="replace")
    setup = MEGATRON.settled(read_setup(MEGATRON, dump_pairs(text)).setup)
    missing = [MEGATRON.key(name) for name in ("pipeline", "tensor", "micro_batch") if getattr(setup, name) is None]
    missing += [] if setup.flush else [MEGATRON.key("global_batch")]
    if missing:
        rule = f"its head does not print {', '.join(missing)}"
        raise InputError(Fault(str(path), rule, "give a log from its first line on, or rows as CSV"))
    layout = laid_out(MEGATRON, setup, base)
    seconds = float(np.median(steps[WARM_UP:] if len(steps) > 2 * WARM_UP else steps))
    return Row(model, replace(cluster, gpus=layout.gpus), layout, (), str(path), seconds=seconds)
