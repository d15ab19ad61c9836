"""What names of ops and events say, however a tracer spells them: kind, stage, chunk, micro-batch, a transfer, a role.

A name is read word by word, in any case: ``fwd_compute``, ``ForwardStep 3``, ``bwd-mb7-chunk1``, ``2F0``, ``W[4]``,
``transpose(jvp(stage_0))``. A number after the direction is the micro-batch, one glued in front of it (``2F0``) is the
stage, others belong to the word in front of them. JAX names what it differentiates: ``jvp`` is the forward, its
``transpose`` the backward (https://docs.jax.dev/en/latest/autodidax.html). Zero-bubble runtimes call I ``B``; so does
Paddle (``backward_b``, ``backward_w``).

An event of PyTorch's profiler also has a category, and both together tell its role. If only names can tell a direction,
one (of a kernel or of a range around its launch) that holds ``forward`` or ``fwd`` as a word is F, ``backward`` or
``bwd`` is B; optimizer kernels (``multi_tensor_apply``, Adam, SGD, ..) are neither, whatever else their name holds.

*PithTrain's ranges* name no op by themselves; the one order that its engine runs tells which each is.
Its engine (https://github.com/mlc-ai/Pith-Train, pithtrain/dualpipe/dualpipev.py) is DeepSeek's DualPipeV in eight
steps. A chunk is a micro-batch, a phase the arm of the V; a weight chunk names none, and no backward says whether it
leaves its weights for later:

    forward chunk 3 (phase0)                                    F3 of stage r
    backward chunk 1 (phase1)                                   B1 or I1 of stage 2p-1-r
    forward chunk 4 (phase0) backward chunk 1 (phase1)          both, overlapped
    weight chunk                                                W of the oldest I that has none yet

A rank at distance d from the turn of the V begins its backwards with d that a weight chunk follows at once (step 3),
and ends with p that leave their weights (the second half of step 6, and step 7). So k weight chunks, of which the first
d follow a backward at once, say that p = k - d, that the rank is r = p - 1 - d, and which backwards are I.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from ..core.schedule import Kind
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
    # JAX's names hold 'jvp' inside 'transpose(jvp(..))': the outer word decides.
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
    # 'backward_all_reduce' is no backward, and 'forward_backward' is the whole schedule.
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


class Role(IntEnum):
    """What an event is to a reader of pipelines."""

    NONE = 0
    LABEL = 1  # a span that names an op, on the CPU
    TOLD = 2  # a span of work whose name or arguments say which op it is
    STEP = 3
    OPTIMIZER = 4
    RANGE = 5  # a user's range whose name tells a direction
    SEND = 6  # from its post to the end of its wait
    RECEIVE = 7
    COMMS = 8  # a call on the CPU whose arguments say what it is
    ENGINE = 9  # work of the autograd engine on the CPU
    CALL = 10  # any other work on the CPU
    KERNEL = 11
    COMM_KERNEL = 12
    LAUNCH = 13
    FLOW = 14  # from a forward op to its backward
    THREAD = 15  # the name of one
    PROCESS = 16
    POST = 17  # of a send or receive
    MEMORY = 18  # bytes that are allocated, at a moment


class Way(IntEnum):
    """Direction of work as far as it can be told."""

    UNTOLD = -1
    BACKWARD = 0
    FORWARD = 1
    NEITHER = 2


# Categories of today, and of 2021 (``Operator``, ``Kernel``, ``Runtime``).
_CPU = {"cpu_op", "Operator", "cpu_instant_event"}
_KERNELS = {"kernel", "Kernel"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "mtia_runtime", "privateuse1_runtime"}
_RANGES = {"user_annotation", "User_Annotation", "gpu_user_annotation"}
SKIPPED = frozenset(
    {"python_function", "ac2g", "overhead", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "cuda_sync", "Trace"}
)

_TITLES = {"thread_name": Role.THREAD, "process_name": Role.PROCESS}
_ENGINE = "autograd::engine::evaluate_function"
_STEP = re.compile(r"ProfilerStep\s*#?\s*(\d{1,18})")
_PAIR = re.compile(r"PP:\((\d{1,9})([FIWB])(\d{1,9});(\d{1,9})([FIWB])(\d{1,9})\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"nccl|rccl|msccl|SendRecv|nvshmem|\bdeep_?ep\b", re.IGNORECASE)
_FORWARD = re.compile(r"(?<![a-z])(?:fwd|forward|jvp)(?![a-z])", re.IGNORECASE)
_BACKWARD = re.compile(r"(?<![a-z])(?:bwd|backward)(?![a-z])|transpose\(jvp", re.IGNORECASE)
_OPTIMIZER = re.compile(
    r"multi_tensor_apply|optimizer|adam|(?<![a-z])(?:sgd|lamb|lion|adagrad)(?![a-z])", re.IGNORECASE
)
_SENDS = re.compile(r"(?:gloo|nccl|mpi|ucc):i?(send|recv)\b")


def role_of(category: str, name: str) -> Role:
    """The role of every event of this category and name."""
    if category in _KERNELS:
        return Role.COMM_KERNEL if _COMMUNICATION.search(name) else Role.KERNEL
    if category in _LAUNCHES:
        return Role.LAUNCH
    if category == "fwdbwd":
        return Role.FLOW
    if name == "[memory]":
        return Role.MEMORY
    if category in _CPU:
        return _role_of_call(name)
    if category == "gpu_user_annotation":
        return Role.NONE  # a copy of the range of the CPU, widened by what it launched
    if category in _RANGES:
        return _role_of_range(name)
    if name in _TITLES:
        return _TITLES[name]
    said = read_name(name)
    return Role.TOLD if said.transfers or said.plain else Role.NONE


def _role_of_call(name: str) -> Role:
    if name.startswith("record_param_comms"):
        return Role.COMMS
    if name.startswith(_ENGINE):
        return Role.ENGINE
    if name.startswith("c10d::"):
        return Role.POST if "send" in name or "recv" in name else Role.NONE
    return Role.CALL


def _role_of_range(name: str) -> Role:
    if _STEP.fullmatch(name):
        return Role.STEP
    if ops_of(name):
        return Role.LABEL
    if name.startswith("Optimizer.step"):
        return Role.OPTIMIZER
    move = _SENDS.match(name)
    if move:
        return Role.SEND if move[1] == "send" else Role.RECEIVE
    return Role.RANGE if way_of(name) in (Way.FORWARD, Way.BACKWARD) else Role.NONE


def way_of(name: str) -> Way:
    """The direction that a name tells, by the rule above."""
    if _OPTIMIZER.search(name):
        return Way.NEITHER
    backward = bool(_BACKWARD.search(name))
    forward = bool(_FORWARD.search(name)) and not (backward and "jvp" in name)
    if forward == backward:
        return Way.UNTOLD
    return Way.FORWARD if forward else Way.BACKWARD


def step_of(name: str) -> int:
    """The number in ``ProfilerStep#23``."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else UNKNOWN


def ops_of(name: str) -> tuple[tuple[Kind, int, int], ...]:
    """Kind, stage (-1 if the name has none) and micro-batch of the one or two ops that a label names."""
    if pair := _PAIR.fullmatch(name):
        return (Kind[pair[2]], int(pair[1]), int(pair[3])), (Kind[pair[5]], int(pair[4]), int(pair[6]))
    said = read_name(name)
    if said.kind is None or said.unit == UNKNOWN or not said.plain:
        return ()
    return ((said.kind, said.stage, said.unit),)


_RANK = r"(?:rank \d+ )?"
_OP = r"(forward|backward) chunk (\d{1,9}) \(phase([01])\)"
_NAME = re.compile(rf"{_RANK}(?:overlapped )?{_OP}(?: {_OP})?.*")
_WEIGHT_CHUNK = re.compile(rf"{_RANK}weight chunk")


@dataclass(frozen=True, slots=True)
class Pass:
    """One op of a rank, as far as its range says it.

    Args:
        row: of the range among those of its device.
        letter: F, B (which may turn out to be I) or W.
        chunk: micro-batch; -1 of a W.
        phase: arm of the V; -1 of a W.
    """

    row: int
    letter: str
    chunk: int = -1
    phase: int = -1


def is_pith(name: str) -> bool:
    """Whether a range is one of PithTrain's."""
    return bool(_NAME.fullmatch(name) or _WEIGHT_CHUNK.fullmatch(name))


def ops_of_pith(names: Sequence[str]) -> tuple[dict[int, tuple[str, ...]], list[str]]:
    """The ops of the ranges of one device.

    Args:
        names: of its ranges that are PithTrain's, in order of time.

    Returns:
        By the index of a range one label of an op, or two if they overlap, as in ``PP:2F0``; and what was left out, a
        clause each.
    """
    labels: dict[int, tuple[str, ...]] = {}
    parts = evaluations = 0
    for step in _steps(list(_passes(names))):
        if not any(one.letter == "B" for one in step):
            evaluations += 1
            continue
        found = _labelled(step)
        if found is None:
            parts += 1
            continue
        for row, label in found:
            labels[row] = (*labels.get(row, ()), label)
    clauses = []
    if parts:
        why = "they are not whole, or not in the order of its engine"
        clauses.append(f"{parts} steps of PithTrain's ranges were left out: {why}")
    if evaluations:
        clauses.append(f"{evaluations} steps without a backward were left out")
    return labels, clauses


def _passes(names: Sequence[str]) -> Iterator[Pass]:
    for row, name in enumerate(names):
        said = _NAME.fullmatch(name)
        if said is None:
            yield Pass(row, "W")
            continue
        for way, chunk, phase in (said.groups()[:3], said.groups()[3:]):
            if way:
                yield Pass(row, "F" if way == "forward" else "B", int(chunk), int(phase))


def _steps(passes: Sequence[Pass]) -> Iterator[Sequence[Pass]]:
    """Each step, which begins with the first forward of phase 0; what comes before the first one is cut off."""
    begins = [i for i, one in enumerate(passes) if (one.letter, one.chunk, one.phase) == ("F", 0, 0)]
    for begin, end in pairwise([*begins, len(passes)]):
        yield passes[begin:end]


def _labelled(step: Sequence[Pass]) -> list[tuple[int, str]] | None:
    """Row and label of each op of one step; None if it is no whole step of the engine."""
    backwards = [i for i, one in enumerate(step) if one.letter == "B"]
    weights = [one for one in step if one.letter == "W"]
    early = 0
    for i in backwards:
        if i + 1 == len(step) or step[i + 1].letter != "W":
            break
        early += 1
    ranks = len(weights) - early
    rank = ranks - 1 - early
    if rank < 0 or not _whole(step, early) or len(backwards) < len(weights):
        return None
    late = backwards[:early] + backwards[len(backwards) - ranks :]
    waiting: list[Pass] = []
    found = []
    for i, one in enumerate(step):
        if one.letter == "W":
            if not waiting:
                return None
            kind, of = "W", waiting.pop(0)
        elif i in late:
            kind, of = "I", one
            waiting.append(one)
        else:
            kind, of = one.letter, one
        stage = rank if of.phase == 0 else 2 * ranks - 1 - rank
        found.append((one.row, f"PP:{stage}{kind}{of.chunk}"))
    return found


def _whole(step: Sequence[Pass], early: int) -> bool:
    """Whether each micro-batch has a forward and a backward in both phases, and the first forwards are those of d."""
    forwards = [(one.phase, one.chunk) for one in step if one.letter == "F"]
    backwards = [(one.phase, one.chunk) for one in step if one.letter == "B"]
    chunks = max(chunk for _, chunk in forwards) + 1
    every = [(phase, chunk) for phase in (0, 1) for chunk in range(chunks)]
    first = [phase for phase, _ in forwards].index(1) if (1, 0) in forwards else -1
    # Step 1 has 2d forwards of phase 0, step 2 begins with one more.
    return sorted(forwards) == every == sorted(backwards) and first == 2 * early + 1
