"""Events: ops as a device ran them and not as the host launched them, read late, on a device that is played."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from debubble.core.schedule import Kind
from debubble.readers.recording import read_tracks
from debubble.readers.recording_file import unpacked
from debubble.recorder.cuda import EventClock, event_clock, is_capturing
from debubble.recorder.session import Seat, Session
from debubble.recorder.tape import OPTIMIZER, RECEIVE
from debubble.recorder.wishes import wish_of

MS = 1_000_000
FORWARD, BACKWARD = 5 * MS, 9 * MS  # on the device
LAUNCH = 10_000  # what the host spends on each


class Device:
    """A stream that runs kernels one after the other, with a clock of its own; the host only puts them there."""

    ahead = 7_000_000_123  # of the device's clock

    def __init__(self):
        self.host, self.busy, self.made, self.capturing = 1000 * MS, 0, 0, False

    def launch(self, ns: int) -> None:
        self.host += LAUNCH
        self.busy = max(self.busy, self.host) + ns

    def synchronize(self) -> None:
        self.host = max(self.host, self.busy)

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device):
        self.device, self.at, self.captured = device, None, False

    def record(self):
        self.at, self.captured = max(self.device.busy, self.device.host), self.device.capturing

    def query(self):
        assert not self.device.capturing, "asked during a capture, which that breaks"
        if self.captured:
            raise RuntimeError("CUDA error: operation not permitted on an event last recorded in a capturing stream")
        return self.at <= self.device.host

    def elapsed_time(self, end_event):
        if self.captured or end_event.captured:
            raise RuntimeError("CUDA error: invalid argument")
        for event in (self, end_event):
            assert event.query(), "read before it was over"
        return ((end_event.at + self.device.ahead) - (self.at + self.device.ahead)) / MS


class Model:
    """A stage whose weights lie on the device."""

    def parameters(self):
        yield SimpleNamespace(device=SimpleNamespace(type="cuda"))


@pytest.fixture
def device(monkeypatch):
    played = Device()
    monkeypatch.setattr("debubble.recorder.cuda.is_capturing", lambda: played.capturing)
    monkeypatch.setattr("debubble.recorder.session.is_capturing", lambda: played.capturing)
    return played


@pytest.fixture
def session(tmp_path, device):
    said: list[str] = []
    made = Session(wish_of(tmp_path / "run"), said.append, lambda: EventClock(device.event, lambda: device.host))
    made.said = said
    return made


def step(session, device, model, *, microbatches=2, starved=0, loss_read=False):
    """What an adapter tells of a step whose kernels the host launches far ahead of the device."""
    if session.begin(model):
        for unit in range(microbatches):
            for kind, ns in ((Kind.F, FORWARD), (Kind.B, BACKWARD)):
                began = session.tape.now()
                device.busy += starved  # the stream stands in an NCCL receive
                session.tape.wait(RECEIVE, began)
                row = session.tape.open(kind, 0, unit)
                device.launch(ns)
                session.tape.close(row)
        session.end(lambda: Seat("torch", "2.13.0", "1F1B", microbatches, [0], [0], {}))
    began = session.tape.now()
    device.launch(2 * MS)
    session.add_outside(OPTIMIZER, began)
    if loss_read:
        device.synchronize()  # the user's own loss.item()


def times_of(session):
    """Start, end and wait of the ops of each step on disk, milliseconds; and time in the optimizer."""
    (track,) = read_tracks(session.wish.out)[0]
    steps = [unpacked([each], len(track.parts[each.part].kind))[0] for each in track.steps]
    return [(s.start / MS, s.end / MS, s.waits / MS, raw.optimizer) for s, raw in zip(steps, track.steps, strict=True)]


def test_ops_are_timed_as_the_device_ran_them(session, device):
    model = Model()
    for _ in range(4):
        step(session, device, model, loss_read=True)
    session.close()
    for start, end, _, optimizer in times_of(session):
        # The host took 10 us for each. The first event was passed before the first launch: the stream was empty.
        assert np.allclose(end - start, [5.01, 9, 5, 9], atol=1e-3)
        assert np.allclose(start[1:], end[:-1], atol=1e-3)
        assert optimizer == pytest.approx(2 * MS, abs=1000)


def test_the_clocks_are_tied_to_the_microsecond_where_the_queue_ran_empty(session, device):
    model, launched = Model(), []
    for _ in range(3):
        launched.append((device.host + LAUNCH) / MS)
        step(session, device, model, loss_read=True)
    session.close()
    starts = [start[0] for start, _, _, _ in times_of(session)]
    assert np.allclose(starts, launched[1:], atol=0.02)  # within two launches; the first step connects and is left out


def test_a_wait_is_what_the_stream_stood_still_and_not_what_the_host_did(session, device):
    model = Model()
    for _ in range(3):
        step(session, device, model, starved=3 * MS, loss_read=True)
    session.close()
    for _, _, waits, _ in times_of(session):
        assert np.allclose(waits[RECEIVE], 3, atol=0.02)
        assert not waits[1:].any()


def test_a_step_is_written_when_its_events_are_over_and_nothing_waits_for_that(session, device):
    model = Model()
    for _ in range(3):
        step(session, device, model)  # 30 ms on the device each, 50 us of the host
    assert session.written == 0
    device.host += 60 * MS
    step(session, device, model)
    assert session.written == 1  # the second; the third is still running
    device.synchronize()
    session.close()
    assert session.written == 3
    assert "recorded 3 steps" in session.said[-1]


def test_what_the_device_has_not_done_at_the_end_is_said(session, device, monkeypatch):
    monkeypatch.setattr("debubble.recorder.session._LAST_S", 0.02)
    model = Model()
    for _ in range(3):
        step(session, device, model)
    session.close()
    assert "the device was not done with the last ones when the job ended" in session.said[-1]


def test_events_are_used_again(session, device):
    model = Model()
    for _ in range(200):
        step(session, device, model, loss_read=True)
    session.close()
    a_step = 1 + 4 * 4 + 1 + 2  # begin, four of each op, end, optimizer
    assert session.written == 199
    assert device.made <= 3 * a_step


def test_steps_that_nobody_wants_cost_no_event_for_good(session, device, tmp_path):
    clock = EventClock(device.event, lambda: device.host)
    rare = Session(wish_of(tmp_path / "rare", every=50), [].append, lambda: clock)
    model = Model()
    for _ in range(101):
        step(rare, device, model, loss_read=True)
    rare.close()
    assert rare.written == 2
    assert device.made <= 60


def test_a_step_in_a_captured_graph_is_refused_by_name_and_the_capture_is_left_alone(session, device):
    model = Model()
    step(session, device, model, loss_read=True)
    device.capturing = True
    step(session, device, model)
    device.capturing = False
    device.synchronize()
    for _ in range(3):
        step(session, device, model, loss_read=True)
    session.close()
    assert session.written >= 1
    assert "a CUDA graph was captured in it, where events tell no time" in session.said[-1]


def test_a_graph_that_is_captured_inside_a_step_costs_that_step_alone(session, device):
    model = Model()
    step(session, device, model, loss_read=True)
    session.begin(model)
    for unit in range(2):
        for kind in (Kind.F, Kind.B):
            row = session.tape.open(kind, 0, unit)
            device.capturing = unit == 0
            session.tape.close(row)
    device.capturing = False
    session.end(lambda: Seat("torch", "2.13.0", "1F1B", 2, [0], [0], {}))
    for _ in range(3):
        step(session, device, model, loss_read=True)
    session.close()
    assert session.written == 3
    assert "torch 2.13.0: its events cannot be read" in session.said[-1]


def test_a_clock_that_never_meets_an_empty_queue_is_early_by_the_shortest_wait(device):
    clock = EventClock(device.event, lambda: device.host)
    device.busy = device.host + 4 * MS  # somebody's kernels, and the host never waits
    first = clock.now()
    device.launch(10 * MS)
    clock.cut(clock.now(), "step")
    device.synchronize()
    ((_, moments),) = clock.over()
    true = np.array([1004 * MS, 1014 * MS])
    assert (moments - true).tolist() == pytest.approx([-4 * MS, -4 * MS], abs=1000)
    assert first == 0


def test_pipelines_on_cpus_and_gpus_in_one_process_are_not_mixed(session, device):
    step(session, device, Model())
    assert not session.begin(SimpleNamespaceModel())
    assert "only the first of them is recorded" in session.said[0]


class SimpleNamespaceModel:
    """A stage on the CPU."""

    def parameters(self):
        yield SimpleNamespace(device=SimpleNamespace(type="cpu"))


@pytest.mark.real
def test_events_of_a_real_device_time_its_kernels_without_waiting_for_them():
    """Trap 10, where a GPU is: order, capture and length as torch's own synchronized timing has them."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU is here: CUDA events are tested on a device that is played")
    cycles = 200_000_000  # of the device's clock, about a tenth of a second
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    true = time.monotonic_ns() - began
    clock = event_clock()
    asked = time.monotonic_ns()
    first = clock.now()
    torch.cuda._sleep(cycles)
    clock.cut(clock.now(), "step")
    assert time.monotonic_ns() - asked < true / 2  # nothing has waited
    ((name, moments),) = clock.over(within_s=5)
    assert (name, first) == ("step", 0)
    assert moments[1] - moments[0] == pytest.approx(true, rel=0.1)
    assert moments[0] >= asked - 1_000_000
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert is_capturing()
        torch.ones(1, device="cuda").add_(1)
    assert not is_capturing()
