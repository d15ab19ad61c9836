"""Job files: what is stated is read, what follows is filled in, and every fault is one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import Config
from debubble.config.derive import settled
from debubble.core.errors import InputError
from debubble.readers.job_toml import read_jobs

SIZE = st.integers(1, 64)


@pytest.fixture
def read(tmp_path):
    def jobs(text: str):
        (tmp_path / "job.toml").write_text(text)
        return read_jobs(tmp_path / "job.toml")

    return jobs


@pytest.fixture
def faults(read):
    def lines(text: str) -> list[str]:
        with pytest.raises(InputError) as error:
            read(text)
        return str(error.value).splitlines()

    return lines


def test_every_key_of_the_design_is_read(read):
    (job,) = read(
        'name = "eight"\ngpus = 8\npipeline = 4\ntensor = 1\ndata = 2\nmicrobatches = 4\nmicro_batch = 1\n'
        'sequence = 4096\nschedule = "1f1b"\nforward = "10ms"\nbackward = 20\ninput = "1e1 ms"\nweight = "10ms"\n'
        'transfer = "35us"\nrecompute = "full"\nstage_scale = [1, 1, 1, 1.6]\n[measured]\nutilisation = 0.61\n'
        'tokens_per_second = 82000\ntflops_per_gpu = 170\nmfu = 0.43\nstep = "1.2s"\nsamples_per_second = 20'
    )
    assert (job.name, job.gpus, job.forward, job.backward, job.transfer) == ("eight", 8, 10e6, 20e6, 35e3)
    assert (job.utilisation, job.step, job.stage_scale) == (0.61, 1.2e9, (1, 1, 1, 1.6))
    assert job.global_batch == 8


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_sizes_follow_from_each_other(pipeline, tensor, data, microbatches, micro_batch):
    whole = Config(pipeline=pipeline, tensor=tensor, data=data, microbatches=microbatches, micro_batch=micro_batch)
    full = settled(whole)
    assert full.gpus == pipeline * tensor * data
    assert full.global_batch == microbatches * micro_batch * data
    lacking = Config(
        gpus=full.gpus, pipeline=pipeline, tensor=tensor, global_batch=full.global_batch, micro_batch=micro_batch
    )
    found = settled(lacking)
    assert (found.data, found.microbatches) == (data, microbatches)
    assert settled(found) == found


def test_a_series_inherits_what_stands_above_it_and_names_its_runs(read):
    runs = read(
        "microbatches = 8\nmeasured.mfu = 0.4\n[[run]]\ngpus = 2\n[[run]]\ngpus = 4\nmeasured.step = 2\n[[run]]\n"
    )
    assert [run.name for run in runs] == ["2 GPUs", "4 GPUs", "run 3"]
    assert {run.microbatches for run in runs} == {8}
    assert (runs[1].mfu, runs[1].step, runs[0].step) == (0.4, 2e6, None)


def test_runs_of_one_name_are_told_apart(read):
    assert [run.name for run in read("[[run]]\ngpus = 2\n[[run]]\ngpus = 2\n")] == ["2 GPUs (1)", "2 GPUs (2)"]


def test_all_faults_at_once(faults):
    lines = faults('microbatchs = 4\ngpus = "many"\nmicrobatches = 0\n[measured]\nmfu = 43\nutilization = 0.6\n')
    assert len(lines) == 5
    assert "microbatchs = 4: no such key; did you mean microbatches" in lines[0]
    assert "measured.utilization = 0.6: no such key; did you mean utilisation?" in lines[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("measured.utilisation = nan", "expected float > 0.0; write it as in utilisation = 0.61"),
        ("stage_scale = [1, nan]", "expected float >= 0.0"),
        ("stage_scale = [1, inf]", "expected float < 1000000000.0"),
        ("measured.tokens_per_second = inf", "expected float < 1e+18"),
        ("measured.utilisation = 1.2", "expected float <= 1.0; write it as in utilisation = 0.61"),
        ("gpus = 1_000_000_000_000_000", "expected int <= 1000000000000"),
        ("gpus = true", "expected int, got bool"),
        ('forward = "ten"', "write it as in 20ms"),
        ("forward = [1]", "a duration is text or a number of ms"),
        ("forward = 0", "it takes some time, and at most a day"),
        ('measured.step = "25e3min"', "at most a day"),
        ("forward = nan", "a duration is a number"),
        ('recompute = "some"', "invalid enum value"),
        ("mfu = 0.4", "this key belongs into [measured]"),
        ("measured.gpus = 4", "this key stands above [measured]"),
        ("measured = 3", "it is a table"),
        ("run = 3", "write [[run]] above each run"),
        ("gpus = ", "this is not TOML"),
        ("gpus = 8\npipeline = 3", "give gpus 6 or 9"),
        (
            "gpus = 8\npipeline = 4\ndata = 4",
            "pipeline 4 x data 4 = 16 does not fit into it; give gpus 16, or",
        ),
        ("data = 2\nmicrobatches = 4\nmicro_batch = 1\nglobal_batch = 9", "give global_batch 8 or 16"),
    ],
)
def test_what_cannot_be_is_one_line_with_value_rule_and_remedy(faults, text, said):
    (line,) = faults(text)
    assert said in line


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"\xff", "not UTF-8"), (b"#" * 1_000_001, "at most 1,000,000 bytes"), (b"a=" + b"[" * 5000, "this is not TOML")],
)
def test_a_file_that_is_no_text_too_long_or_too_deep_is_refused(tmp_path, raw, said):
    path = tmp_path / "job.toml"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=said):
        read_jobs(path)


@pytest.mark.parametrize(("text", "held"), [('"48GB"', 48 * 10**9), ('"80GiB"', 80 * 2**30), ("1000", 1000)])
def test_memory_that_was_seen_is_a_size(tmp_path, text, held):
    path = tmp_path / "job.toml"
    path.write_text(f"gpus = 8\n[measured]\npeak_memory = {text}\n")
    assert read_jobs(path)[0].peak_memory == held


@pytest.mark.parametrize("text", ['"48 bananas"', "0", "-3", "1.5", "true", '"2000TB"', "nan"])
def test_memory_that_cannot_be_is_a_fault(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(f"[measured]\npeak_memory = {text}\n")
    with pytest.raises(InputError, match=r"measured\.peak_memory = ") as caught:
        read_jobs(path)
    assert len(caught.value.faults) == 1
