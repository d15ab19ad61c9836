"""Makes the two recordings beside this file: the same batch on four ranks, and on eight that are slower.

Both train the same model, for real, on torch.distributed.pipelining; paces and hops stand for the devices that a
laptop lacks. Eight ranks cut the model twice as fine, and a replica takes the same 8 samples in half as many
micro-batches, so a micro-batch should cost a rank what it costs with four. It costs 1.56 times as much: the work rate
fell too. Every arrival takes 8 ms longer.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "recordings"
RUNS = {
    "four": ["--ranks", "2", "--data", "2", "--microbatches", "8", "--pace", "F=40ms,B=80ms"],
    "eight": ["--ranks", "4", "--data", "2", "--microbatches", "4", "--pace", "F=62.5ms,B=125ms"],
}
BOTH = ["--schedule", "1f1b", "--batch", "16", "--hop", "8ms", "--steps", "6"]

if __name__ == "__main__":
    for name, options in RUNS.items():
        command = [sys.executable, "-m", "debubble", "run", *BOTH, *options, "--out", str(FOLDER / name)]
        subprocess.run(command, check=True)
