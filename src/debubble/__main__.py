"""The command line from outside: what the script ``debubble`` and ``python -m debubble`` start.

Nothing is imported before Ctrl-C is looked after. BLAS, which numpy brings, gets one thread: it would start one a core,
each of which spins for a while, and no verb multiplies large matrices.
"""

import gc
import os
import sys

INTERRUPTED = 130


def entry() -> int:
    """Run the command line of this process and return its exit status."""
    own = "record" not in sys.argv[1:3]
    if own:  # a job that is recorded multiplies what it likes
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from .cli.main import main

        return main()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _give_up_unwritten()
        if own:
            # What is left ends with the process. Else the interpreter would look through all of it for circles that
            # nobody holds: .7 s of CPU where torch was imported, in which a run that failed seems to hang.
            gc.freeze()


def _give_up_unwritten() -> None:
    """Forget what stdout did not take: at its end the interpreter would try again, and complain."""
    if sys.__stdout__ is None:  # a shell closed it
        return
    try:
        sys.__stdout__.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


if __name__ == "__main__":
    raise SystemExit(entry())
