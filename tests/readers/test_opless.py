"""torchtitan's structured logs and dumps of torch's flight recorder: what they tell, and why it is no idle share."""

import json
import pickle

import pytest

import debubble
from debubble.core.errors import InputError, WithoutOps
from debubble.readers.flight_recorder import read_flight, steps_of
from debubble.readers.source import recognised
from debubble.readers.steplog import read_steps
from debubble.readers.torchtitan_log import read_titan

EPOCH = 1_790_857_026_000_000  # microseconds
SECOND = 10**9


# torchtitan's structured log. A line as its formatter writes it (observability/structured_logger/jsonl_handler.py of
# 0.3.0), without fields that say nothing of time; tests/recorder/test_torchtitan.py reads one that it wrote itself.


def titan(rank, step, name, value=None, **more):
    return {
        "delta_ms": 0.1,
        "rank": rank,
        "source": "training",
        "step": step,
        "time_us": EPOCH + 1000 * (step or 0),
        "log_type": "event",
        "log_type_name": name,
        "event_name": None,
        "caller": "trainer.py:796:train_step",
        "seq_id": 7,
        **more,
        **({} if value is None else {"value": value}),
    }


def titan_run(rank, steps=10):
    """Steps of 800 ms, 700 of them fwd_bwd in two rounds; rank 3 loads for 40 ms, others for 10; a fifth collects."""
    rows = [titan(rank, None, "training_start")]
    for step in range(1, steps + 1):
        rows.append(titan(rank, step, "step_start"))
        for round_ms in (300.0, 400.0):
            rows.append(titan(rank, step, "fwd_bwd_start"))
            rows.append(titan(rank, step, "fwd_bwd_end", round_ms))
        rows.append(titan(rank, step, "fetching_batch_end", 40.0 if rank == 3 else 10.0))
        if step % 5 == 0:
            rows.append(titan(rank, step, "gc_collect_end", 200.0, step_tags=["gc"]))
        rows.append(titan(rank, step, "metric_value", 4096.0, event_name="global_valid_tokens", log_type="instant"))
        rows.append(titan(rank, step, "step_end", 1000.0 if step % 5 == 0 else 800.0))
    return rows


def write_titan(folder, ranks=4, steps=10):
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        path = folder / f"training.global_rank_{rank}.20261201-101500-ABCDEF.jsonl"
        path.write_text("\n".join(map(json.dumps, titan_run(rank, steps))) + "\n")
    return folder


def test_phases_of_a_structured_log(tmp_path):
    found = read_titan(sorted(write_titan(tmp_path / "logs").iterdir()))
    assert found.steps == tuple(range(1, 11))
    assert sorted(found.step_ms) == [800.0] * 8 + [1000.0] * 2
    assert found.phases["fwd_bwd"] == dict.fromkeys(range(4), 700.0)  # both rounds of a step together
    assert found.phases["fetching_batch"] == {0: 10.0, 1: 10.0, 2: 10.0, 3: 40.0}
    assert found.rare == {"gc_collect": (2, 1000.0)}
    assert found.remarks == ()


def test_diagnose_says_what_the_phases_tell_and_why_there_is_no_idle_share(tmp_path, cli):
    ran = cli("diagnose", write_titan(tmp_path / "logs"))
    assert ran.status == 1
    for words in (
        "no forward or backward of a micro-batch",
        "10 steps of 4 ranks: 800 ms, the median",
        "fwd_bwd: 700 ms, 87.5 % of a step",
        "fetching_batch: 40 ms, 5.0 % of a step, on rank 3; 10 ms on rank 0",
        "outside fwd_bwd: 100 ms to 100 ms of a step",
        "gc_collect: in 2 of 10 steps; such a step takes 1 s",
        "debubble record",
    ):
        assert words in ran.err


def test_fit_and_why_take_a_structured_log_as_a_log_of_steps(tmp_path):
    folder = write_titan(tmp_path / "logs")
    log = read_steps(folder)
    assert sorted(log.seconds) == [0.8] * 8 + [1.0] * 2
    assert log.tokens_per_second[0] == pytest.approx(4096 / 0.8)
    (loading,) = (timer for timer in log.timers if timer.name == "fetching_batch")
    assert (loading.low, loading.high) == (0.010, 0.040)
    assert debubble.fit(folder, ranks=4).verdict
    assert debubble.why(folder, folder).throughput_ratio == pytest.approx(1.0)


def test_a_restart_counts_its_later_times_and_bad_lines_are_left_out(tmp_path):
    folder = write_titan(tmp_path / "logs", ranks=1)
    again = [titan(0, 10, "step_end", 640.0), titan(0, 11, "step_end", 800.0)]
    (folder / "training.global_rank_0.20261201-111500-ABCDEF.jsonl").write_text(
        "not JSON\n" + "\n".join(map(json.dumps, again))
    )
    found = read_titan(sorted(folder.iterdir()))
    assert found.steps == tuple(range(1, 12))
    assert found.step_ms[9] == 640.0
    assert any("1 lines were left out" in remark for remark in found.remarks)
    assert any("1 steps were done before" in remark for remark in found.remarks)


def test_a_step_that_not_every_rank_ended_does_not_count(tmp_path):
    folder = write_titan(tmp_path / "logs", ranks=2)
    short = folder / "training.global_rank_1.20261201-101500-ABCDEF.jsonl"
    short.write_text("\n".join(map(json.dumps, titan_run(1, steps=7))))
    assert read_titan(sorted(folder.iterdir())).steps == tuple(range(1, 8))
    short.write_text(json.dumps(titan(1, 30, "step_end", 1.0)))
    with pytest.raises(InputError, match="no step has ended on all of its ranks"):
        read_titan(sorted(folder.iterdir()))


# The flight recorder. A dump as FlightRecorder.hpp 2.10 writes it, of what Megatron-Core's 1F1B posts: a receive and a
# send on the way up and down, and both directions in one batch between. torch's own analyser takes it, below.


class Dump:
    """The entries of one rank of a pipeline whose group is ranks 0, 2, 4, 6 of the job."""

    def __init__(self, rank, ranks=4):
        self.rank, self.ranks = rank, ranks
        self.entries, self.number, self.now = [], 0, EPOCH * 1000

    def entry(self, name, duration_ms, *, state="completed", p2p=True):
        row = {
            "record_id": len(self.entries),
            "pg_id": 5,
            "process_group": ["5", "mesh_pp"],
            "thread_name": "python",
            "collective_seq_id": 0 if p2p else self.number,
            "p2p_seq_id": self.number if p2p else 0,
            "op_id": len(self.entries),
            "profiling_name": name,
            "time_created_ns": self.now,
            "input_sizes": [[1, 1024, 2048]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[1, 1024, 2048]],
            "output_dtypes": ["BFloat16"],
            "state": state,
            "retired": True,
            "timeout_ms": 600_000,
            "is_p2p": p2p,
        }
        if duration_ms is not None:
            row["duration_ms"] = duration_ms
        self.entries.append(row)

    def post(self, to=None, of=None, duration_ms=2.0, state="completed"):
        self.number += 1
        sides = ([f"nccl:send {self.rank}->{to}"] if to is not None else []) + (
            [f"nccl:recv {self.rank}<-{of}"] if of is not None else []
        )
        for name in sides if len(sides) == 1 else ():
            self.entry(name, duration_ms, state=state)
        if len(sides) > 1:  # of a batch only its end has a duration and a state
            for name in sides:
                self.entry(name, None, state="scheduled")
            self.entry("nccl:coalesced", duration_ms, state=state)
        self.now += 1_000_000

    def step(self, microbatches):
        """Megatron-Core's 1F1B."""
        above, below = self.rank - 1, self.rank + 1
        first, last = self.rank == 0, self.rank == self.ranks - 1
        warm = min(self.ranks - 1 - self.rank, microbatches)
        up, down = (None if first else above), (None if last else below)
        for _ in range(warm):
            self.received(up)
            self.post(to=down)
        self.received(up if warm < microbatches else None)
        for batch in range(microbatches - warm):
            if not last:
                self.post(to=down, of=down, duration_ms=4.0)
            if not first:
                more = batch + 1 < microbatches - warm
                self.post(to=up, of=up if more else None, duration_ms=4.0 if more else 2.0)
        for _ in range(warm):
            self.received(down)
            if not first:
                self.post(to=up)

    def received(self, rank):
        if rank is not None:
            self.post(of=rank, duration_ms=3.0)

    def document(self):
        groups = {"5": {"name": "5", "desc": "mesh_pp", "ranks": str([2 * rank for rank in range(self.ranks)])}}
        status = {"5": {"last_enqueued_collective": "-1", "last_started_collective": "-1"}}
        return {
            "version": "2.10",
            "comm_lib_version": "2.27.5",
            "pg_config": groups,
            "pg_status": status,
            "entries": self.entries,
        }


def dumps(steps=4, microbatches=8, length_ms=200):
    made = []
    for rank in range(4):
        dump = Dump(rank)
        for step in range(steps):
            dump.now = EPOCH * 1000 + step * length_ms * 1_000_000
            dump.step(microbatches)
        made.append(dump)
    return made


def write_dumps(folder, made, indent=None):
    folder.mkdir(parents=True, exist_ok=True)
    for dump in made:
        (folder / f"dump_{dump.rank}.json").write_text(json.dumps(dump.document(), indent=indent))
    return folder


def test_what_ranks_posted(tmp_path):
    ranks, remarks = read_flight(sorted(write_dumps(tmp_path / "d", dumps(steps=1)).iterdir()))
    assert remarks == []
    assert [one.rank for one in ranks] == [0, 2, 4, 6]  # of the job, by the group's list
    first, last = ranks[0].posts, ranks[-1].posts
    assert [(post.to, post.of) for post in first] == 3 * [((2,), ())] + 5 * [((2,), (2,))] + 3 * [((), (2,))]
    assert [(post.to, post.of) for post in last] == [((), (4,)), *7 * [((4,), (4,))], ((4,), ())]
    assert {post.ms for post in first[3:8]} == {4.0}
    assert first[0].bytes == 1024 * 2048 * 2


@pytest.mark.parametrize("cut", [0, 5, 17])
def test_steps_are_where_nothing_is_on_its_way(cut):
    # A ring of entries forgets the oldest: it may begin within a step.
    made = dumps(steps=4)[0]
    made.entries = made.entries[cut:]
    found = posts_of(made)
    steps = steps_of(found, 2)
    assert (steps.sends, steps.most) == (8, 3)  # p - 1 of them before a gradient comes back
    assert {later - sooner for sooner, later in zip(steps.starts, steps.starts[1:], strict=False)} == {200_000_000}


def posts_of(dump):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.json"
        path.write_text(json.dumps(dump.document()))
        return read_flight([path])[0][0].posts


@pytest.mark.parametrize("indent", [None, 2])
def test_diagnose_says_what_a_dump_tells_and_why_there_is_no_idle_share(tmp_path, cli, indent):
    ran = cli("diagnose", write_dumps(tmp_path / "d", dumps(), indent))
    assert ran.status == 1
    # Rank 0 of a step of 200 ms: three sends of 2 ms, three receives of 3, five batches of both of 4.
    for words in (
        "no forward or backward",
        "pipeline of ranks 0, 2, 4, 6: 2 whole steps, 200 ms from one to the next",
        "rank 0 sends 8 messages a step to rank 2, of 4.194 MB; at most 3 are on their way",
        "as 1F1B posts; with one message a micro-batch and even stages it idles 27.3 % at least",
        "rank 0, of a step: receives 4.5 %, sends 3.0 %, both in one 10.0 %",
        "debubble record",
    ):
        assert words in ran.err
    assert "had not ended" not in ran.err


def test_a_dump_of_a_hang_says_who_waits_for_whom(tmp_path):
    made = dumps()
    made[2].post(to=3, of=3, state="started")
    made[0].now = made[2].now - 1_000_000 + 60 * SECOND
    made[0].post(to=1)
    with pytest.raises(WithoutOps) as refused:
        debubble.diagnose(write_dumps(tmp_path / "d", made))
    (stuck,) = (fact for fact in refused.value.facts if "had not ended" in fact)
    assert stuck.startswith("rank 4 had not ended a send to rank 6 with a receive from rank 6, posted 60 s before")


def test_a_dump_without_times_says_which_switch_adds_them(tmp_path, cli):
    made = dumps()
    for dump in made:
        for entry in dump.entries:
            entry.pop("duration_ms", None)
    ran = cli("diagnose", write_dumps(tmp_path / "d", made))
    assert ran.status == 1
    assert "TORCH_NCCL_ENABLE_TIMING=1" in ran.err
    assert "of a step: receives" not in ran.err


def test_torchs_own_analyser_reads_the_same_peers_and_batches(tmp_path):
    types = pytest.importorskip("torch.distributed.flight_recorder.components.types")
    from torch.distributed.flight_recorder.components.utils import find_coalesced_group

    made = dumps(steps=1)
    ours, _ = read_flight(sorted(write_dumps(tmp_path / "d", made).iterdir()))
    for dump, mine in zip(made, ours, strict=True):
        left, theirs = list(dump.entries), []
        while left:
            batch = find_coalesced_group("5", left, {("5", mine.rank): "5"}, mine.rank) or [(0, left[0])]
            left = left[len(batch) :]
            ops = [types.Op(entry, {"5": {0, 2, 4, 6}}, "5") for _, entry in batch]
            to = tuple(op._dst_g for op in ops if op.type == "send")
            theirs.append((to, tuple(op._src_g for op in ops if op.type == "recv")))
        assert [(post.to, post.of) for post in mine.posts] == theirs


def test_a_dump_that_torch_made_itself(tmp_path, cli):
    pytest.importorskip("torch")
    from tests.recorder.jobs import python

    script = tmp_path / "dump.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch._C import _distributed_c10d as c10d\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "open(sys.argv[1], 'wb').write(c10d._dump_fr_trace_json())\n"
        "dist.destroy_process_group()\n"  # else gloo's threads may still run when the interpreter ends, which aborts
    )
    path = tmp_path / "nccl_trace_rank_0.json"
    ran = python(script, path)
    assert ran.returncode == 0, ran.stderr[-1000:]
    said = cli("diagnose", path)
    assert said.status == 1
    assert "1 ranks, 1 collectives, and no send or receive: no pipeline is in it" in said.err


def test_a_dump_that_is_cut_off_is_named(tmp_path, cli):
    folder = write_dumps(tmp_path / "d", dumps())
    (folder / "dump_2.json").write_bytes((folder / "dump_2.json").read_bytes()[:-20])
    ran = cli("diagnose", folder)
    assert "dump_2.json: it is no whole dump" in ran.err
    assert "pipeline of ranks 0, 2, 4, 6" in ran.err


# What is neither.


class Trap:
    """Unpickled, it would end the process."""

    def __reduce__(self):
        return (exit, (7,))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_never_opened(tmp_path, cli, protocol):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**Dump(0).document(), "trap": Trap()}, protocol))
    assert recognised(path) is None
    ran = cli("diagnose", path)
    assert ran.status == 2
    assert "pickle" in ran.err


def test_json_that_only_holds_such_a_word_is_neither(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"profiling_name": "nccl:send", "log_type_name": 3}')
    assert recognised(path) is None
