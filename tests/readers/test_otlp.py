"""Megatron's spans as OTLP JSON: simulated runs come back with order, steps and durations; bad lines cost lines."""

import json

import numpy as np
import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import Kind, Shape
from debubble.core.simulate import simulate
from debubble.core.units import MILLISECOND
from debubble.readers.otlp import read_otlp
from debubble.readers.source import read
from debubble.schedules.catalog import build
from devices import devices, simulated


def number(key, value, *, text=False):
    return {"key": key, "value": {"stringValue" if text else "intValue": str(value)}}


def span(name, start, end, *attributes):
    return {
        "traceId": "0" * 32,
        "spanId": "0" * 16,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(int(start)),
        "endTimeUnixNano": str(int(end)),
        "attributes": list(attributes),
    }


def batch(rank, spans, *, text=False, **more):
    said = [number("dl.rank", rank, text=text), number("dl.pipeline_parallel.rank", rank)]
    said.append({"key": "host.name", "value": {"stringValue": more.get("host", "a")}})
    scope = {"scope": {"name": "nemo.lens"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": said}, "scopeSpans": [scope]}]}


def spans_of(device, microbatches):
    """What Megatron writes of a device: its ops, the forward-backward of each step, and the steps around them."""
    names = {Kind.F: "megatron.microbatch.forward", Kind.B: "megatron.microbatch.backward"}
    found = []
    for step in np.unique(device.step).tolist():
        rows = np.flatnonzero(device.step == step)
        for row in rows.tolist():
            found.append(span(names[Kind(device.kind[row])], device.start[row], device.end[row]))
        first, last = device.start[rows].min(), device.end[rows].max()
        found.append(span("megatron.forward_backward", first, last, number("megatron.num_microbatches", microbatches)))
        found.append(span("megatron.train_step", first - 1000, last + 9000, number("megatron.iteration", step)))
    return found


def written(path, timeline, microbatches, per_line=7, **more):
    lines = []
    for device in devices(timeline):
        spans = spans_of(device, microbatches)
        lines += [batch(device.rank, spans[i : i + per_line], **more) for i in range(0, len(spans), per_line)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), [("1f1b", 4, 6, 1), ("interleaved", 4, 8, 2)])
def test_a_simulated_run_comes_back(tmp_path, name, ranks, microbatches, chunks):
    timeline = simulated(name, ranks, microbatches, chunks)
    found = read([written(tmp_path / "spans.jsonl", timeline, microbatches)])
    assert [window.step for window in found.windows] == [10, 11, 12]
    for window in found.windows:
        got = window.timeline
        assert got.program.schedule.same_order(timeline.program.schedule)
        assert got.makespan == timeline.makespan
        assert np.abs((got.end - got.start) - (timeline.end - timeline.start)).max() <= 1


def test_the_idle_share_of_diagnose_is_that_of_the_closed_form(tmp_path, cli):
    """1F1B of 4 ranks and 6 micro-batches with free hops idles (p-1)/(m+p-1) = 1/3 of its window."""
    made = build("1f1b", Shape(4, 6))
    timeline = simulate(lower(made), costs_of(Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND), made))
    ran = cli("diagnose", written(tmp_path / "spans.jsonl", timeline, 6), "--json")
    assert ran.status == 0
    assert ran.json["idle_share"] == pytest.approx(1 / 3, abs=1e-6)


def test_sends_and_receives_are_used_where_each_pass_has_its_own(tmp_path):
    timeline = simulated("1f1b", 2, 4)
    path = written(tmp_path / "spans.jsonl", timeline, 4)
    with path.open("a") as more:
        for device in devices(timeline):
            down, up = ("send_forward", "recv_backward") if device.rank == 0 else ("recv_forward", "send_backward")
            names = {Kind.F: f"megatron.p2p.{down}", Kind.B: f"megatron.p2p.{up}"}
            moves = [
                span(names[Kind(kind)], end, end + 1000) for kind, end in zip(device.kind, device.end, strict=True)
            ]
            more.write(json.dumps(batch(device.rank, moves)) + "\n")
    for device in read_otlp([path], "run").devices:
        assert len(device.transfers) == 24
        assert int(device.transfers.send.sum()) == 12
        assert set(device.transfers.step.tolist()) == {10, 11, 12}


def test_numbers_written_as_text_and_a_whole_document_are_read(tmp_path):
    timeline = simulated("1f1b", 2, 4)
    lines = [batch(device.rank, spans_of(device, 4), text=True) for device in devices(timeline)]
    whole = {"resourceSpans": [one for line in lines for one in line["resourceSpans"]]}
    (tmp_path / "spans.json").write_text(json.dumps(whole, indent=2))
    assert len(read([tmp_path / "spans.json"]).windows) == 3


def test_evaluation_is_not_training(tmp_path):
    timeline = simulated("1f1b", 2, 4)
    path = written(tmp_path / "spans.jsonl", timeline, 4)
    with path.open("a") as more:
        for device in devices(timeline):
            late = int(device.end.max()) + 10**9
            spans = [
                span("megatron.microbatch.forward", late + 5, late + 10),
                span("megatron.evaluate", late, late + 20),
            ]
            more.write(json.dumps(batch(device.rank, spans)) + "\n")
    for device in read_otlp([path], "run").devices:
        assert np.unique(device.step).tolist() == [10, 11, 12]


def test_a_bad_line_costs_that_line(tmp_path):
    path = written(tmp_path / "spans.jsonl", simulated("1f1b", 2, 4), 4, per_line=10_000)
    lines = path.read_text().splitlines()
    hostile = [
        "{",
        "[]",
        '{"resourceSpans": 7}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 3}]}]}]}',
        "\x00\xff",
    ]
    path.write_text("\n".join([lines[0], *hostile, lines[1]]))
    found = read([path])
    assert len(found.windows) == 3
    assert any("5 lines left out, the first is line 2" in remark for remark in found.remarks)


def test_spans_that_run_backwards_or_have_no_rank_are_named(tmp_path):
    timeline = simulated("1f1b", 2, 4)
    path = written(tmp_path / "spans.jsonl", timeline, 4)
    homeless = batch(0, [span("megatron.microbatch.forward", 1, 2)])
    homeless["resourceSpans"][0]["resource"]["attributes"] = []
    with path.open("a") as more:
        more.write(json.dumps(homeless) + "\n" + json.dumps(batch(0, [span("megatron.microbatch.forward", 9, 2)])))
    remarks = " ".join(read_otlp([path], "run").remarks)
    assert "1 spans were left out: their resource does not say dl.rank" in remarks
    assert "1 spans were left out: they end before they start" in remarks


def test_fused_transfers_are_not_taken_for_all(tmp_path):
    timeline = simulated("1f1b", 2, 4)
    path = written(tmp_path / "spans.jsonl", timeline, 4)
    first = devices(timeline)[0]
    with path.open("a") as more:
        move = span("megatron.p2p.send_forward", first.end[0], first.end[0] + 1000)
        more.write(json.dumps(batch(0, [move])))
    found = read_otlp([path], "run")
    assert all(device.transfers is None for device in found.devices)
    assert any("fused ones get no span" in remark for remark in found.remarks)


def test_spans_without_microbatches_are_refused_with_what_is_missing(tmp_path, cli):
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(batch(0, [span("megatron.train_step", 1, 2, number("megatron.iteration", 1))])))
    with pytest.raises(InputError, match=r"megatron\.microbatch\.forward"):
        read([path])
    ran = cli("diagnose", path)
    assert ran.status == 2
    assert "MEGATRON_OTEL_SPAN_GROUPS=all" in ran.err


@pytest.mark.parametrize("replica_said", [True, False])
def test_tensor_ranks_are_members_of_their_stage_and_no_replicas(tmp_path, replica_said):
    """Two pipelines of two stages of two tensor ranks, Megatron's order of ranks: tensor, then data, then pipeline."""
    lines = []
    for replica, longer in enumerate((1.0, 1.5)):
        rates = Rates(forward=longer * 10 * MILLISECOND, backward=longer * 20 * MILLISECOND)
        for device in devices(simulated_with(rates)):
            for tensor in range(2):
                rank = 4 * device.rank + 2 * replica + tensor
                line = batch(rank, spans_of(device, 4))
                attributes = line["resourceSpans"][0]["resource"]["attributes"]
                attributes[1] = number("dl.pipeline_parallel.rank", device.rank)
                attributes.append(number("dl.tensor_parallel.rank", tensor))
                if replica_said:
                    attributes.append(number("dl.data_parallel.rank", replica))
                lines.append(json.dumps(line) + "\n")
    (tmp_path / "spans.jsonl").write_text("".join(lines))
    reading = read_otlp([tmp_path / "spans.jsonl"], "spans")
    assert [(one.rank, one.position, one.replica) for one in reading.devices] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1), (4, 1, 0), (5, 1, 0), (6, 1, 1), (7, 1, 1)
    ]  # fmt: skip
    found = read([tmp_path / "spans.jsonl"])
    spans = {window.replica: window.timeline.makespan for window in found.windows}
    assert set(spans) == {0, 1}
    assert spans[1] == pytest.approx(1.5 * spans[0])
    assert found.windows[0].timeline.program.schedule.ranks == 2


def simulated_with(rates):
    program = lower(build("1f1b", Shape(2, 4)))
    return simulate(program, costs_of(rates, program.schedule))
