"""What the name and category of an event say: its role in a trace, an op, a direction.

The rule for directions, if only names can tell: a name (of a kernel or of a range around its launch) that holds
``forward`` or ``fwd`` as a word is F, ``backward`` or ``bwd`` is B; optimizer kernels (``multi_tensor_apply``, Adam,
SGD, ..) are neither, whatever else their name holds.
"""

from __future__ import annotations

import re
from enum import IntEnum

from ...core.op import Kind
from ...reconstruct.device_ops import UNKNOWN
from ..op_names import read_name


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
