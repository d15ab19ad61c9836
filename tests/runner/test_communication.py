"""An engine executed: ranks post and wait by its list, on a clock that the test holds, and end when simulation says."""

from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from debubble import Shape
from debubble.core.costs import Costs
from debubble.core.lower import lower
from debubble.core.schedule import KINDS, Kind
from debubble.core.simulate import simulate
from debubble.frameworks.engines import engine_of
from debubble.runner.task import why_not_executed
from debubble.schedules.catalog import build

pytest.importorskip("torch")

SPENT = {Kind.F: 20, Kind.I: 21, Kind.W: 19, Kind.B: 40}
START = 1000  # of the step on the played clock
LINKS = {"free": lambda a, b: 0, "one slow": lambda a, b: 30 * ({a, b} == {1, 2}), "all": lambda a, b: 7}
RUNS = [
    (engine, schedule, chunks)
    for engine, schedules in {
        "torch-1f1b": (("1f1b", 1), ("gpipe", 1)),
        "torch": (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)),
        "megatron": (("1f1b", 1), ("interleaved", 2)),
        "megatron-overlap": (("interleaved", 2),),
        "deepspeed": (("1f1b", 1),),
    }.items()
    for schedule, chunks in schedules
]


class PlayedWatch:
    """A rank on a clock of its own: ops and links take their time, and nothing else does."""

    def __init__(self):
        self.now = START

    def moment(self):
        return self.now

    def stand(self, complete, which):
        del which
        self.now = max(self.now, complete())


def one_message(unit):
    return [unit]


STAGE = SimpleNamespace(
    get_fwd_send_ops=one_message,
    get_bwd_send_ops=one_message,
    get_fwd_recv_ops=one_message,
    get_bwd_recv_ops=one_message,
)


@pytest.fixture
def _no_messages(monkeypatch):
    work = SimpleNamespace(wait=lambda: True)
    monkeypatch.setattr("debubble.runner.communication._batch_p2p", lambda messages: [work for _ in messages])


def costs_of(schedule, link):
    """Durations by kind, and what each input takes on its way."""
    spent, taken = np.zeros((KINDS, schedule.stages, 1), np.int64), np.zeros((KINDS, schedule.stages, 1), np.int64)
    home = schedule.placement[0].tolist()
    for kind, duration in SPENT.items():
        spent[kind] = duration
        for stage in range(schedule.stages):
            maker = stage - 1 if kind == Kind.F else stage + 1
            if 0 <= maker < schedule.stages and home[maker] != home[stage]:
                taken[kind, stage] = link(home[maker], home[stage])
    return Costs(spent, taken)


def executed(schedule, engine, costs):
    """When each op ended, by ranks that run side by side and know only what they post and what they are told."""
    from debubble.runner.communication import Board, Line, Stamps

    ends = np.zeros(len(schedule), np.int64)
    tables = [np.zeros((2, schedule.stages, schedule.units), np.int64) for _ in range(2)]

    def stamps(table):
        made = Stamps.__new__(Stamps)
        made._table = table
        return made

    def run(rank):
        watch, board = PlayedWatch(), Board(*map(stamps, tables), limit_s=30)
        line = Line(schedule, engine, rank, delays=costs.transfers, board=board, watch=watch)
        line.stages.update(dict.fromkeys(range(schedule.stages), STAGE))
        for op in range(schedule.offsets[rank], schedule.offsets[rank + 1]):
            kind, stage, unit = (int(column[op]) for column in (schedule.kind, schedule.stage, schedule.unit))
            line.advance((kind, stage, unit))
            watch.now += SPENT[Kind(kind)]
            ends[op] = watch.now - START
        line.finish()

    ranks = [Thread(target=run, args=(rank,), daemon=True) for rank in range(schedule.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert not any(rank.is_alive() for rank in ranks)
    return ends


@pytest.mark.usefixtures("_no_messages")
@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize(("name", "order", "chunks"), RUNS)
def test_what_is_executed_ends_when_it_is_predicted_to_the_nanosecond(name, order, chunks, links):
    schedule = build(order, Shape(4, 8, chunks))
    engine, costs = engine_of(name, schedule), costs_of(schedule, LINKS[links])
    predicted = simulate(lower(schedule, engine), costs)
    assert executed(schedule, engine, costs).tolist() == predicted.end[: len(schedule)].tolist()


@pytest.mark.usefixtures("_no_messages")
def test_a_pipeline_of_two_ranks_has_a_lane_for_each_direction_where_the_engine_has():
    schedule = build("interleaved", Shape(2, 4, 2))
    engine, costs = engine_of("megatron-overlap", schedule), costs_of(schedule, lambda a, b: 25)
    predicted = simulate(lower(schedule, engine), costs)
    assert executed(schedule, engine, costs).tolist() == predicted.end[: len(schedule)].tolist()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("torch:one-lane", "take turns at both"),
        ("zero-bubble", "launch queue"),
        ("ideal", "only a latency"),
        ("torch", ""),
    ],
)
def test_engines_that_are_predicted_alone_are_named_with_the_reason(name, why):
    assert why in why_not_executed(engine_of(name, build("1f1b", Shape(4, 8))))
    assert bool(why_not_executed(engine_of(name, build("1f1b", Shape(4, 8))))) == bool(why)
