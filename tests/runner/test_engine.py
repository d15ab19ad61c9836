"""Our program in torch's words: what stands in each rank's list, and that torch's own rules find nothing wrong."""

from hypothesis import given, settings
from torch.distributed.pipelining import schedules as theirs

from debubble.core.lower import lower
from debubble.core.schedule import Op, Shape, from_rows
from debubble.runner.engine import actions
from debubble.schedules.catalog import build

from ..strategies import schedules


def written(schedule) -> list[str]:
    return [" ".join(map(str, row)) for row in actions(lower(schedule)).values()]


def test_1f1b_of_two_ranks_as_drawn():
    assert written(build("1f1b", Shape(2, 2))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
    ]


def test_a_slot_of_two_ops_is_an_overlap():
    rows = [[Op.parse(cell) for cell in ["0F0", "0F1", "0B0", "0B1"]]]
    schedule = from_rows("pair", rows, [0], 2, joined=[[False, False, True, False]])
    assert written(schedule) == ["0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD"]


def test_stages_of_one_rank_need_no_transfer():
    rows = [[Op.parse(cell) for cell in ["0F0", "1F0", "1I0", "0B0", "1W0"]]]
    assert written(from_rows("alone", rows, [0, 0], 1)) == ["0F0 1F0 1I0 0B0 1W0 0REDUCE_GRAD 1REDUCE_GRAD"]


def test_inference_reduces_nothing():
    assert written(build("forward-only", Shape(2, 1))) == ["0F0 0SEND_F0", "1RECV_F0 1F0"]


@given(schedule=schedules(slices=False, copies=False, modes=("fused", "split", "mixed")))
@settings(max_examples=60, deadline=None)
def test_torch_validates_every_order(schedule):
    rows = actions(lower(schedule))
    placement = theirs._validate_schedule(rows, schedule.ranks, schedule.stages, schedule.microbatches)
    assert placement == dict(enumerate(schedule.placement[0].tolist()))


@given(schedule=schedules(slices=False, copies=False))
@settings(max_examples=60, deadline=None)
def test_every_pair_of_ranks_receives_in_the_order_of_its_sends(schedule):
    home = schedule.placement[0].tolist()
    sent, received = {}, {}
    for rank, row in actions(lower(schedule)).items():
        for action in row:
            name, stage = action.computation_type.value, action.stage_index
            step = {"F": 1, "B": -1}.get(name[-1])
            if name.startswith("SEND"):
                sent.setdefault((rank, home[stage + step]), []).append((name[-1], stage, action.microbatch_index))
            elif name.startswith("RECV"):
                maker = stage - step
                received.setdefault((home[maker], rank), []).append((name[-1], maker, action.microbatch_index))
    assert sent == received
