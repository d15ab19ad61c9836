"""Placement: which groups of devices cross nodes, by the order in which the axes of a job are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import prod


@dataclass(frozen=True, slots=True)
class Placed:
    """One order of axes and what it does.

    Args:
        order: axes, outermost first: neighbours on the innermost axis are neighbouring devices.
        crossing: axes of which a group has members on different nodes.
        first_groups: devices of the first group of each axis that has more than one member.
    """

    order: tuple[str, ...]
    crossing: tuple[str, ...]
    first_groups: dict[str, tuple[int, ...]]


def placed(order: tuple[str, ...], sizes: dict[str, int], per_node: int) -> Placed:
    """Lay out axes over devices numbered node by node.

    Args:
        order: outermost first.
        sizes: members of each axis.
        per_node: devices of a node.
    """
    strides = {axis: prod(sizes[inner] for inner in order[n + 1 :]) for n, axis in enumerate(order)}
    groups = {axis: tuple(k * strides[axis] for k in range(sizes[axis])) for axis in order if sizes[axis] > 1}
    crossing = tuple(axis for axis in groups if not _within_nodes(strides[axis], sizes[axis], per_node))
    return Placed(order, crossing, groups)


def _within_nodes(stride: int, size: int, per_node: int) -> bool:
    """Whether every group of an axis lies in one node: groups are aligned to stride x size devices."""
    return per_node % (stride * size) == 0


def orders(sizes: dict[str, int], per_node: int) -> list[Placed]:
    """Every order that keeps tensor innermost, those in which the pipeline crosses nodes and data does not first.

    Pipelines send the least between nodes, so they belong outermost.
    """
    outer = [axis for axis in sizes if axis != "tensor" and sizes[axis] > 1]
    inner = ["tensor"] if sizes.get("tensor", 1) > 1 else []
    found = [placed((*order, *inner), sizes, per_node) for order in permutations(outer)]
    cost = {"pipeline": 1, "data": 2, "context": 4, "tensor": 8}
    return sorted(found, key=lambda one: sum(cost.get(axis, 4) for axis in one.crossing))
