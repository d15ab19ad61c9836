"""Directions that no name tells: transfers matched between neighbours give back every op, or nothing is claimed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import Refusal
from debubble.core.schedule import Shape
from debubble.core.units import MILLISECOND
from debubble.readers.kineto import read_traces
from debubble.reconstruct.observe import observe
from debubble.schedules.catalog import build
from pour import HOST, Style, pour, run_of, untold, write

RATES = Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND, transfer=0.3 * MILLISECOND)


def simulated(name="1f1b", ranks=4, microbatches=6, chunks=1, rates=RATES):
    schedule = build(name, Shape(ranks, microbatches, chunks))
    return run_of(schedule, costs_of(rates, schedule), 2)


def silent(folder, runs, **style):
    """Traces whose kernels and ranges name no direction, and without the calls of the autograd engine."""
    events = pour(runs, Style(kernels=2, labels=False, **style))
    return write(folder, {rank: untold(rows) for rank, rows in events.items()})


def test_work_without_a_direction_is_refused_with_the_reason(tmp_path):
    paths = write(tmp_path, pour(simulated(), Style(kernels=2, labels=False, engine=False)))
    with pytest.raises(Refusal, match="nothing tells its forward work from its backward"):
        observe(read_traces(paths))


@pytest.mark.parametrize("p2p", ["cuda", "rocm", "batch"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_transfers_tell_forward_from_backward_where_no_name_does(tmp_path, name, p2p):
    runs = simulated(name)
    observation = observe(read_traces(silent(tmp_path, runs, p2p=p2p)))
    window = observation.windows[0].timeline
    assert window.program.schedule.same_order(runs[0].program.schedule)
    assert window.makespan == pytest.approx(runs[0].makespan - HOST, abs=4)
    assert any("transfers matched between neighbours told them apart" in remark for remark in observation.remarks)


@given(
    st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 5), st.integers(1, 12), st.lists(st.floats(0.5, 2), min_size=5)
)
@settings(max_examples=25, deadline=None)
def test_directions_by_transfers_are_those_of_random_runs(tmp_path_factory, name, ranks, microbatches, scale):
    runs = simulated(name, ranks, microbatches, rates=replace(RATES, stage_scale=tuple(scale[:ranks])))
    window = observe(read_traces(silent(tmp_path_factory.mktemp("untold"), runs))).windows[0]
    assert window.timeline.program.schedule.same_order(runs[0].program.schedule)


def test_a_transfer_that_was_lost_costs_no_direction(tmp_path):
    runs = simulated(microbatches=12)
    events = {rank: untold(rows) for rank, rows in pour(runs, Style(kernels=2, labels=False)).items()}
    moves = [e for e in events[1] if e["cat"] == "kernel" and "SendRecv" in e["name"]]
    events[1].remove(moves[20])
    observation = observe(read_traces(write(tmp_path, events)))
    for window in observation.windows:
        assert window.timeline.program.schedule.same_order(runs[0].program.schedule)
    assert observation.matched_share < 1


def test_a_forward_and_its_backward_that_nothing_parts_are_refused_with_the_rank(tmp_path):
    """Of the last rank: one thread launches both, no transfer lies between, and neither ever stands alone."""
    paths = write(tmp_path, pour(simulated(), Style(kernels=3, labels=False, engine=False)))
    with pytest.raises(Refusal, match="rank 3: 12 of 12 runs of work hold a forward and a backward") as refused:
        observe(read_traces(paths))
    assert "profile CPU activities too" in str(refused.value)


@pytest.mark.parametrize("missing", range(4))
def test_directions_are_not_guessed_where_a_rank_is_missing(tmp_path, missing):
    paths = silent(tmp_path, simulated())
    with pytest.raises(Refusal, match="rank"):
        observe(read_traces([path for path in paths if f"rank{missing}_" not in path.name]))


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 2, 8), (3, 3, 6)])
def test_chunks_that_loop_are_told_by_who_sends_to_whom_though_nothing_names_a_direction(
    tmp_path, ranks, chunks, microbatches
):
    runs = simulated("interleaved", ranks, microbatches, chunks)
    for window in observe(read_traces(silent(tmp_path, runs))).windows:
        assert window.timeline.program.schedule.same_order(runs[0].program.schedule)
        assert window.timeline.program.schedule.stages == ranks * chunks
