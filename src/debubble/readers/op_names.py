"""What the name of an op says, however a tracer spells it: kind, stage, chunk, micro-batch, or a transfer.

A name is read word by word, in any case: ``fwd_compute``, ``ForwardStep 3``, ``bwd-mb7-chunk1``, ``2F0``, ``W[4]``,
``transpose(jvp(stage_0))``. A number after the direction is the micro-batch, one glued in front of it (``2F0``) is the
stage, others belong to the word in front of them. JAX names what it differentiates: ``jvp`` is the forward, its
``transpose`` the backward (https://docs.jax.dev/en/latest/autodidax.html). Zero-bubble runtimes call I ``B``; so does
Paddle (``backward_b``, ``backward_w``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.op import Kind
from ..reconstruct.device_ops import UNKNOWN

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_GLUED = re.compile(r"(?i)(forward|backward|fwd|bwd)(?=pass|step|compute|op\b|chunk|mb)")
_JAX = re.compile(r"(transpose\()?jvp\(")
_STAGE_OF = re.compile(r"(?<![A-Za-z\d])(\d{1,9})[FIWB](?=\d)")  # the 2 of 2F0

FORWARD = frozenset({"f", "fw", "fwd", "forward", "forwards", "fprop"})
BACKWARD = frozenset({"b", "bw", "bwd", "backward", "backwards", "bprop"})
_INPUT = frozenset({"i", "input", "inputs", "dgrad"})
_WEIGHT = frozenset({"w", "weight", "weights", "wgrad"})
_SEND = frozenset({"send", "isend", "sends"})
_RECEIVE = frozenset({"recv", "irecv", "receive"})
_DOWN = frozenset({"activation", "activations"})
_UP = frozenset({"gradient", "gradients", "grad", "grads"})
_MOST_DIGITS = 9  # of a micro-batch, stage or chunk
_OUTSIDE = frozenset({"reduce", "gather", "scatter", "optimizer", "allreduce", "allgather"})
# Words that may stand beside a direction without changing what is meant, and those of them that a number may follow.
_UNIT = frozenset({"microbatch", "batch", "mb", "mbs", "micro"})
_CHUNK = frozenset({"chunk", "vp", "vpp", "virtual"})
_STAGE = frozenset({"stage"})
_BESIDE = frozenset({"compute", "step", "pass", "model", "op", "pp", "pipeline", "rank", "train", "index", "idx", "id"})
_TELLING = FORWARD | BACKWARD | _UP | {"i", "w", "dgrad", "wgrad"}  # a lone "input" or "weight" is no op
_PLAIN = FORWARD | BACKWARD | _UP | _INPUT | _WEIGHT | _UNIT | _CHUNK | _STAGE | _BESIDE


@dataclass(frozen=True, slots=True)
class OpName:
    """What one name says.

    Args:
        kind: of the work; None if it is none.
        stage: -1 if the name has none, as with the next two.
        chunk: index of the stage among those of its rank.
        unit: micro-batch.
        send: whether it sends or receives; None if it does neither or both.
        transfers: whether it sends or receives.
        forward: of a transfer, 1 for activations, 0 for gradients, -1 if unknown.
        plain: whether no word stands in it that an op's name has no use for.
    """

    kind: Kind | None = None
    stage: int = UNKNOWN
    chunk: int = UNKNOWN
    unit: int = UNKNOWN
    send: bool | None = None
    transfers: bool = False
    forward: int = UNKNOWN
    plain: bool = False


def read_name(name: str) -> OpName:
    """Read a name; one that says nothing has neither a kind nor a transfer."""
    jax = _JAX.search(name)
    if jax is not None:
        return OpName(kind=Kind.B if jax[1] else Kind.F, plain=True)
    words = [word.lower() for word in _WORD.findall(_GLUED.sub(r"\1 ", name))]
    said = set(words)
    if said & (_SEND | _RECEIVE):
        return _transfer(said)
    kind = _kind(said)
    if kind is None:
        return OpName()
    plain = bool(said & _TELLING) and all(word in _PLAIN or word.isdecimal() for word in words)
    numbers = _numbers(words)
    stage = _STAGE_OF.search(name)
    return OpName(
        kind=kind,
        stage=int(stage[1]) if stage is not None else numbers.get("stage", UNKNOWN),
        chunk=numbers.get("chunk", UNKNOWN),
        unit=numbers.get("unit", numbers.get("index", UNKNOWN)),
        plain=plain,
    )


def _kind(said: set[str]) -> Kind | None:
    forward, backward = bool(said & FORWARD), bool(said & BACKWARD)
    if said & _OUTSIDE or (forward and backward):
        return None
    if forward:
        return Kind.F
    if said & _WEIGHT:
        return Kind.W
    if said & _INPUT or {"backward", "b"} <= said:  # a backward of two letters is one of two halves
        return Kind.I
    return Kind.B if backward else None


def _transfer(said: set[str]) -> OpName:
    forward, backward = bool(said & (FORWARD | _DOWN)), bool(said & (BACKWARD | _UP))
    sends, receives = bool(said & _SEND), bool(said & _RECEIVE)
    if forward == backward and said & {"next", "prev"}:  # activations go to the next rank, gradients to the one before
        forward = sends == ("next" in said)
        backward = not forward
    return OpName(
        send=None if sends and receives else sends,
        transfers=True,
        forward=UNKNOWN if forward == backward else int(forward),
    )


def _numbers(words: list[str]) -> dict[str, int]:
    """The numbers of a name by what they count; ``index`` is one after the direction that nothing else claims."""
    found: dict[str, int] = {}
    owner, after = "", False
    for word in words:
        if word.isdecimal():
            claims = owner or ("index" if after else "")
            if claims and len(word) <= _MOST_DIGITS:
                found.setdefault(claims, int(word))
            owner = ""
        elif word in _UNIT:
            owner = "unit"
        elif word in _CHUNK:
            owner = "chunk"
        elif word in _STAGE:
            owner = "stage"
        elif word in FORWARD | BACKWARD | _INPUT | _WEIGHT:
            owner, after = "", True
        elif word in {"pp", "rank"}:
            owner = "place"
    return found
