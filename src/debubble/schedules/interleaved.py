"""Interleaved 1F1B: several chunks a rank shorten fill and drain by their number, for as many times the transfers.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
https://arxiv.org/abs/2104.04473, section 2.2 and figure 4; the group size N as in Megatron-LM's
``microbatch_group_size_per_vp_stage``: p runs depth first, m breadth first.

Steps, on rank r of p with v chunks, m micro-batches in groups of N (which op is the k-th: see ``rows.py::looped``):
    (1) warm-up: w = 2(p-1-r) + (v-1)N forwards, or all
    (2) steady: one forward, one backward
    (3) cool-down: the backwards that are left

p = 2, m = 4, B = 2F, v = 2; small letters are chunk 1:

    rank 0  F0 F1 f0 f1 F2  . b0--- F3 b1--- f2 B0--- f3 B1---  . b2---  . b3--- B2--- B3---
    rank 1   . F0 F1 f0 b0--- f1 b1--- F2 B0--- F3 B1--- f2 b2--- f3 b3--- B2--- B3---  .  .
"""

from __future__ import annotations

from ..core.errors import Fault
from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, looped
from .rules import check, multiple


def interleaved(shape: Shape) -> Schedule:
    """Interleaved 1F1B in Megatron's order, in groups of p unless the shape says otherwise.

    Raises:
        InputError: without a group, m is not a multiple of p; with a group of N, not p <= N <= m, or m leaves a
            last group of fewer than p.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    fault = _indivisible(p, m) if shape.group is None else _bad_group(p, m, shape.group)
    check("interleaved", shape, fault, chunks=None, takes=frozenset({"group"}))
    group = shape.group or p
    rows = [alternate(2 * (p - 1 - r) + (v - 1) * group, m * v) for r in range(p)]
    return looped("interleaved", shape, rows, group)


ENTRY = Entry(
    name="interleaved",
    build=interleaved,
    other_names=("1F1B-I", "1F1B-interleaved", "VPP", "virtual pipeline"),
    torch="Interleaved1F1B",
    paper="arXiv:2104.04473",
    placement="loop",
    chunks=2,
    any_chunks=True,
    needs="p <= N <= m; m % N = 0 or m % N >= p",
    bubble="(p-1)(F+B)/v",
    activations="min(2(p-1-r)+(v-1)N+1, m v)/v",
)


def smallest_group(ranks: int, microbatches: int) -> int | None:
    """The least group that so many micro-batches can go in; None where there is no one for each rank."""
    return next((n for n in range(ranks, microbatches + 1) if _suits(n, ranks, microbatches)), None)


def _indivisible(p: int, m: int) -> Fault | None:
    fault = multiple("microbatches", m, p, f"interleaved takes micro-batches in groups of {p}, one for each rank")
    if fault is None or m < p:
        return fault
    return Fault(fault.value, fault.rule, f"{fault.remedy}; or a group of {smallest_group(p, m)}")


def _bad_group(p: int, m: int, group: int) -> Fault | None:
    if m < p:
        rule = f"interleaved needs one micro-batch or more for each of its {p} ranks"
        return Fault(f"microbatches = {m}", rule, f"give {p} or more")
    if _suits(group, p, m):
        return None
    smaller = (n for n in range(min(group - 1, m), p - 1, -1) if _suits(n, p, m))
    larger = (n for n in range(max(group + 1, p), m + 1) if _suits(n, p, m))
    near = [n for n in (next(smaller, None), next(larger, None)) if n is not None]
    rule = f"a group, and the last one, holds from {p} (the ranks) to {m} (the micro-batches)"
    return Fault(f"group = {group}", rule, f"nearest: {' or '.join(map(str, near))}")


def _suits(group: int, p: int, m: int) -> bool:
    return p <= group <= m and (m % group == 0 or m % group >= p)
