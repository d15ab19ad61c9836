"""Jobs that are recorded in tests: started by torchrun in processes of their own, or by Python alone."""

import os
import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).parent / "clients"
SOURCE = Path(__file__).resolve().parents[2] / "src"
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "DEBUBBLE_RECORD": ""}


def torchrun(processes: int, *words: object, cwd: Path | None = None, **environment: str):
    """Run words as ``torchrun ..`` does; the first may be ``-m``."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    return python(*launcher, *words, cwd=cwd, **environment)


def python(*words: object, cwd: Path | None = None, **environment: str):
    """Run Python on words: the process that has ended, with its text."""
    command = [sys.executable, *map(str, words)]
    env = os.environ | QUIET | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=cwd, env=env)


def recorded(processes: int, folder: Path, *words: object, options: tuple[object, ...] = (), **environment: str):
    """The same under ``debubble record``."""
    verb = ("-m", "debubble", "record", "--out", folder, *options)
    if processes > 1:
        return torchrun(processes, *verb, *words, **environment)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0", "LOCAL_RANK": "0"}
    return python(*verb, *words, **alone | environment)
