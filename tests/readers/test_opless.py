"""torchtitan's structured logs and NCCL flight recorder dumps: known by content, refused with what they lack."""

import json
import pickle

import pytest

from debubble.readers.source import recognised


def titan(event, time):
    """A line as torchtitan's formatter writes it, without the fields that say nothing of time."""
    return {
        "delta_ms": 0.1,
        "rank": 0,
        "source": "training",
        "step": 5,
        "time_us": time,
        "log_type": "event",
        "log_type_name": event,
        "caller": "trainer.py:796:train_step",
        "seq_id": time,
    }


def flight():
    entry = {
        "record_id": 0,
        "pg_id": 1,
        "process_group": ["1", "undefined"],
        "profiling_name": "nccl:send 0->1",
        "time_created_ns": 1_724_779_239_936_775_119,
        "duration_ms": 0.07,
        "state": "completed",
    }
    return {"version": "2.5", "nccl_version": "2.20.5", "pg_config": {}, "pg_status": {}, "entries": [entry]}


@pytest.fixture
def titan_log(tmp_path):
    path = tmp_path / "training.global_rank_0.jsonl"
    events = [titan("fwd_bwd_start", 1), titan("fwd_bwd_end", 2)]
    path.write_text("not JSON\n".join(json.dumps(event) + "\n" for event in events))
    return path


def test_a_structured_log_of_torchtitan_is_refused_with_what_it_lacks(titan_log, cli):
    ran = cli("diagnose", titan_log)
    assert ran.status == 2
    assert "torchtitan's structured log" in ran.err
    assert "without forwards and backwards" in ran.err


@pytest.mark.parametrize("indent", [None, 2])
def test_a_flight_recorder_is_refused_with_what_it_lacks(tmp_path, cli, indent):
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text(json.dumps(flight(), indent=indent))
    ran = cli("diagnose", path)
    assert ran.status == 2
    assert "without the compute" in ran.err


class Trap:
    """Unpickled, it would end the process."""

    def __reduce__(self):
        return (exit, (7,))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_never_opened(tmp_path, cli, protocol):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**flight(), "trap": Trap()}, protocol))
    assert recognised(path) is None
    ran = cli("diagnose", path)
    assert ran.status == 2
    assert "pickle" in ran.err


def test_json_that_only_holds_such_a_word_is_neither(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"profiling_name": "nccl:send", "log_type_name": 3}')
    assert recognised(path) is None
