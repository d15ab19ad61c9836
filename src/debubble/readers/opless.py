"""Files of known tools that hold no op of a micro-batch: refused by name, with what is missing and what helps.

torchtitan's structured log spans whole phases of a step (``fwd_bwd_start`` to ``fwd_bwd_end``, torchtitan's
``observability/structured_logger``). The flight recorder of torch's NCCL process groups tells sends, receives and
collectives (https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html); a rank that waits in one and a
rank that computes look alike in it. A bubble is what work leaves over, so neither can say how large it is.
"""

from __future__ import annotations

import re

_JSON = (b"{", b"[")
_TITAN = re.compile(rb'"log_type_name"\s*:')
_TITAN_BESIDE = (b'"time_us"', b'"seq_id"', b'"rank"')
_FLIGHT = re.compile(rb'"profiling_name"\s*:\s*"|"pg_status"\s*:')
_FLIGHT_BESIDE = (b'"pg_config"', b'"time_created_ns"', b'"nccl_version"', b'"comm_lib_version"')

TITAN = (
    "it is torchtitan's structured log: its spans are phases of a step (fwd_bwd), without forwards and backwards",
    "profile a few steps with torch.profiler, or run the job under debubble record",
)
FLIGHT = (
    "it is a dump of the NCCL flight recorder: sends, receives and collectives, without the compute between them",
    "profile a few steps with torch.profiler, or run the job under debubble record",
)


def is_titan(head: bytes) -> bool:
    """Whether a file that begins like this is a structured log of torchtitan; one line of it is enough."""
    return head.lstrip()[:1] == b"{" and bool(_TITAN.search(head)) and all(key in head for key in _TITAN_BESIDE)


def is_flight(head: bytes) -> bool:
    """Whether a file that begins like this is a flight recorder's dump as JSON."""
    return head.lstrip()[:1] in _JSON and bool(_FLIGHT.search(head)) and any(key in head for key in _FLIGHT_BESIDE)
