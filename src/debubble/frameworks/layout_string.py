"""Megatron's layout string: stages between bars, ``Et*3|(tt|)*29,m|L``, laid on ranks chunk by chunk.

Letters: E embedding, t transformer layer, m layer that predicts further tokens, L loss. Stage i lives on rank
i mod p. Rules as in NVIDIA/Megatron-LM@d98e8a6 ``transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from ..core.errors import Fault, InputError
from .framework import Breach

LONGEST = 20_000  # letters and bars when written out; the longest model published has about 130 layers
_LETTERS = {"E": "embedding", "t": "layer", "m": "multi-token layer", "L": "loss"}
_GROUP = re.compile(r"\(([^()]+)\)\*(\d{1,6})")
_REPEAT = re.compile(r"([^*()])\*(\d{1,6})")
_ALIKE = re.compile(r"[EtmL][A-Za-z|*(),\d\s]*\|[A-Za-z|*(),\d\s]*")


@dataclass(frozen=True, slots=True)
class Stages:
    """A layout string, written out.

    Args:
        stages: letters of each stage.
        ranks: positions in the pipeline.
    """

    stages: tuple[str, ...]
    ranks: int

    @property
    def chunks(self) -> int:
        """Stages per rank (the part that is whole)."""
        return len(self.stages) // self.ranks

    def count(self, letter: str) -> int:
        """How often a letter occurs."""
        return sum(stage.count(letter) for stage in self.stages)

    @property
    def per_rank(self) -> tuple[int, ...]:
        """Transformer layers of each rank."""
        return tuple(sum(stage.count("t") for stage in self.stages[rank :: self.ranks]) for rank in range(self.ranks))


def looks_like_layout(text: str) -> bool:
    """Whether a text can only be meant as a layout string, right or wrong."""
    return bool(_ALIKE.fullmatch(text)) and "t" in text


def read_layout(text: str, ranks: int) -> Stages:
    """Write a layout string out.

    Raises:
        InputError: a character that no layout has, or repetitions that do not end.
    """
    written = text.replace(",", "").replace(" ", "")
    for pattern in (_GROUP, _REPEAT):
        _bounded(text, written, pattern)
        written = pattern.sub(lambda match: match[1] * int(match[2]), written)
    open_group = re.search(r"\([^()]*\)(?!\*\d)\*?|[^()|]?\*(?!\d)", written)
    if open_group:
        rule = f"{open_group[0]} does not say how often"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, "put a number behind the star, as in (tt|)*3"))
    strange = sorted(set(written) - set(_LETTERS) - {"|"})
    if strange:
        known = ", ".join(f"{letter} {name}" for letter, name in _LETTERS.items())
        rule = f"no layout has {' '.join(strange)}"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, f"known: {known}, and | between stages"))
    return Stages(tuple(written.split("|")), ranks)


def _bounded(text: str, written: str, pattern: re.Pattern[str]) -> None:
    length = len(written) + sum(len(match[1]) * int(match[2]) for match in pattern.finditer(written))
    if length > LONGEST:
        rule = f"written out it has {length:,} letters"
        raise InputError(Fault(f"layout = {text[:60]!r}", rule, f"stay under {LONGEST:,}"))


def layout_breaches(laid: Stages, layers: int | None, next_layers: int | None) -> Iterator[Breach]:
    """What Megatron-LM refuses of a layout."""
    flat = "".join(laid.stages)
    if len(laid.stages) % laid.ranks:
        rule = f"{len(laid.stages)} stages do not divide over {laid.ranks} ranks"
        yield _breach("stages", rule, "add or take away a bar", "pipeline")
    for letter, place, where in (("E", 0, "first"), ("L", -1, "last")):
        many = flat.count(letter)
        if many != 1 or flat[place] != letter:
            here = (
                f"here are {many}" if many != 1 else f"here it stands at place {flat.index(letter) + 1} of {len(flat)}"
            )
            yield _breach(f"one {letter}", f"exactly one {letter}, and it comes {where}; {here}", f"put it {where}")
    for letter, wanted, noun in (("t", layers, "layers"), ("m", next_layers, "multi-token layers")):
        if wanted is not None and flat.count(letter) != wanted:
            rule = f"{flat.count(letter)} {letter} for {wanted} {noun} of the model"
            yield _breach(
                f"count of {letter}", rule, f"write {wanted} {letter}", *(("layers",) if letter == "t" else ())
            )
    yield from _next_breaches(laid, flat)


def _next_breaches(laid: Stages, flat: str) -> Iterator[Breach]:
    many = flat.count("m")
    if not many:
        return
    if "t" in flat[flat.index("m") :]:
        yield _breach("m behind t", "layers t come before every m", "move m behind the last t")
    holders = [stage for stage, held in enumerate(laid.stages) if "m" in held]
    if len(holders) > 1:
        rule = f"all {many} m share one stage; here they are in {len(holders)}"
        yield _breach("m together", rule, "put them into one stage")
    if any(stage < len(laid.stages) - laid.ranks for stage in holders):
        yield _breach("m in the last chunk", "m lives in the last chunk of its rank", "move m towards the end")
    if laid.ranks > 1 and any(stage % laid.ranks == 0 for stage in holders):
        yield _breach("m off rank 0", "m does not live on the first rank", "move m to another rank")


def _breach(law: str, rule: str, remedy: str, *more: str) -> Breach:
    return Breach(f"layout: {law}", ("layout", *more), rule, remedy)


def write_layout(split: tuple[int, ...], next_layers: int = 0) -> str:
    """The string of a split into stages: embedding first, ``m`` and loss last, equal neighbours grouped."""
    stages = [f"t*{layers}" if layers > 1 else "t" * layers for layers in split]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "m" * next_layers + "L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages[:-1])]
    return "".join(f"({stage}|)*{many}" if many > 2 else f"{stage}|" * many for stage, many in runs) + stages[-1]
