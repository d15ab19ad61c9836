"""The one door: a path is what its content says, whatever its name; runs and formats are never mixed."""

import gzip
import shutil
from pathlib import Path

import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Shape
from debubble.readers.source import FORMATS, Ask, read, recognised
from debubble.reconstruct.positions import Said
from debubble.schedules.catalog import build
from pour import Style, pour, run_of, write

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    schedule = build("1f1b", Shape(2, 3))
    write(folder, pour(run_of(schedule, costs_of(Rates(), schedule), 3), Style(kernels=2)))
    return folder


HEADS = {
    "OpenTelemetry spans (OTLP JSON)": [b'{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[]}]}'],
    "a Kineto or Chrome trace": [
        b'{"schemaVersion": 1, "traceEvents": [',
        b'\n{\n  "deviceProperties": [',
        b'[\n {\n "name": "iteration begin", "ph": "i"',
        b'INFO: profiler\n{"traceEvents": [',
    ],
    "a structured log of torchtitan": [b'{"rank": 0, "time_us": 1, "log_type_name": "fwd_bwd_end", "seq_id": 4}\n'],
    "a dump of the NCCL flight recorder": [b'{"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": []}'],
    "a distilled trace": [b"\x8b\xa6format\xb8debubble distilled trace\xa7version\x01"],
    "a Primus timeline": [b'{"1": {"fwd_start": [1.0], "fwd_end": [2.0]'],
    "a log of steps": [b"microbatches,step_ms\n8,120\n16,210\n"],
    "an op table": [b"PAR1\x15", b"rank,step,op,stage,start_ms,end_ms\n0,1,F", b"op;rank;start_us;end_us\n"],
    None: [b"", b"# README\n", b'{"a": 1}', b"[1, 2]", b"\x00\x01\x02", b"name,age\nx,1\n", b"<html>"],
}


@pytest.mark.parametrize(("name", "head"), [(name, head) for name, heads in HEADS.items() for head in heads])
@pytest.mark.parametrize("packed", [False, True])
def test_formats_are_told_by_their_first_bytes(tmp_path, name, head, packed):
    path = tmp_path / "x.png"  # the ending lies
    path.write_bytes(gzip.compress(head) if packed else head)
    known = recognised(path)
    assert (known and known.name) == name


def test_every_format_has_a_test():
    assert {known.name for known in FORMATS} <= {*HEADS, "a recording", "an Nsight Systems export"}


def test_a_recording_is_told_by_its_content():
    assert recognised(next((RECORDINGS / "four").glob("*.msgpack"))).name == "a recording"
    assert read([RECORDINGS / "four"]).windows


def test_steps_narrow_a_recording_and_a_trace(traces):
    assert {w.step for w in read([traces], Ask(Said(steps=(11, 12)))).windows} == {11, 12}
    steps = sorted({w.step for w in read([RECORDINGS / "four"]).windows})
    assert {w.step for w in read([RECORDINGS / "four"], Ask(Said(steps=(steps[0], steps[0])))).windows} == {steps[0]}


def test_steps_that_are_not_there_are_an_input_error(traces):
    for path in (traces, RECORDINGS / "four"):
        with pytest.raises(InputError):
            read([path], Ask(Said(steps=(900, 901))))


def test_files_one_by_one_are_the_folder(traces):
    one, other = read([traces]), read(sorted(traces.iterdir()))
    assert [w.timeline.makespan for w in one.windows] == [w.timeline.makespan for w in other.windows]


def test_strangers_of_the_same_ending_are_passed_over_aloud_others_silently(traces):
    (traces / "README.md").write_text("about")
    (traces / "rank9_trace.json.gz").write_bytes(b"")
    remarks = read([traces]).remarks
    assert any("rank9_trace.json.gz: it is empty; it was left out" in remark for remark in remarks)
    assert not any("README" in remark for remark in remarks)


def test_several_formats_in_one_folder_ask_which(traces):
    (traces / "ops.csv").write_text("rank,step,op,stage,start_ms,end_ms\n0,1,F,0,0,1\n")
    with pytest.raises(InputError, match="several formats"):
        read([traces])


def test_several_runs_in_one_folder_ask_which(traces):
    shutil.copytree(traces, traces / "iteration_20")
    with pytest.raises(InputError, match="2 folders"):
        read([traces])


def test_all_faults_of_all_paths_at_once(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(InputError) as error:
        read([tmp_path / "a.txt", tmp_path / "nowhere"])
    assert len(error.value.faults) == 2


def test_an_empty_folder_says_what_is_known(tmp_path):
    with pytest.raises(InputError, match="a Kineto or Chrome trace"):
        read([tmp_path])


def test_a_mapped_table_needs_no_known_names(tmp_path):
    path = tmp_path / "ours.csv"
    path.write_text("wer,was,wo,wann,bis\n" + "".join(f"0,{op},0,{t},{t + 1}\n" for t, op in enumerate("FB")))
    mapping = {"rank": "wer", "op": "was", "stage": "wo", "start_ms": "wann", "end_ms": "bis"}
    with pytest.raises(InputError):
        read([path])
    assert read([path], Ask(columns=mapping)).windows[0].timeline.makespan == 2_000_000


def test_overrides_reach_the_merge(traces):
    with pytest.raises(InputError, match="3"):
        read([traces], Ask(Said(ranks=3)))


def test_a_trace_without_a_pipeline_is_refused(tmp_path):
    schedule = build("1f1b", Shape(2, 3))
    runs = run_of(schedule, costs_of(Rates(), schedule))
    write(tmp_path, pour(runs, Style(kernels=2, labels=False, p2p="")))
    with pytest.raises(Refusal, match="no pipeline"):
        read([tmp_path])
