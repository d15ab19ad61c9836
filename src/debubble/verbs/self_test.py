"""``record --self-test``: what a recording of a small pipeline on this machine agrees with.

It imports torch, and that only when it is called: the help of ``record`` and ``run`` starts at once.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from ..recorder.self_test import SelfTested

SELF_TEST_MICROBATCHES = 8
SELF_TEST_PAIRS = 12  # of steps, with the recorder on and off


def self_test(out: str | os.PathLike[str] | None = None) -> SelfTested:
    """Record a small pipeline on the GPUs that are here, on CPU ranks where there is none, and say what agrees.

    It takes less than a minute. The extra ``torch`` is needed.

    Args:
        out: folder of the recording; one that is gone afterwards by default.

    Raises:
        InputError: torch is not installed.
        Refusal: a rank failed.
    """
    if find_spec("torch") is None:
        raise InputError(Fault("torch", "the self-test needs it and it is not installed", "pip install torch"))
    from ..core.schedule import Shape
    from ..recorder.self_test import examined
    from ..runner.launch import launch
    from ..runner.self_test import devices, job
    from ..schedules.catalog import build

    kind, ranks = devices()
    expected = build("1f1b", Shape(ranks, SELF_TEST_MICROBATCHES))
    with TemporaryDirectory() as gone:
        folder = Path(gone, "recording") if out is None else Path(out)
        given = (folder, SELF_TEST_MICROBATCHES, SELF_TEST_PAIRS, kind)
        ran = launch(job, ranks, *given, name="rank {}".format)
        return examined(folder, expected, ran.device, ran.on_ns, ran.off_ns)
