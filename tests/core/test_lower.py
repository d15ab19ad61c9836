"""Lowering: every law of a schedule, one test each; deadlocks with their circle; where transfers have their turns."""

import numpy as np
import pytest
from hypothesis import given, settings

from debubble.core.engine import BLOCKING, IDEAL, LINK, RENDEZVOUS, SENDS
from debubble.core.errors import Deadlock, IllegalSchedule
from debubble.core.hosts import hosts_of
from debubble.core.kernels import users
from debubble.core.laws import needs_of, violations
from debubble.core.lower import lower, posted
from debubble.core.order_check import verify
from debubble.core.posting_rules import exchange
from debubble.core.posts import Act, Exchange, Order, mismatches
from debubble.core.schedule import Op, Shape, from_rows
from debubble.frameworks.engines import ENGINES
from debubble.schedules.catalog import CATALOG, build
from strategies import schedules


def order(*rows, placement=(0, 1), m=2, **more):
    return from_rows("hand", [[Op.parse(cell) for cell in row.split()] for row in rows], placement, m, **more)


GOOD = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")


def broken(*rows, **more):
    """What the laws say, as rank, position and sentence."""
    return [(v.rank, v.position, v.sentence) for v in violations(order(*rows, **more))]


def test_a_legal_order_breaks_no_law():
    assert broken(*GOOD) == []


def test_an_op_of_a_stage_that_does_not_exist():
    assert broken("0F0 2F0 0F1 0B0 0B1", GOOD[1]) == [(0, 1, "2F0 does not exist: there are 2 stages, counted from 0")]


def test_an_op_of_a_micro_batch_that_does_not_exist_hides_no_other_fault():
    assert broken("0F0 0F2 0B0 0B1", GOOD[1]) == [
        (0, 1, "0F2 does not exist: there are 2 micro-batches, counted from 0"),
        (0, -1, "0F1 is missing"),
    ]


def test_an_op_on_a_rank_that_does_not_hold_its_stage():
    assert broken("0F0 0F1 0B0 0B1 1F1", "1F0 1B0 1B1") == [(0, 4, "1F1 belongs on rank 1, where stage 1 lives")]


def test_an_op_that_stands_there_twice():
    assert broken("0F0 0F1 0F0 0B0 0B1", GOOD[1]) == [(0, 2, "0F0 repeats 0F0, which already ran")]


def test_a_full_backward_beside_a_split_one():
    assert broken("0F0 0F1 0B0 0B1 0I1", GOOD[1]) == [(0, 4, "0I1 repeats 0B1, which already ran")]


def test_a_weight_gradient_beside_a_full_backward():
    assert broken("0F0 0F1 0B0 0B1 0W1", GOOD[1]) == [(0, 4, "0W1 repeats 0B1, which holds W")]


@pytest.mark.parametrize("lost", ["1F1", "1B0"])
def test_an_op_that_is_missing(lost):
    assert broken(GOOD[0], GOOD[1].replace(lost, "")) == [(1, -1, f"{lost} is missing")]


def test_a_split_backward_without_its_second_half():
    assert broken("0F0 0F1 0B0 0I1", GOOD[1]) == [(0, -1, "0W1 is missing")]


def test_a_gradient_that_is_missing_has_no_second_half_that_could_be_missing_too():
    """Whatever op comes last: one fault is named once. Whether it was to be split nobody can tell."""
    assert broken("0F0 0F1 0B0", "1F0 1B0 1F1 1I1 1W1") == [(0, -1, "0B1 is missing")]
    assert broken("0F0 0F1 0B0", "1F0 1B0 1F1 1W1 1I1") == [(0, -1, "0B1 is missing")]
    assert broken(GOOD[0], "1F0 1F1 1I0 1W0") == [(1, -1, "1B1 is missing")]


def test_a_weight_gradient_without_any_gradient_of_the_input():
    """It repeats nothing; what it builds on is missing."""
    assert broken("0F0 0F1 0B0 0W1", GOOD[1]) == [(0, -1, "0B1 is missing")]


def test_a_backward_before_its_forward():
    assert broken("0F0 0B1 0F1 0B0", GOOD[1]) == [(0, 1, "0B1 stands before 0F1, which it builds on")]


def test_a_weight_gradient_before_the_gradient_of_the_input():
    assert broken("0F0 0F1 0W0 0I0 0B1", GOOD[1]) == [(0, 2, "0W0 stands before 0I0, which it builds on")]


def test_a_slice_before_the_slice_that_it_attends_to():
    rows = [[Op.parse(cell, 2) for cell in ("0F0.1", "0F0.0", "0B0.1", "0B0.0")]]
    found = violations(from_rows("hand", rows, [0], 1, slices=2))
    assert [str(v) for v in found] == ["rank 0 position 0: 0F0.1 stands before 0F0.0, which it builds on"]


def test_a_gradient_of_a_slice_before_that_of_the_slice_behind_it():
    rows = [[Op.parse(cell, 2) for cell in ("0F0.0", "0F0.1", "0B0.0", "0B0.1")]]
    found = violations(from_rows("hand", rows, [0], 1, slices=2))
    assert [str(v) for v in found] == ["rank 0 position 2: 0B0.0 stands before 0B0.1, which it builds on"]


def test_micro_batches_of_a_stage_out_of_order_where_order_is_asked_for():
    schedule = order("0F1 0F0 0B0 0B1", "1F1 1B1 1F0 1B0")
    assert violations(schedule) == []
    assert [str(v) for v in violations(schedule, in_order=True)] == [
        "rank 0 position 1: 0F0 comes after 0F1: not first in, first out",
        "rank 1 position 2: 1F0 comes after 1F1: not first in, first out",
        "rank 1 position 3: 1B0 comes after 1B1: not first in, first out",
    ]


def joined(*marks):
    return {"joined": [[mark == "1" for mark in row] for row in marks]}


@pytest.mark.parametrize(
    ("rows", "marks", "sentence"),
    [
        (GOOD, ("0000", "0100"), "1B0 shares a slot with 1F0, which it builds on"),
        (GOOD, ("0110", "0000"), "0B0 joins a slot that has no room: a slot holds one op or two"),
        (GOOD, ("0000", "1000"), "1F0 joins a slot that has no room: a slot holds one op or two"),
    ],
)
def test_a_pair_whose_ops_cannot_run_together(rows, marks, sentence):
    assert [v.sentence for v in violations(order(*rows, **joined(*marks)))] == [sentence]


@pytest.mark.parametrize("rows", ["0F0 1F0", "0F0 1F0 1I0 0I0 1W0 0W0"])
def test_a_pair_of_two_stages_that_feed_each_other_is_refused(rows):
    marks = ["1" if cell in ("1F0", "0I0") else "0" for cell in rows.split()]
    found = violations(order(rows, placement=(0, 0), m=1, **joined(marks)))
    assert [v.sentence.split(" with ")[0] for v in found] == [
        f"{cell} shares a slot" for cell, mark in zip(rows.split(), marks, strict=True) if mark == "1"
    ]


def test_all_violations_travel_with_the_refusal_and_twenty_are_spelled_out():
    with pytest.raises(IllegalSchedule, match=r"rank 0: 0F0 is missing(.|\n)*and 10 more") as error:
        lower(order("", "", m=15))
    assert len(error.value.violations) == 30
    assert str(error.value).count("is missing") == 20


def test_two_ranks_that_wait_for_each_other_are_named_with_what_they_wait_for():
    with pytest.raises(Deadlock, match=r"0B0 \(rank 0\) waits for 1F1 \(rank 1\) waits for 0B0 \(rank 0\)") as error:
        lower(order("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"))
    assert [str(v) for v in error.value.violations] == [
        "rank 0 position 1: 0B0 waits for 1B0 on rank 1 for ever",
        "rank 1 position 0: 1F1 waits for 0F1 on rank 0 for ever",
    ]


@pytest.mark.parametrize("engine", [*SENDS.values(), *ENGINES.values()], ids=[*SENDS, *ENGINES])
def test_a_circle_of_ops_is_named_under_every_engine(engine):
    """Each stage runs both micro-batches of its own chunk first: 2F0 needs 1F0, which rank 1 runs behind 3F0."""
    rows = ("0F0 2F0 0F1 2F1 2B0 2B1 0B0 0B1", "3F0 1F0 3F1 1F1 3B0 3B1 1B0 1B1")
    with pytest.raises(Deadlock, match=r"2F0 \(rank 0\) waits for 3F0 \(rank 1\) waits for 2F0 \(rank 0\)"):
        lower(order(*rows, placement=(0, 1, 0, 1)), engine)


def test_a_rank_outside_the_circle_is_not_part_of_it():
    rows = ("0F0 0B0", "2F0 1F0 1B0 2B0", "3F0 3B0")
    with pytest.raises(Deadlock) as error:
        lower(order(*rows, placement=(0, 1, 1, 2), m=1))
    assert error.value.cycle == ("2F0 (rank 1)",)
    assert {v.rank for v in error.value.violations} == {0, 1, 2}


def test_a_pair_that_needs_what_it_makes_deadlocks():
    """0F1 and 0B0 together, but 0B0 needs 1B0, which rank 1 runs behind 1F1."""
    with pytest.raises(Deadlock):
        lower(order("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", **joined("0010", "0000")))


def waits(schedule, sends, given=None):
    """The program, and the ops and transfers that each op or transfer waits for, by number; of no stops."""
    program = lower(schedule, sends, given)
    stands = [program.order[line[1:]].tolist() for line in program.waits]
    waited = [{number for number in numbers if number >= 0} for numbers in zip(*stands, strict=True)]
    return program, dict(zip(program.order[1:].tolist(), waited, strict=True))


def test_asynchronous_programs_have_no_rows_for_transfers():
    assert len(lower(order(*GOOD)).order) == 1 + len(order(*GOOD))  # and the start


def test_a_link_has_lanes_of_its_own():
    program, waited = waits(order(*GOOD), LINK)
    names = [str(program.schedule.op(op)) for op in program.producer]
    first, second = (len(program.schedule) + names.index(name) for name in ("0F0", "0F1"))
    assert waited[first] == {0}  # 0F0 itself
    assert waited[second] == {1, first}


def test_a_blocking_send_stands_between_the_ops_of_its_sender():
    program, waited = waits(order(*GOOD), BLOCKING)
    names = [str(program.schedule.op(op)) for op in program.producer]
    assert waited[1] == {len(program.schedule) + names.index("0F0")}  # 0F1 comes after the send of 0F0


def test_a_rendezvous_has_its_turn_on_both_sides():
    program, waited = waits(order(*GOOD), RENDEZVOUS)
    names = [str(program.schedule.op(op)) for op in program.producer]
    second = len(program.schedule) + names.index("0F1")
    assert 1 in waited[second]  # 0F1 itself, on rank 0
    assert len(waited[second]) == 2  # and something on rank 1
    assert all(len(waited[op]) == 1 for op in range(1, 4))  # an op behind what came before it on its rank


@pytest.mark.parametrize("name", list(CATALOG))
@pytest.mark.parametrize("sends", list(SENDS.values()), ids=list(SENDS))
def test_no_schedule_of_the_catalog_deadlocks_however_it_is_sent(name, sends):
    for p, m in ((2, 4), (4, 8), (6, 12)):
        schedule = build(name, Shape(p, m))
        assert len(lower(schedule, sends)) >= len(schedule)


@pytest.mark.parametrize("name", list(CATALOG))
def test_our_order_of_sends_and_receives_is_without_a_fault(name):
    program = lower(build(name, Shape(4, 8)))
    assert mismatches(program.schedule, exchange(program)) == []


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_our_order_of_sends_and_receives_is_without_a_fault_on_random_schedules(schedule):
    placed = exchange(lower(schedule))
    assert mismatches(schedule, placed) == []
    assert verify(schedule, placed, tuple(SENDS.values())).legal


def test_neighbours_exchange_in_pairs():
    """In one round of a full pipeline the even ranks' transfers touch no rank twice."""
    placed = exchange(lower(build("gpipe", Shape(6, 6))))
    rank_1 = slice(placed.offsets[1], placed.offsets[2])
    acts = "".join("CSR"[act] for act in placed.act[rank_1][:9])
    assert acts == "RCRSCRSCR"


def test_the_given_order_of_sends_is_kept():
    schedule = order("0F0 0F1", "1F0 1F1")
    late = Exchange(  # rank 0 sends both only behind 0F1
        np.array(
            [Act.COMPUTE, Act.COMPUTE, Act.SEND, Act.SEND, Act.RECEIVE, Act.COMPUTE, Act.RECEIVE, Act.COMPUTE], "u1"
        ),
        np.array([0, 1, 0, 1, 2, 2, 3, 3], np.int32),
        np.array([-1, -1, 1, 1, 0, -1, 0, -1], np.int32),
        np.array([0, 4, 8]),
    )
    for sends in (IDEAL, LINK, BLOCKING, RENDEZVOUS):
        waited = waits(schedule, sends, late)[1]
        assert 1 in waited[len(schedule)]  # the send of 0F0 stands behind 0F1


def test_at_most_four_items_wait_for_one_however_many_receives_a_gap_holds():
    """Rounds wake whoever waits for an item, by a table as wide as that; DualPipe has gaps of six posts."""
    schedule = build("dualpipe", Shape(4, 12))
    order, engine = Order(schedule, needs_of(schedule)[0]), ENGINES["torch:one-lane"]
    assert len(users(hosts_of(order, posted(order, engine), engine, occupied=False).needs)) == 4


def test_positions_of_ranks_that_wait_for_sends_and_receives_count_the_cells_of_each_rank():
    """Rank 0 receives a gradient before it sends what that is the gradient of."""
    schedule = order("0F0 0B0", "1F0 1B0", m=1)
    compute, send, receive = Act
    act = [compute, receive, send, compute, receive, compute, compute, send]
    op, peer = [0, 1, 0, 1, 2, 2, 3, 3], [-1, 1, 1, -1, 0, -1, -1, 0]
    columns = (np.array(act, np.uint8), np.array(op, np.int32), np.array(peer, np.int32), np.array([0, 4, 8]))
    with pytest.raises(Deadlock) as error:
        lower(schedule, RENDEZVOUS, Exchange(*columns))
    assert [str(violation) for violation in error.value.violations] == [
        "rank 0 position 1: R 1B0 waits for S 1B0 on rank 1 for ever",
        "rank 1 position 0: R 0F0 waits for S 0F0 on rank 0 for ever",
    ]
