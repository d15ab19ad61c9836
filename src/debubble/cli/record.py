"""``record``: the options of the verb, and the program that follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import debubble

from ..recorder.start import Program
from ..recorder.wishes import wish_of
from ..verbs.arguments import together
from .command import Parsed, Verb, option
from .console import put


def _steps(text: str, name: str) -> str:  # noqa: ARG001 - the type's shape
    wish_of("", steps=text)
    return text


_STEPS = Parsed("a:b", _steps)


class _Record(Verb):
    """A command whose options end at the program: what follows is the program's own, as with ``python``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, module, program = self._split(args)
        flag = ["--module"] if module else []
        return super().parse_args(ctx, [*ours, *flag, "--", *program])

    def _split(self, words: list[str]) -> tuple[list[str], bool, list[str]]:
        takes = {name: not each.is_flag for each in self.params if isinstance(each, click.Option) for name in each.opts}
        at = 0
        while at < len(words):
            word = words[at]
            if word in ("-m", "--module"):
                return words[:at], True, words[at + 1 :]
            if word == "--" or not word.startswith("-") or word == "-":
                return words[:at], False, words[at + (word == "--") :]
            at += 2 if takes.get(word, False) else 1
        return words, False, []


@click.command(
    cls=_Record,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Record your own training job, with no line changed.",
)
@option("--out", default="recording", show_default=True, metavar="DIR", help="Folder of the recording.")
@option("--steps", type=_STEPS, default="", help="First and last step.  [default: all but a pipeline's first]")
@option("--every", default="1", metavar="N", help="Record one step in so many.")
@option("--keep", default="", metavar="N|SIZE", help="Keep the newest N steps, or SIZE of each rank's files.")
@option("--replicas", default="", metavar="LIST", help="Record a sample of the replicas, as in 0,7.")
@option("--json", "as_json", is_flag=True, help="At the end, print one JSON object from the first process.")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("program", nargs=-1, metavar="FILE|MODULE [ARGS]...", type=click.UNPROCESSED)
@click.pass_context
def record(
    ctx: click.Context, /, program: tuple[str, ...], module: bool, as_json: bool, **given: Any
) -> Callable[[], None]:
    """Record the pipeline of your own training job: start it as before, with this between launcher and program.

    Measures torch.distributed.pipelining, torchtitan, Megatron-Core and DeepSpeed from inside. The program runs as it
    is, with its own arguments, exit status and exceptions.

    \b
    torchrun --nproc-per-node 8 -m debubble record --out runs/now train.py --lr 1e-4
    srun python -m debubble record --out runs/now -m torchtitan.train --job.config_file c.toml
    DEBUBBLE_RECORD=runs/now deepspeed train.py      # for launchers that take no module
    """  # noqa: D301 - click wants the character, not two
    if not program:
        raise click.UsageError("Missing FILE or -m MODULE: what is to be run.", ctx)
    first = [f"--local_rank={ctx.obj}"] if ctx.obj is not None else []  # where deepspeed puts it: before the verb
    job = Program(program[0], (*first, *program[1:]), module)
    together(lambda: wish_of(**given), job.check)
    recording = debubble.record(**given)

    def ended() -> None:
        recording.close()
        if as_json and (found := recording.result()) is not None:
            put(found.json())

    return lambda: job.run(ended)
