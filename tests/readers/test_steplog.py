"""Logs of training frameworks and tables of step times: what stands in them is read, what does not is said."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.readers.steplog import BACKWARD, FORWARD, is_log, is_step_table, read_steps

MEGATRON = (
    " [2024-03-01 10:00:00] iteration       {n}/     500 | consumed samples:        {s} | "
    "elapsed time per iteration (ms): {ms} | learning rate: 1.0E-05 | global batch size:   {b} | lm loss: 9.1E+00 |"
)
DEEPSPEED = "steps: {n} loss: 3.1416 iter time (s): {s} samples/sec: {rate}"
RANGES = """(min, max) time across ranks (ms):
    forward-compute ................................: (600.00, 700.00)
    backward-compute ...............................: (1200.00, 1300.00)
    optimizer ......................................: (10.00, 11.00)
"""
ALL = """times across ranks (ms):
  forward-compute:
     rank  0:     612.50
     rank  1:     701.25
  backward-compute:
     rank  0:     1200.00
     rank  1:     1100.00
"""


@pytest.fixture
def wrote(tmp_path):
    def write(text: str | bytes, name: str = "log.txt"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_megatron_says_its_batch_and_milliseconds(wrote):
    lines = [MEGATRON.format(n=n, s=n * 512, ms=35770.1, b=512) for n in (1, 2, 3)]
    log = read_steps(wrote("\n".join(["setting up", *lines, "done"])))
    assert log.seconds.tolist() == pytest.approx([35.7701] * 3)
    assert log.batch.tolist() == [512] * 3
    assert np.isnan(log.microbatches).all()


def test_megatron_of_2022_wrote_seconds(wrote):
    line = "iteration 9/ 10 | global batch size:  1024 | elapsed time per iteration (s): 59.65 | samples per second: 17"
    log = read_steps(wrote(line))
    assert (log.seconds.tolist(), log.batch.tolist()) == ([59.65], [1024])


def test_deepspeed_says_its_batch_by_its_rate(wrote):
    log = read_steps(wrote(DEEPSPEED.format(n=10, s="3.200", rate="40.000") + "\n"))
    assert (log.seconds.tolist(), log.batch.tolist()) == ([3.2], [128])


def test_least_and_most_of_timers_over_ranks(wrote):
    log = read_steps(wrote(MEGATRON.format(n=1, s=1, ms=2500, b=8) + "\n" + RANGES + "validation\n  loss: 3\n"))
    forward, backward = log.timer(FORWARD), log.timer(BACKWARD)
    assert (forward.low, forward.high) == pytest.approx((0.6, 0.7))
    assert (backward.low, backward.high) == pytest.approx((1.2, 1.3))
    assert [timer.name for timer in log.timers] == ["forward-compute", "backward-compute", "optimizer"]


def test_timers_of_all_ranks(wrote):
    log = read_steps(wrote(MEGATRON.format(n=1, s=1, ms=2500, b=8) + "\n" + ALL))
    assert (log.timer(FORWARD).low, log.timer(FORWARD).high) == pytest.approx((0.6125, 0.70125))


@pytest.mark.parametrize("names", [("fwd_microstep", "bwd_microstep"), ("forward_microstep", "backward_microstep")])
def test_deepspeed_renamed_its_timers(wrote, names):  # DeepSpeed issues 4212 and 617
    lines = [f"[Rank {r}] time (ms) | {names[0]}: {100 + r}.5 | {names[1]}: 200 | pipe_recv_grad: 3" for r in (0, 1)]
    log = read_steps(wrote("\n".join([DEEPSPEED.format(n=1, s=1, rate=8), *lines])))
    assert (log.timer(FORWARD).low, log.timer(FORWARD).high) == pytest.approx((0.1005, 0.1015))
    assert log.timer(BACKWARD).high == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "seconds", "batch", "m"),
    [
        ("gbs,sec\n512,35.77\n", 35.77, 512, math.nan),
        ("microbatches;step_ms\n4;250\n", 0.25, math.nan, 4),
        ("batch\tmicrobatches\tseconds\n64\t8\t1.5\n", 1.5, 64, 8),
        ('"m","elapsed time (ms)"\n"8","40"\n', 0.04, math.nan, 8),
    ],
)
def test_tables_name_their_columns_and_units(wrote, text, seconds, batch, m):
    assert is_step_table(text.encode())
    log = read_steps(wrote(text))
    assert log.seconds.tolist() == pytest.approx([seconds])
    assert [*log.batch, *log.microbatches] == pytest.approx([batch, m], nan_ok=True)


def test_a_row_that_is_none_costs_itself_and_is_said(wrote):
    log = read_steps(wrote("m,s\n4,1.0\nfour,1\n8,2.0\n"))
    assert log.seconds.tolist() == [1.0, 2.0]
    assert "line 3" in log.remarks[0]


def test_a_log_may_be_gzip_whatever_its_name(wrote):
    packed = gzip.compress(MEGATRON.format(n=1, s=1, ms=5, b=1).encode())
    assert read_steps(wrote(packed)).seconds.tolist() == [0.005]


@pytest.mark.parametrize("text", ["", "hello", "rank,step,op,start,end\n0,0,F,0,1\n", "\0" * 100, "batch,loss\n1,2\n"])
def test_what_holds_no_step_time_is_refused(wrote, text):
    with pytest.raises(InputError, match="no step time"):
        read_steps(wrote(text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        read_steps(tmp_path / "nowhere")


@given(st.text(max_size=400))
def test_no_text_is_a_traceback(text):
    is_log(text.encode())
    is_step_table(text.encode())


def test_logs_are_told_from_other_text():
    assert is_log(MEGATRON.format(n=1, s=1, ms=5, b=1).encode())
    assert is_log(DEEPSPEED.format(n=1, s=1, rate=8).encode())
    assert not is_log(b'{"traceEvents": []}')
