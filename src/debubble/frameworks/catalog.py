"""All frameworks by name, whose configuration a file is, and which of its parts say a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config.config import OF_THE_MODEL, Config
from ..core.errors import Fault, InputError, nearest
from .deepspeed import DEEPSPEED
from .files import Block, read_file
from .framework import Framework
from .internevo import INTERNEVO
from .keys import Pairs, fields_known, keys_known, marks_known, read_config
from .maxtext import MAXTEXT
from .megatron import MEGATRON
from .nanotron import NANOTRON
from .torch_pipelining import TORCH
from .torchtitan import TORCHTITAN
from .wrappers import NEMO, WRAPPERS

FRAMEWORKS = {
    one.name: one for one in (MEGATRON, TORCHTITAN, TORCH, DEEPSPEED, NEMO, NANOTRON, *WRAPPERS, INTERNEVO, MAXTEXT)
}
OFFERED = tuple(one for one in FRAMEWORKS.values() if one.offered)
# Fields by which a part of a file is known to say a job.
_TELLING = frozenset(
    (
        *("tensor", "pipeline", "data", "sharded", "copies", "context", "expert", "layers", "heads", "experts"),
        *("chunks", "chunk_layers", "split", "layout", "pattern", "micro_batch", "microbatches", "local_batch"),
        *("global_batch", "schedule", "zero", "recompute"),
    )
)


def framework_of(name: str) -> Framework:
    """The framework of this name.

    Raises:
        InputError: no framework has it; the nearest names are given.
    """
    if name.lower() not in FRAMEWORKS:
        raise nearest(name, FRAMEWORKS, "framework")
    return FRAMEWORKS[name.lower()]


def recognised(pairs: Pairs, where: str, program: str = "") -> Framework:
    """The framework whose program is launched, else the one whose own keys a configuration has most of.

    Args:
        pairs: what it says.
        where: what errors call it.
        program: the words of its command in front of the first flag; empty where no command says it.

    Raises:
        InputError: none, or several alike.
    """
    for one in FRAMEWORKS.values():
        if one.programs and re.search(one.programs, program):
            return one
    pairs = tuple({said.key: said for said in pairs}.values())  # a key is one sign, however often it is said
    counts = {name: keys_known(one, pairs) for name, one in FRAMEWORKS.items()}
    # The same words are Megatron-LM's as flags and a model provider's as fields.
    if counts[NEMO.name] and not any(said.key.startswith("--") and keys_known(MEGATRON, [said]) for said in pairs):
        counts[NEMO.name] = max(counts[NEMO.name], counts.pop(MEGATRON.name))
    most = max(counts.values(), default=0)
    best = [name for name, count in counts.items() if count == most]
    if most and len(best) > 1:  # keys that many have; those of one alone decide
        marked = {name: marks_known(FRAMEWORKS[name], pairs) for name in best}
        best = [name for name in best if marked[name] == max(marked.values())]
    if not most and any(said.key == "layout" for said in pairs):
        return MEGATRON  # nobody else writes stages as a string
    if not most:
        rule = "it has no key by which its framework could be told"
        raise InputError(Fault(where, rule, f"give --framework {'|'.join(FRAMEWORKS)}"))
    if set(best) == {MEGATRON.name, NEMO.name}:
        return MEGATRON
    if len(best) > 1:
        rule = f"it could be {' or '.join(best)}"
        raise InputError(Fault(where, rule, f"give --framework {'|'.join(best)}"))
    return FRAMEWORKS[best[0]]


def jobs_in(blocks: Sequence[Block], framework: Framework | None = None) -> tuple[Block, ...]:
    """The parts of a file that say a job: of a script its launch lines, of a program its configurations.

    A part that says less than half of what another one says is no job of its own: a command that prepares data, or that
    converts a checkpoint.

    Args:
        blocks: of one file.
        framework: whose words count; None for any.
    """
    asked = [framework] if framework else list(FRAMEWORKS.values())
    telling = [max(len(fields_known(one, block.pairs) & _TELLING) for one in asked) for block in blocks]
    most = max(telling, default=0)
    if not most:
        return tuple(blocks[:1])
    chosen: dict[tuple[tuple[str, str], ...], Block] = {}
    for block, many in zip(blocks, telling, strict=True):
        if many and (many * 2 >= most or not block.launched) and not block.name.startswith("_"):
            chosen.setdefault(tuple((said.key, str(said.value)) for said in block.pairs), block)
    return tuple(chosen.values()) or (blocks[telling.index(most)],)


def configurations_of(path: Path, framework: Framework | None = None) -> tuple[Config, ...]:
    """Every job that a launch configuration says, as it was said, each with its framework's name.

    Args:
        path: of a script, YAML, JSON, TOML or Python; ``file.py:function`` for one of several.
        framework: whose it is; None to be recognised.

    Raises:
        InputError: what cannot be read, of no known framework, or has no key that is known.
    """
    found = []
    blocks = blocks_of(path, framework)
    for block in blocks:
        whose = framework or recognised(signs_of(block, blocks), str(path), block.program)
        if not fields_known(whose, block.pairs):
            raise unknown_keys(path, whose)
        if OF_THE_MODEL.issuperset(fields_known(whose, block.pairs)):
            raise only_a_model(path)
        name = f"{path.name}:{block.name}".removesuffix(":")
        found.append(read_config(whose, block.pairs, name, whole=block.whole))
    return tuple(found)


def signs_of(block: Block, blocks: Sequence[Block]) -> Pairs:
    """What tells whose a part of a file is: of a script its own command, else the whole file, which is one framework's.

    One recipe of many may say too little by itself.
    """
    if block.launched:
        return block.pairs
    return tuple(said for one in blocks for said in one.pairs)


def blocks_of(path: Path, framework: Framework | None = None) -> tuple[Block, ...]:
    """The parts of a file that say a job; a part alone is named by nothing.

    Raises:
        InputError: the file cannot be read, or it has no part of the name that stands behind a colon.
    """
    name = ""
    if not path.exists() and ":" in path.name:
        path, name = path.with_name(path.name.rsplit(":", 1)[0]), path.name.rsplit(":", 1)[1]
    if not path.is_file():
        raise InputError(Fault(str(path), "no such file", "give a configuration or a launch script"))
    blocks = read_file(path)
    if name:
        named = tuple(block for block in blocks if block.name == name)
        if not named:
            raise nearest(name, [block.name for block in blocks], f"{path.name}: part")
        return named
    jobs = jobs_in(blocks, framework)
    if len(jobs) == 1:
        return (replace(jobs[0], name=""),)
    return jobs


def only_a_model(where: Path | str) -> InputError:
    """The fault of a file that says a model and nothing of how it is trained."""
    rule = "it says a model and nothing of a job: neither devices, degrees nor a batch"
    return InputError(Fault(str(where), rule, "give the launch configuration, or --pipeline and other flags beside it"))


def unknown_keys(where: Path | str, framework: Framework) -> InputError:
    """The fault of a file that says nothing to a framework, which is therefore never legal."""
    rule = f"no key of it is known to {framework.title}"
    return InputError(Fault(str(where), rule, "give the configuration itself, or another --framework"))
