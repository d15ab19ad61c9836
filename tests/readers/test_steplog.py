"""Logs of training frameworks and tables of step times: what stands in them is read, what does not is said."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.observation import BACKWARD, FORWARD
from debubble.diagnosis.log_run import history
from debubble.readers.steplog import is_log, is_step_table, read_steps

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


@pytest.mark.parametrize("header", ["step,seconds", "seconds,loss", "batch,loss", "m", "layers;step_ms"])
def test_a_header_without_a_setting_or_without_a_figure_is_none(header):
    assert not is_step_table(f"{header}\n1,2\n".encode())


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


# What frameworks write, one line each as in their sources or documentation; made up in their figures.
TITAN = (
    "[rank{r}]:[titan] 2025-06-16 16:24:{t:06.3f} - root - INFO - step: {n:2d}  loss:  8.1880  grad_norm:  3.6855  "
    "memory:  4.88GiB(6.16%)  tps: 13,785  tflops: 314.71  mfu: 13.99%"
)
NANOTRON = (
    "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 378950 | consumed_tokens: 85.8G | "
    "elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | "
    "global_batch_size: 64 | lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 39"
)
NEMO = (
    "Epoch 0: :  {n}%|###   | {n}/100 [01:{n}<43:12, v_num=, reduced_train_loss=11.00, global_step={g:.3f}, "
    "consumed_samples={s:.1f}, train_step_timing in s=26.70]"
)
BRIDGE = (
    " Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n"
    " [2025-12-22 15:18:33] iteration       {n}/      50 | consumed samples:        25600 | elapsed time per iteration "
    "(ms): 9089.0 | learning rate: 3.0E-05 | global batch size:   512 | lm loss: 8.1E+00 | grad norm: 0.042 |"
)
PRIMUS = (
    "[\x1b[32m20251202 06:56:28\x1b[0m][\x1b[36mrank-7/8\x1b[0m][INFO ] [--------trainer.py:2560] : iteration {n}/ "
    "5000 | consumed samples: 564224 | elapsed time per iteration (ms): 13100.0/13240.9 | hip mem usage/free/total/"
    "usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% | throughput per GPU (TFLOP/s/GPU): 579.4/573.6 | tokens per GPU "
    "(tokens/s/GPU): 10005.5/9903.7 | global batch size: 128 | lm loss: 4.14E-03 |"
)
NEOX = (
    " samples/sec: 10.372 | iteration {n:8d}/  320000 | elapsed time per iteration (ms): 12341.4 | learning rate: "
    "9.3E-06 | approx flops per GPU: 130.2TFLOPS | lm_loss: 1.09E+01 | number of skipped iterations: 0 |"
)
MEGATRON_DEEPSPEED = (
    "[2024-06-21 10:50:42][INFO][training:1609] -  iteration=       {n}/  317892 | consumed_samples=  {s} | "
    "elapsed_time_per_iteration_ms=108893.2 | learning_rate=1.9e-08 | global_batch_size=  768 | lm loss=11.13 |"
)
MAXTEXT = (
    "completed step: {n}, seconds: 3.254, TFLOP/s/device: 170.113, Tokens/s/device: 2517.6, total_weights: 65536, "
    "loss: 9.817"
)
VERL = "step:{n} - global_seqlen/min:12345.0 - actor/pg_loss:0.01 - timing_s/step:61.7 - perf/throughput:1533.2"


def read(wrote, line, *, first=2, **more):
    rows = [line.format(n=n, g=n, s=128 * n, r=0, t=20 + n * 0.3, **more) for n in range(first, first + 4)]
    return read_steps(wrote("\n".join(["starting up", *rows, ""])))


@pytest.mark.parametrize(
    ("line", "seconds", "batch", "tflops"),
    [
        (TITAN, 0.3, math.nan, 314.71),
        (NANOTRON, 11.5, 64, 38.3),
        (NEMO, 26.7, 128, math.nan),
        (BRIDGE, 9.089, 512, 663.5),
        (PRIMUS, 13.1, 128, 579.4),
        (NEOX, 12.3414, 128, 130.2),
        (MEGATRON_DEEPSPEED, 108.8932, 768, math.nan),
        (MAXTEXT, 3.254, math.nan, 170.113),
        (VERL, 61.7, math.nan, math.nan),
    ],
    ids=["torchtitan", "nanotron", "NeMo", "Bridge", "Primus", "GPT-NeoX", "Megatron-DeepSpeed", "MaxText", "verl"],
)
def test_each_framework_says_how_long_a_step_took(wrote, line, seconds, batch, tflops):
    log = read(wrote, line)
    assert log.seconds.tolist() == pytest.approx([seconds] * len(log.seconds), rel=1e-3)
    assert log.step.tolist() == list(range(6 - len(log.seconds), 6))  # torchtitan's first line only starts its clock
    assert [log.batch[0], log.tflops[0]] == pytest.approx([batch, tflops], nan_ok=True)
    assert is_log(
        line.format(n=1, g=0, s=1, r=0, t=1.0).encode() + b"\n" + line.format(n=2, g=1, s=2, r=0, t=2.0).encode()
    )


def test_figures_of_a_gpu_are_read_in_seconds_bytes_and_shares(wrote):
    log = read(wrote, TITAN)
    assert (log.memory[0], log.mfu[0], log.tokens_per_gpu[0]) == pytest.approx((4.88 * 2**30, 0.1399, 13785))
    assert read(wrote, PRIMUS).tokens_per_gpu[0] == 10005.5
    assert read(wrote, NANOTRON).tokens_per_second[0] == 22800


@pytest.mark.parametrize(
    "label",
    ["0: ", "node01: ", "[1,0]<stdout>:", "pod-0 | ", "(TrainWorker pid=33, ip=10.0.0.1) ", "\x1b[36m[rank3]:\x1b[0m ",
     "2025-06-16T16:24:23.123Z stdout F ", "[default0]:", "worker-3: ", "12:00:01 0: ", "ain_fp8_mx/0 "],
)  # fmt: skip
@pytest.mark.parametrize("line", [MEGATRON.replace("{s}", "9").replace("{b}", "8"), NEMO, MAXTEXT, DEEPSPEED])
def test_any_launchers_label_is_stripped(wrote, label, line):
    known = {"ms": 2500, "s": 512.0, "rate": 8, "g": 1.0}
    rows = [label + line.format(n=n, **(known | {"g": float(n), "s": 128.0 * n})) for n in (2, 3, 4, 5)]
    log = read_steps(wrote("\n".join(rows)))
    assert log.step.tolist() == [2, 3, 4, 5]
    assert not [remark for remark in log.remarks if "processes" in remark]


def test_labels_do_not_cost_timers(wrote):
    text = "\n".join(f"0: {line}" for line in [MEGATRON.format(n=1, s=1, ms=2500, b=8), *RANGES.splitlines()])
    assert read_steps(wrote(text)).timer(FORWARD).high == pytest.approx(0.7)


def test_processes_that_report_the_same_steps_count_once(wrote):
    rows = [TITAN.format(n=n, r=r, t=20 + n * 0.3 + r / 1000) for n in range(1, 6) for r in range(8)]
    log = read_steps(wrote("\n".join(rows)))
    assert log.step.tolist() == [2, 3, 4, 5]
    assert "35 lines of 7 more processes report the same steps" in log.remarks


def test_a_progress_bar_that_went_back_to_the_start_of_its_line_is_read_state_by_state(wrote):
    """2.5 s a step, shown once a step in whole seconds: eight steps together make 20 s, nine the first above it."""
    states = [
        f" {n}%|##   | {n}/200 [{2.5 * n // 60:02.0f}:{2.5 * n % 60:02.0f}<08:00,  2.50s/it]" for n in range(1, 41)
    ]
    log = read_steps(wrote("\r".join(states)))
    assert log.seconds.tolist() == pytest.approx([2.5] * len(log.seconds), rel=0.05)
    assert log.remarks == ("step times are differences of its progress bar's clock, of 20 s or more",)


def test_a_trainers_last_word_is_the_mean_of_its_run(wrote):
    text = "{'loss': 1.14, 'epoch': 0.29}\n{'train_runtime': 225.8, 'train_samples_per_second': 3.543, "
    log = read_steps(wrote(text + "'train_steps_per_second': 0.886, 'train_loss': 1.2, 'epoch': 0.32}\n"))
    assert log.seconds.tolist() == pytest.approx([1 / 0.886], rel=1e-3)
    assert log.step.tolist() == [200]


def test_swifts_log_tells_steps_by_the_time_that_went_by(wrote):
    line = (
        "{{'loss': 1.4, 'global_step/max_steps': '{n}/94', 'elapsed_time': '{m}m {s}s', 'train_speed(iter/s)': 0.52}}"
    )
    log = read_steps(wrote("\n".join(line.format(n=10 * n, m=n // 3, s=n % 3 * 20) for n in range(1, 8))))
    assert log.seconds.tolist() == pytest.approx([2.0] * len(log.seconds))


def test_deepspeeds_breakdowns_without_a_step_count(wrote):
    whole = (
        "rank=0 time (ms) | train_batch: {} | batch_input: 78.66 | forward: 2844.74 | backward: 8724.91 | step: 29300"
    )
    log = read_steps(wrote("\n".join(whole.format(ms) for ms in (87510.72, 87000.0))))
    assert log.seconds.tolist() == pytest.approx([87.51072, 87.0])
    parts = (
        "[2024-06-21 10:50:42,168] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 3865.91 | bwd: 11249.43 "
    )
    log = read_steps(wrote("\n".join(2 * [parts + "| bwd_inner: 10520.18 | bwd_allreduce: 729.08 | step: 888.44"])))
    assert log.seconds.tolist() == pytest.approx([16.00378] * 2)


def test_deepspeeds_timer_lines_tell_steps_by_their_timestamps(wrote):
    line = (
        "[2023-10-31 08:58:{t:06.3f}] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
        "RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.35, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
    )
    log = read_steps(wrote("\n".join(line.format(n=10 * n, t=4.5 * n).replace(".", ",", 1) for n in range(1, 9))))
    assert log.seconds.tolist() == pytest.approx([0.45] * 7)
    assert log.batch.tolist() == [28] * 7  # 61.35 samples a second
    assert log.memory[0] == 19.52e9


def test_what_was_not_read_of_a_log_is_said(wrote):
    rows = [MEGATRON.format(n=10, s=1, ms=5, b=1), *(f"step: {n} loss: 3.1" for n in range(10))]
    assert "11 lines number a step, 1 of them tell its time" in read_steps(wrote("\n".join(rows))).remarks


@pytest.mark.parametrize(
    "text",
    ["global_step: 10\nlr: 1\n", "def step(n):\n    seconds = 3\n", '{"step": 1, "rank": 0}\n', "rank,step,op\n0,0,F\n",
     "model:\n  steps: 100\n  micro_batch_size: 4\n", "2024-01-01 00:00:00 hello\n" * 9],
)  # fmt: skip
def test_other_text_is_no_log(text):
    assert not is_log(text.encode())


@given(st.text(alphabet="step iteration:=|[]{}()<>0123456789.,-%/\r\x1b'\"", max_size=300))
def test_no_line_is_a_traceback(text):
    is_log(text.encode())


def test_a_line_of_a_million_characters_is_read_in_time(wrote):
    text = (
        "step: "
        + "a:1 " * 250_000
        + "\n"
        + "[" * 500_000
        + "\n"
        + "x" * 1_000_000
        + "\n"
        + MEGATRON.format(n=1, s=1, ms=5, b=1)
    )
    assert read_steps(wrote(text)).seconds.tolist() == [0.005]


# More that frameworks write, as in their documentation and in public reports; made up in their figures.
NEMO_2 = (
    "[2025-11-20T14:55:23+08:00] retraining/0 Training epoch {e}, iteration {n}/39 | lr: 1.4e-05 | global_batch_size: "
    "128 | global_step: {g} | reduced_train_loss: 6.2 | train_step_timing in s: 12.22 | consumed_samples: {s}"
)
DEEPSPEED_STEP = "[2024-06-21 10:50:{t:06.3f}] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[5e-05]"
DEEPSPEED_TIMER = (
    "[2024-06-21 10:50:{t:06.3f}] [INFO] [timer.py:260:stop] epoch=0/micro_step={u}/global_step={n}, "
    "RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=64.0, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
)
DEEPSPEED_OLD = (
    "nid01: [2022-08-29 06:58:{t:06.3f}] [INFO] [timer.py:198:stop] 0/{n}, RunningAvgSamplesPerSec=232.7, "
    "CurrSamplesPerSec=64.0, MemAllocated=0.36GB, MaxMemAllocated=15.06GB"
)


def test_an_epoch_that_counts_its_steps_again_is_no_restart(wrote):
    """NeMo says the global step beside; a progress bar of Lightning only its epoch, and shows validation in between."""
    rows = [NEMO_2.format(e=n // 40, n=n % 40, g=n, s=128 * n) for n in range(120)]
    assert read_steps(wrote("\n".join(rows))).step.tolist() == list(range(120))
    shown = []
    for epoch in range(3):
        shown += [f"Epoch {epoch}:  {n}%|#| {n}/60 [00:{n:02d}<00:30,  1.00it/s, v_num=0]" for n in range(1, 60)]
        shown += [f"Validation DataLoader 0:  {n}%|#| {n}/9 [00:{5 * n:02d}<00:30,  0.2it/s]" for n in range(1, 10)]
    log = read_steps(wrote("\r".join(shown)))
    assert log.seconds.tolist() == pytest.approx([1.0] * len(log.seconds))
    assert (np.diff(log.step) > 0).all()


def test_evaluation_within_a_trainers_run_is_of_no_step(wrote):
    """Steps of 2.5 s, and every 20 an evaluation of 60 s with a bar of its own: the clock of training goes on."""
    shown, clock = ["Loading checkpoint shards: 50%|#| 2/4 [00:08<00:08,  4.11s/it]\n"], 0.0
    for n in range(1, 81):
        clock += 2.5
        shown.append(f"  {n}%|#  | {n}/80 [{clock // 60:02.0f}:{clock % 60:02.0f}<03:20,  2.50s/it]")
        if n % 20 == 0:
            shown += [f" {n}%|#| {eval_}/9 [00:{6 * eval_:02d}<00:30,  6.00s/it]\x1b[A" for eval_ in range(1, 10)]
            clock += 60
    log = read_steps(wrote("\r".join(shown)))
    assert log.seconds.tolist() == pytest.approx([2.5] * len(log.seconds), rel=0.05)
    assert any("2 other progress bars" in remark for remark in log.remarks)


def test_a_process_that_prints_two_kinds_of_lines_for_a_step_keeps_both(wrote):
    """GPT-NeoX: DeepSpeed's lines have stamps before them, its own have none; both tell the step's time, one counts."""
    rows = []
    for n in range(1, 9):
        rows.append("gpu250: " + DEEPSPEED_STEP.format(n=n, t=n * 3.2))
        rows.append("gpu250: " + DEEPSPEED.format(n=n, s="3.200", rate="30.000"))
        rows.append("gpu250: " + NEOX.format(n=n))
    log = read_steps(wrote("\n".join(rows)))
    assert log.step.tolist() == list(range(1, 9))
    assert log.seconds.tolist() == pytest.approx([12.3414] * 8)  # of the line that also tells FLOP/s
    assert log.tflops[0] == 130.2
    assert not [remark for remark in log.remarks if "processes" in remark]


def test_micro_steps_are_no_steps_and_lines_of_one_step_tell_its_figures_together(wrote):
    lines = DEEPSPEED_STEP, DEEPSPEED_TIMER
    rows = [line.format(n=5 * n, u=20 * n, t=5.0 * n) for n in range(1, 9) for line in lines]
    log = read_steps(wrote("\n".join(rows)))
    assert log.step.tolist() == list(range(10, 45, 5))
    assert (log.seconds[0], log.batch[0], log.memory[0]) == pytest.approx((1.0, 64, 38.49e9))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (DEEPSPEED_OLD, 0.3),
        ("iter {n}: loss 4.0863, time 561.94ms, mfu 38.45%", 0.56194),  # nanoGPT
        ("Epoch 1 | iter {n} step {n} | loss train: 10.974, val: n/a | iter time: 312.50 ms (step) | 2 days", 0.3125),
        ("2024-01-01 00:00:{t:06.3f}\\thost:0\\tolmo.train:967\\tINFO\\t[step={n}/739328]", 0.3),
        ("2024-01-01 00:00:01 | INFO | train_inner | epoch 001: {n} / 99 loss=12, ups=0.5, num_updates={n}, lr=1", 2.0),
    ],
    ids=["DeepSpeed 0.6", "nanoGPT", "LitGPT", "OLMo", "fairseq"],
)
def test_more_frameworks_say_how_long_a_step_took(wrote, line, seconds):
    text = "\n".join(line.format(n=n, t=n * 0.3) for n in range(2, 9))
    assert is_log(text.encode())
    log = read_steps(wrote(text))
    assert log.seconds.tolist() == pytest.approx([seconds] * len(log.seconds))
    assert log.step[-1] == 8


def test_a_lines_own_stamp_counts_and_not_that_of_who_gathered_it(wrote):
    """Lines that were gathered in one go have one stamp of that moment, and one of their own."""
    rows = [f"2025-07-01T09:00:00.123Z stdout F {TITAN.format(n=n, r=0, t=20 + n * 0.3)}" for n in range(1, 6)]
    assert read_steps(wrote("\n".join(rows))).seconds.tolist() == pytest.approx([0.3] * 4)


def test_a_launchers_rank_is_not_the_rank_of_a_timer(wrote):
    line = "[node-3]:[rank 24] [INFO] [Rank {r}] time (ms) | train_batch: {ms} | batch_input: 78.66"
    rows = [line.format(r=r, ms=1000 * n) for n in (1, 2, 3) for r in range(4)]
    assert read_steps(wrote("\n".join(rows))).seconds.tolist() == [1.0, 2.0, 3.0]


def test_an_epoch_that_counts_from_nought_loses_no_step(wrote):
    """NeMo without a global step: 0 to 9 of three epochs are 30 steps, of which 10 is the first of the second."""
    line = "Training epoch {e}, iteration {n}/9 | lr: 1.4e-05 | reduced_train_loss: 6.2 | train_step_timing in s: 12.22"
    rows = [line.format(e=epoch, n=n) for epoch in range(3) for n in range(10)]
    assert read_steps(wrote("\n".join(rows))).step.tolist() == list(range(30))


# Composer's console below llm-foundry (mosaicml/composer, composer/loggers/console_logger.py): a head that numbers the
# batch, then a figure a line.
COMPOSER = """[epoch=1][batch={n}/50]:
\t Train time/batch: {k}
\t Train time/sample: {s}
\t Train memory/peak_reserved_mem: 27.2940
\t Train trainer/device_train_microbatch_size: 8
\t Train loss/train/total: 0.2242
\t Train throughput/batches_per_sec: {rate}
\t Train throughput/device/batches_per_sec: 0.1617
\t Train throughput/tokens_per_sec: 153504.0970
\t Train throughput/device/tokens_per_sec: 19188.0121
\t Train throughput/device/mfu: 0.4312
\t Train time/total: 0.0286
"""


@pytest.mark.parametrize("label", ["", "pod-0 | ", "[rank0]: "])
def test_composers_blocks_are_steps_whose_figures_follow_in_lines_of_their_own(wrote, label):
    blocks = [COMPOSER.format(n=n, k=n - 1, s=256 * n, rate=rate) for n, rate in ((10, 0.5), (20, 0.8), (30, 1.25))]
    evaluation = "[Eval batch=1/4] Eval on eval data:\n\t Eval throughput/batches_per_sec: 9.0\n"
    text = "global_train_batch_size: 256\n" + evaluation.join(blocks)
    log = read_steps(wrote("\n".join(label + line for line in text.splitlines())))
    assert log.step.tolist() == [10, 20, 30]
    assert log.seconds.tolist() == pytest.approx([2.0, 1.25, 0.8])
    assert log.batch.tolist() == [256] * 3
    assert log.memory.tolist() == pytest.approx([27.294e9] * 3)
    assert (log.tokens_per_second[0], log.tokens_per_gpu[0], log.mfu[0]) == (153504.097, 19188.0121, 0.4312)
    assert is_log(text.encode())


def test_composers_file_repeats_the_batch_before_each_figure(wrote):
    lines = ["[metric][batch={n}]: loss/train/total: 2.1 ", "[metric][batch={n}]: throughput/batches_per_sec: 0.25 ",
             "[metric][batch={n}]: throughput/device/tokens_per_sec: 1255.5 "]  # fmt: skip
    log = read_steps(wrote("\n".join(line.format(n=n) for n in (1, 2, 3) for line in lines)))
    assert (log.step.tolist(), log.seconds.tolist()) == ([1, 2, 3], [4.0] * 3)
    assert log.tokens_per_gpu.tolist() == [1255.5] * 3


def test_modded_nanogpts_clock_of_training_tells_steps_across_evaluations(wrote):
    # Its log stands below its own script; the clock stands still while it evaluates (KellerJordan/modded-nanogpt).
    script = "print0(f'step:{step}/{args.num_iterations} train_time:{t:.0f}ms step_avg:{t/step:.2f}ms')\n"
    lines = ["step:0/1390 val_loss:10.8258 train_time:0ms step_avg:nanms"]
    lines += [f"step:{n}/1390 train_time:{96 * n}ms step_avg:{96.0}ms" for n in (1, 2, 3, 4)]
    lines += [
        "step:4/1390 val_loss:7.1 train_time:384ms step_avg:96.00ms",
        "step:5/1390 train_time:500ms step_avg:100ms",
    ]
    log = read_steps(wrote(script + "=" * 100 + "\n" + "\n".join(lines)))
    assert log.step.tolist() == [1, 2, 3, 4, 5]
    assert log.seconds.tolist() == pytest.approx([0.096, 0.096, 0.096, 0.096, 0.116])
    assert log.remarks == ("step times are differences of its clock of training",)
    assert is_log(script.encode())
    assert is_log("\n".join(lines).encode())


HEADS = [
    "[rank0]:[titan] 2025-06-16 16:24:15,838 - root - INFO - Trainer is initialized with local batch size 8, "
    "global batch size 64, gradient accumulation steps 1, sequence length 2048, total steps 10 (warmup 2)",
    "  global_batch_size ............................... 64",
    '  "train_batch_size": 64,',
    "global_train_batch_size: 64",
]


@pytest.mark.parametrize("head", HEADS, ids=["torchtitan", "Megatron-LM", "DeepSpeed", "llm-foundry"])
def test_the_batch_that_a_log_says_before_its_first_step_is_that_of_its_steps(wrote, head):
    rows = [TITAN.format(n=n, r=0, t=20 + n * 0.3) for n in range(1, 5)]
    log = read_steps(wrote("\n".join([head, *rows, head.replace("64", "32")])))
    assert log.batch.tolist() == [64] * 3
    assert np.isnan(read_steps(wrote("\n".join(["local batch size 8", *rows]))).batch).all()


def test_a_line_in_ten_steps_is_the_mean_of_these_and_says_so(wrote):
    rows = [MEGATRON.format(n=n, s=512 * n, ms=ms, b=512) for n, ms in ((10, 2000), (20, 3000), (30, 4000))]
    log = read_steps(wrote("\n".join(rows)))
    assert log.remarks == ("a line comes each 10 steps: its time counts as the mean of all since the line before",)
    past = history(log.step, log.seconds)
    assert (past.steps, past.seconds) == (30, pytest.approx(3.0))
    assert not read_steps(wrote("\n".join(row.replace("0/", "1/") for row in rows[:1]))).remarks
