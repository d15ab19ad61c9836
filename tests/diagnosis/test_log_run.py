"""Phases of a run: level shifts, trends, lone steps and restarts, each named, and work over time in any mixture."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.diagnosis.log_run import change_points, history, lone_steps
from debubble.readers.steplog import read_steps


def numbered(seconds, first=1):
    return np.arange(first, first + len(seconds), dtype=float)


def of(*parts):
    return np.concatenate([np.atleast_1d(np.asarray(part, float)) for part in parts])


def test_a_level_shift_is_two_phases_with_their_share_of_the_time():
    """Steps 2 to 6 take 1 s, 7 to 11 take 1.4 s: 5 and 7 of 12 s; the first does not count."""
    found = history(numbered(range(11)), of(np.ones(6), np.full(5, 1.4)))
    first, second = found.phases
    assert (first.first_step, first.last_step, second.first_step, second.last_step) == (2, 6, 7, 11)
    assert (first.mean_ms, second.mean_ms) == pytest.approx((1000, 1400))
    assert (first.share, second.share) == pytest.approx((5 / 12, 7 / 12))
    assert found.seconds == pytest.approx(1.2)
    assert [(each.step, each.reason) for each in found.left_out] == [(1, "the first step of the run")]
    assert not found.steady


def test_a_trend_is_one_phase_with_both_ends():
    found = history(np.arange(5.0, 30, 5), np.array([11.0756, 14.6427, 18.2101, 21.7774, 25.344]))
    (phase,) = found.phases
    assert (phase.first_step, phase.last_step) == (1, 25)  # each row is the mean of five steps
    assert (phase.from_ms, phase.to_ms) == pytest.approx((11075.6, 25344.0), rel=1e-4)
    assert found.steps == 25
    assert not found.left_out


def test_a_first_row_of_several_steps_counts_unless_it_holds_the_start_up():
    rows = np.arange(10.0, 60, 10)
    assert history(rows, np.ones(5)).steps == 50
    slow = history(rows, of(1.5, np.ones(4)))
    assert (slow.steps, slow.seconds, slow.left_out[0].step) == (40, 1.0, 10)


def test_lone_steps_do_not_count_and_say_their_share_of_the_time():
    """39 steps of 1 s and one of 4 s: 4 of 43."""
    seconds = of(np.ones(20), 4.0, np.ones(20))
    found = history(numbered(seconds), seconds)
    (phase,) = found.phases
    assert phase.from_ms is None
    start, lone = found.left_out
    assert (start.share, lone.step, lone.ms) == (0, 21, 4000)
    assert lone.share == pytest.approx(4 / 43)
    assert found.seconds == 1.0


@pytest.mark.parametrize(("length", "lone"), [(1, True), (2, True), (3, False), (4, False), (9, False)])
def test_up_to_two_slow_steps_in_a_row_are_lone_and_three_are_a_phase(length, lone):
    seconds = of(np.ones(20), np.full(length, 2.0), np.ones(20))
    assert lone_steps(seconds).sum() == (length if lone else 0)
    assert len(history(numbered(seconds), seconds).phases) == (1 if lone else 3)


def test_the_last_step_may_be_lone_and_a_level_that_holds_is_not():
    assert lone_steps(of(np.ones(9), 3.0)).tolist() == [False] * 9 + [True]
    assert not lone_steps(of(np.ones(9), np.full(9, 3.0))).any()


def test_a_restart_counts_the_later_run_and_says_what_was_done_again():
    """20 steps of 1 s, then again from step 11 on at 2 s: 10 s of 10 steps were lost."""
    step, seconds = of(numbered(range(20)), np.arange(11, 31)), of(np.ones(20), np.full(20, 2.0))
    found = history(step, seconds)
    (restart,) = found.restarts
    assert (restart.step, restart.steps, restart.lost_ms) == (11, 10, 10_000)
    assert (found.seconds, found.steps) == (2.0, 20)
    assert [(phase.first_step, phase.last_step) for phase in found.phases] == [(11, 30)]


def test_a_restart_without_a_second_step_leaves_the_run_before_it():
    found = history(of(numbered(range(8)), 3), of(np.ones(8), 9.0))
    assert (found.seconds, found.restarts[0].step) == (1.0, 3)


def test_what_is_no_time_is_passed_over():
    seconds = of(np.ones(8), np.nan, np.inf, -1.0, 0.0, 1e300)
    assert history(numbered(seconds), seconds).seconds == 1.0
    assert history(numbered(seconds[8:]), seconds[8:]) is None


def test_steps_without_numbers_count_from_one():
    (phase,) = history(np.full(6, np.nan), np.ones(6)).phases
    assert (phase.first_step, phase.last_step) == (2, 6)


def test_noise_alone_is_one_phase():
    luck = np.random.default_rng(0)
    for count in (5, 50, 500, 5000):
        for _ in range(20):
            assert len(change_points(luck.normal(1, 0.05, count))) == 1


def test_a_long_run_is_cut_to_the_step():
    luck = np.random.default_rng(1)
    seconds = of(np.full(12_345, 1.0), np.full(20_000, 1.1), np.full(17_655, 1.0)) * luck.normal(1, 0.01, 50_000)
    cuts = [piece.start for piece in change_points(seconds)]
    assert cuts[1:] == pytest.approx([12_345, 32_345], abs=5)


@st.composite
def series(draw):
    """A run of levels and trends with noise, lone spikes and a first step that is slow; and its truth."""
    luck = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts, changes, level = [], [], 1.0
    count = draw(st.integers(1, 4))
    for number in range(count):
        length = draw(st.integers(40, 400))
        if number:
            factor = draw(st.floats(1.1, 1.8))
            level *= factor if draw(st.booleans()) else 1 / factor
            changes.append(sum(map(len, parts)))
        drift = draw(st.sampled_from([0.0, 0.0, 0.3]))
        parts.append(level * np.linspace(1, 1 + drift, length))
        level = float(parts[-1][-1])
    seconds = np.concatenate(parts)
    seconds *= luck.normal(1, draw(st.floats(0, 0.02)), len(seconds))
    usual = seconds.copy()
    spikes = luck.choice(np.arange(12, len(seconds) - 12), draw(st.integers(0, 3)), replace=False)
    spikes = [
        int(spike)
        for spike in spikes
        if all(abs(spike - other) > 12 for other in [*changes, *spikes] if other != spike)
    ]
    seconds[spikes] *= draw(st.floats(2, 8))
    seconds[0] *= draw(st.floats(1, 9))
    return seconds, usual, changes, spikes


@given(series())
def test_any_mixture_keeps_work_over_time_and_names_each_shift_with_its_step(given_series):
    seconds, usual, changes, spikes = given_series
    found = history(numbered(seconds), seconds)
    kept = np.delete(np.arange(1, len(seconds)), [spike - 1 for spike in spikes])
    assert found.seconds == pytest.approx(usual[kept].mean(), rel=0.01)
    assert [each.step for each in found.left_out[1:]] == [spike + 1 for spike in sorted(spikes)]
    starts = [phase.first_step for phase in found.phases]
    for change in changes:
        assert min(abs(start - (change + 1)) for start in starts) <= 3
    shares = sum(phase.share for phase in found.phases) + sum(each.share for each in found.left_out)
    assert shares == pytest.approx(1)


@given(series(), st.floats(0.3, 0.9), st.floats(0.1, 0.9))
def test_a_restart_anywhere_counts_the_later_run_and_loses_what_is_done_again(given_series, stop, back):
    """A run ends at one step and goes on from an earlier one at twice the pace: only the second counts."""
    seconds = given_series[0]
    stop = int(stop * len(seconds))
    again = int(back * stop)
    later = np.random.default_rng(0).normal(1, 0.01, 60)
    found = history(of(numbered(seconds[:stop]), numbered(later, again + 1)), of(seconds[:stop], later))
    (restart,) = found.restarts
    assert (restart.step, restart.steps) == (again + 1, stop - again)
    assert restart.lost_ms == pytest.approx(1e3 * seconds[again:stop].sum())
    assert found.seconds == pytest.approx(later.mean(), rel=0.01)


# A step in the words of several frameworks: n its number, t its seconds, c seconds since the run began.
WORDS = {
    "Megatron-LM": "[2025-03-01 10:00:00.1] iteration {n:8d}/ 9999 | consumed samples: {s:12d} | elapsed time per "
    "iteration (ms): {ms:.1f} | learning rate: 1.0E-05 | global batch size:   512 | lm loss: 1.27E+01 |",
    "Megatron-Bridge": "Step Time : {t:.2f}s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n [2025-12-22 15:18:33] iteration "
    "{n:8d}/ 9999 | elapsed time per iteration (ms): {ms:.1f} | global batch size:   512 | lm loss: 8.1E+00 |",
    "GPT-NeoX": "steps: {n} loss: 10.91 iter time (s): {t:.3f} samples/sec: 30.1\n samples/sec: 30.1 | iteration {n}/ "
    "9999 | elapsed time per iteration (ms): {ms:.1f} | approx flops per GPU: 130.2TFLOPS | lm_loss: 1.09E+01 |",
    "Primus": "[\x1b[32m20251202 06:56:28\x1b[0m][\x1b[36mrank-7/8\x1b[0m][INFO ] [trainer.py:2560] : iteration {n}/ "
    "9999 | elapsed time per iteration (ms): {ms:.1f}/13240.9 | global batch size: 128 | lm loss: 4.14E-03 |",
    "NeMo": "Training epoch {e}, iteration {k}/49 | lr: 1.4e-05 | global_batch_size: 128 | global_step: {n} | "
    "reduced_train_loss: 6.265 | train_step_timing in s: {t:.4g} | consumed_samples: {s}",
    "DeepSpeed": "[INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | train_batch: {ms:.2f} | batch_input: 78.66",
    "nanotron": "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0|ip-26]: iteration: {n} / 9999 | consumed_tokens: 85.8G | "
    "elapsed_time_per_iteration_ms: {k3:.3g}K | tokens_per_sec: 22.8K | global_batch_size: 64 | lm_loss: 2.38 |",
}
LABELS = [
    "",
    "0: ",
    "node01: ",
    "[1,0]<stdout>:",
    "pod-0 | ",
    "(Worker pid=33, ip=10.0.0.1) ",
    "[default0]:",
    "job/w-0 ",
]


@pytest.mark.parametrize("words", list(WORDS))
@settings(max_examples=15)
@given(series(), st.sampled_from(LABELS), st.sampled_from(["\n", "\r\n"]))
def test_any_mixture_keeps_work_over_time_in_the_words_of_any_framework(
    words, tmp_path_factory, given_series, label, end
):
    seconds, usual, _, spikes = given_series
    lines = []
    for n, t in enumerate(seconds.tolist(), 1):
        said = WORDS[words].format(n=n, t=t, ms=1e3 * t, k3=t, s=128 * n, e=(n - 1) // 50, k=(n - 1) % 50)
        lines += [label + line for line in said.split("\n")]
    path = tmp_path_factory.mktemp("logs") / "run.log"
    path.write_bytes((end.join(lines) + end).encode())
    log = read_steps(path)
    found = history(log.step, log.seconds)
    kept = np.delete(np.arange(1, len(seconds)), [spike - 1 for spike in spikes])
    assert found.seconds == pytest.approx(usual[kept].mean(), rel=0.01)
    assert not found.restarts
