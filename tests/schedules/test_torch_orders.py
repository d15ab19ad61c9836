"""PyTorch's own orders beside ours: the same op for op, or different for a reason that stands here."""

from dataclasses import replace

import numpy as np
import pytest

from debubble import Kind, Op, Shape, build, from_rows, violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def torch_rows():
    """The order that a schedule class of the installed torch would run: text of each slot, a row a rank."""
    pytest.importorskip("torch")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    def rows(name, p, m, v):
        return [[str(action) for action in row if action is not None] for row in get_schedule_ops(name, p, m, v)]

    return rows


def text_of(schedule):
    """The same text for our order; an overlapped pair is one slot."""
    rows = []
    for rank in range(schedule.ranks):
        row, ops = [], list(schedule.row(rank))
        first = schedule.offsets[rank]
        for at, op in enumerate(ops):
            if schedule.joined is not None and schedule.joined[first + at]:
                row[-1] = f"({row[-1]};{op})OVERLAP_F_B"
            else:
                row.append(str(op))
        rows.append(row)
    return rows


MICROBATCHES = (1, 2, 3, 4, 6, 8, 9, 10, 12, 16, 24)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved_1f1b_of_torch_is_ours_with_its_rounds_as_groups(torch_rows, p, v):
    compared = 0
    for m in MICROBATCHES:
        rounds = max(1, m // p)
        if m >= p and m % rounds == 0:  # torch also takes m below p, in one round
            ours = build("interleaved", Shape(p, m, v, group=m // rounds))
            assert text_of(ours) == torch_rows("Interleaved1F1B", p, m, v), (p, m, v)
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved_zero_bubble_of_torch_is_ours(torch_rows, p, v):
    for m in MICROBATCHES:
        if m % max(1, m // p) == 0:
            assert text_of(build("interleaved-zb", Shape(p, m, v))) == torch_rows("InterleavedZeroBubble", p, m, v)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_zbv_of_torch_is_ours(torch_rows, p):
    for m in MICROBATCHES:
        assert text_of(build("zb-v", Shape(p, m))) == torch_rows("ZBVZeroBubble", p, m, 2), (p, m)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_dualpipe_v_of_torch_is_ours_pairs_and_all(torch_rows, p):
    for m in (2 * p, 2 * p + 1, 3 * p, 24):
        assert text_of(build("dualpipe-v", Shape(p, m))) == torch_rows("DualPipeV", p, m, 2), (p, m)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_looped_bfs_of_torch_is_ours_but_takes_the_backwards_in_reverse(torch_rows, p):
    for m in MICROBATCHES:
        ours = build("looped-bfs", Shape(p, m, 2))
        reverse = replace(ours, unit=np.where(ours.kind == Kind.B, m - 1 - ours.unit, ours.unit).astype(np.int32))
        assert text_of(reverse) == torch_rows("LoopedBFS", p, m, 2), (p, m)


@pytest.mark.parametrize("p", [2, 4])
def test_gpipe_of_torch_is_ours(torch_rows, p):
    for m in (1, 3, 8):
        theirs = [[op for op in row if "REDUCE_GRAD" not in op] for row in torch_rows("GPipe", p, m, 1)]
        assert theirs == text_of(build("gpipe", Shape(p, m)))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 2), (8, 16)])
def test_the_static_1f1b_order_of_torch_skips_the_first_micro_batch_on_the_last_rank(torch_rows, p, m):
    theirs = [[op for op in row if "REDUCE_GRAD" not in op] for row in torch_rows("1F1B", p, m, 1)]
    if theirs == text_of(build("1f1b", Shape(p, m))):
        pytest.skip("this torch has mended it")
    found = violations(from_rows("torch 1f1b", [list(map(Op.parse, row)) for row in theirs], range(p), m))
    assert {violation.rank for violation in found} == {p - 1}
    assert any(f"{p - 1}F{m} does not exist" in str(violation) for violation in found)
