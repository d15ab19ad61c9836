"""Evidence: who is blamed, and who is not, on simulated runs whose fault is known."""

from dataclasses import replace

import numpy as np
import pytest

import debubble
from debubble import Observation, Rates, Shape, Timeline, Window, build, costs_of, lower, simulate
from debubble.core.observation import Link
from debubble.diagnosis.causes import summarise
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.evidence import dearest_hop, lateness, latest_rank, lengths, replicas, tail, work_of
from debubble.diagnosis.evidence import slow_ranks as slow_ranks_of

MS = 1_000_000
SCHEDULE = build("1f1b", Shape(4, 8))
PROGRAM = lower(SCHEDULE)
FAIR = Rates(forward=10 * MS, backward=20 * MS)


def window(step=0, replica=0, noise=None, **rates):
    """A window whose ops take what the rates say, with a little jitter of their own where ``noise`` is given."""
    costs = costs_of(replace(FAIR, **rates), SCHEDULE)
    if noise is not None:
        spread = noise.normal(1, 0.01, (4, 4, 8))
        costs = replace(costs, durations=np.rint(costs.durations * spread).astype(np.int64))
    exact = simulate(PROGRAM, costs)
    return Window(step, replica, Timeline(PROGRAM, exact.start, exact.end, "measured"))


def summary(*windows):
    return summarise(Observation("run", windows))


def slow_ranks(found):
    return slow_ranks_of(work_of(found))


def steps(n=8, noise=0, **rates):
    jitter = np.random.default_rng(noise)
    return [window(step, replica, jitter, **rates) for step in range(n) for replica in range(2)]


def test_jitter_and_unequal_stages_blame_nobody():
    assert slow_ranks(summary(*steps(stage_scale=(1.2, 1, 1, 1.6)))) == []


@pytest.mark.parametrize("seed", range(20))
def test_noisy_steps_blame_nobody(seed):
    """Whole ranks that are 5 % faster or slower from step to step, for no reason."""
    luck = np.random.default_rng(seed)
    some = [window(s, q, rank_scale=tuple(luck.normal(1, 0.05, 4))) for s in range(20) for q in range(2)]
    assert slow_ranks(summary(*some)) == []


def test_one_step_must_show_more_than_many_do():
    def once(factor):
        return slow_ranks(summary(window(0, 0), window(0, 1, rank_scale=(1, factor, 1, 1))))

    assert once(1.1) == []
    assert [(slow.replica, slow.rank) for slow in once(1.3)] == [(1, 1)]


def test_a_rank_slower_than_its_stage_elsewhere_is_blamed_with_its_factor():
    jitter = np.random.default_rng(1)
    scales = ((1, 1, 1, 1.5), (1, 1.3, 1, 1.5))
    (slow,) = slow_ranks(summary(*[window(s, q, jitter, rank_scale=scales[q]) for s in range(8) for q in range(2)]))
    assert (slow.replica, slow.rank, slow.steps) == (1, 1, ())
    assert slow.factor == pytest.approx(1.3, rel=0.01)


def test_a_replica_with_longer_micro_batches_has_no_slow_rank():
    jitter = np.random.default_rng(2)
    found = summary(*[window(s, q, jitter, rank_scale=(1 + 0.3 * q,) * 4) for s in range(8) for q in range(2)])
    assert slow_ranks(found) == []
    assert tail(found).always_the_same
    assert tail(found).slowest == 1


def test_a_rank_that_is_slow_in_some_steps_is_blamed_for_those():
    jitter = np.random.default_rng(3)
    some = [window(s, 0, jitter, rank_scale=(1, 1, 1.4 if s in (3, 6) else 1, 1)) for s in range(10)]
    (slow,) = slow_ranks(summary(*some))
    assert (slow.rank, slow.steps) == (2, (3, 6))
    assert slow.factor == pytest.approx(1.4, rel=0.02)
    run = Observation("run", tuple(some))
    assert any("in step 3, 6 as in the other steps" in each.sentence for each in diagnose(run).findings)


@pytest.mark.parametrize(("slow", "blamed"), [(3, True), (4, False), (5, False)])
def test_a_rank_that_is_slow_in_half_of_the_steps_or_more_has_no_usual_pace(slow, blamed):
    """Of 8 steps the last; beyond half of them the fast ones would be the exception."""
    jitter = np.random.default_rng(3)
    scales = [(1, 3, 1, 1) if step >= 8 - slow else (1, 1, 1, 1) for step in range(8)]
    found = slow_ranks(summary(*[window(step, 0, jitter, rank_scale=scales[step]) for step in range(8)]))
    assert [(each.rank, each.steps) for each in found if each.steps] == [(1, tuple(range(8 - slow, 8)))] * blamed


def test_micro_batches_of_unlike_length_are_told_from_jitter():
    scale = (1, 1.8, 0.6, 1, 0.7, 1.3, 0.8, 0.8)
    long = lengths(summary(window(noise=np.random.default_rng(4), microbatch_scale=scale)))
    assert long.differ
    assert (long.longest, long.factor) == (1, pytest.approx(1.8, rel=0.02))
    assert long.spread == pytest.approx(np.std(scale), rel=0.05)
    rough = np.random.default_rng(5).normal(1, 0.2, (4, 4, 8))
    costs = costs_of(FAIR, SCHEDULE)
    exact = simulate(PROGRAM, replace(costs, durations=np.rint(costs.durations * rough).astype(np.int64)))
    jitter = lengths(summary(Window(0, 0, Timeline(PROGRAM, exact.start, exact.end, "measured"))))
    assert not jitter.differ


def test_micro_batches_of_like_length_give_back_what_their_spread_costs():
    scale = (1, 1.8, 0.6, 1, 0.7, 1.3, 0.8, 0.8)
    found = diagnose(Observation("run", (window(microbatch_scale=scale),)))
    (finding,) = [each for each in found.findings if each.cause == "variation"]
    spread, even = window(microbatch_scale=scale).timeline.makespan, window().timeline.makespan
    assert finding.cost_ns == spread - even
    assert finding.gain_ratio == pytest.approx(spread / even)


def test_the_dearest_hop_is_the_slow_link():
    costs = costs_of(FAIR, SCHEDULE)
    transfers = np.zeros((4, 4, 1), np.int64)
    transfers[0, 2] = 7 * MS  # what stage 2's forwards wait for: from rank 1
    exact = simulate(PROGRAM, replace(costs, transfers=transfers))
    seen = Timeline(PROGRAM, exact.start, exact.end, "measured")
    hop = dearest_hop(seen)
    assert (hop.sender, hop.receiver, hop.forward, hop.ops, hop.usual_ns) == (1, 2, True, 8, 7 * MS)
    spared = exact.makespan - simulate(PROGRAM, costs).makespan
    (found,) = [e for e in diagnose(Observation("run", (Window(0, 0, seen),))).findings if e.cause == "transfer"]
    assert f"{spared / MS:.1f} ms of the window by themselves" in found.sentence
    assert not lateness(seen).any()


def test_a_hop_whose_transfer_is_short_is_a_late_launch():
    seen = window(transfer=6 * MS)
    links = tuple(Link(a, b, 8, 0, 8 * MS, MS) for a in range(4) for b in range(4))
    (found,) = [e for e in diagnose(Observation("run", (seen,), links=links)).findings if e.cause == "transfer"]
    assert "a matched transfer takes at most 1.00 ms of it, the rest is a late launch" in found.sentence
    assert "the link itself is fast enough" in found.remedy


def test_an_op_that_starts_late_names_its_rank():
    """The fourth forward of rank 0 needs nothing but its rank, and nobody needs it soon: moved back by 9 ms."""
    exact = simulate(PROGRAM, costs_of(FAIR, SCHEDULE))
    start, end = exact.start.copy(), exact.end.copy()
    row = 3
    start[row] += 9 * MS
    end[row] += 9 * MS
    late = latest_rank(Timeline(PROGRAM, start, end, "measured"))
    assert (late.rank, late.row) == (0, row)
    assert late.late_ns == late.row_ns == 9 * MS


def test_replicas_stand_side_by_side_with_the_work_of_each_stage():
    one, other = replicas(summary(window(0, 0), window(0, 1, stage_scale=(1, 1, 1, 2))))
    assert (one.stage_ns / MS).tolist() == [240.0] * 4
    assert (other.stage_ns / MS).tolist() == [240.0, 240.0, 240.0, 480.0]
    assert other.makespan_ns > one.makespan_ns
    assert other.idle_share > one.idle_share


def test_a_tail_is_the_longest_window_over_the_mean():
    found = tail(summary(window(0, 0), window(0, 1, stage_scale=(1, 1, 1, 2)), window(1, 0), window(1, 1)))
    gap = window(stage_scale=(1, 1, 1, 2)).timeline.makespan - window().timeline.makespan
    assert found.cost_ns == pytest.approx(gap / 2 / 2)
    assert not found.always_the_same
    assert tail(summary(window(0, 0))) is None


def test_a_schedule_that_is_not_the_one_asked_for_is_said_with_its_cost():
    gpipe = build("gpipe", Shape(4, 8))
    exact = simulate(lower(gpipe), costs_of(replace(FAIR, stage_scale=(1, 1, 1, 1)), gpipe))
    run = Observation("run", (Window(0, 0, Timeline(lower(gpipe), exact.start, exact.end, "measured")),))
    (found,) = [each for each in diagnose(run, asked="zb-h1").findings if each.cause == "order"]
    assert found.sentence == "zb-h1 was asked for, and the order shows gpipe"
    assert found.cost_ns > 0
    assert not [each for each in diagnose(run, asked="gpipe").findings if each.cause == "order"]


def test_a_rank_that_is_slow_in_2_of_10_steps_costs_a_fifth_of_what_it_costs_in_one():
    some = [window(s, 0, rank_scale=(1, 1, 1.4 if s in (3, 6) else 1, 1)) for s in range(10)]
    (found,) = [e for e in diagnose(Observation("run", tuple(some))).findings if e.cause == "slow rank"]
    slow, fair = some[3].timeline.makespan, some[0].timeline.makespan
    assert found.cost_ns == pytest.approx(0.2 * (1 - fair / slow) * fair, rel=1e-6)


def test_where_ranks_are_missing_nothing_is_named_and_nothing_promised():
    found = diagnose(Observation("run", (window(transfer=6 * MS),), torn=(3,)))
    assert found.verdict[0].startswith("Ranks are missing: rank 3 talks to others")
    assert (found.order.name, found.what_ifs) == (None, ())
    assert not {"schedule", "transfer"} & {each.cause for each in found.findings}


@pytest.mark.parametrize(
    ("of", "slow_in", "always"),
    [(4, 4, True), (4, 3, True), (4, 2, False), (20, 20, True), (20, 18, True), (20, 17, False)],
)
def test_a_rank_that_is_slow_all_the_time_may_miss_a_tenth_of_the_steps_or_one(of, slow_in, always):
    """A clock that recovers for a moment is no other fault: 3 of 4 and 18 of 20 steps are all the time, 17 are not."""
    windows = []
    for step in range(of):
        for replica in range(2):
            slow = 1.3 if replica == 1 and step < slow_in else 1.0
            windows.append(window(step, replica, rank_scale=(1, slow, 1, 1)))
    whole = [each for each in slow_ranks(summary(*windows)) if not each.steps]
    assert [(each.replica, each.rank) for each in whole] == ([(1, 1)] if always else [])


def test_a_run_alone_names_its_causes_unless_ranks_are_missing():
    """What ranks that are not there did is not known, and so neither is what the order costs."""
    seen = window(transfer=6 * MS)
    whole, torn = (debubble.why(Observation("run", (seen,), torn=missing)) for missing in ((), (3,)))
    named = "Of the window, beside the schedule's own idle time: transfer"
    assert any(sentence.startswith(named) for sentence in whole.verdict)
    assert not any("beside the schedule's own idle time" in sentence for sentence in torn.verdict)
    assert (torn.run.causes, torn.next) == ((), ())


def test_micro_batches_that_are_all_alike_have_no_spread_and_share_none():
    found = lengths(summary(window()))
    assert (found.spread, found.common_share, found.factor, found.differ) == (0, 0, 1, False)
