"""Adapters against engines that are played: what only GPUs run, other versions, errors of our own."""

from types import ModuleType, SimpleNamespace

import pytest

from debubble.core.schedule import Kind
from debubble.recorder import deepspeed, megatron
from debubble.recorder.hooks import Mismatch, Patches, around, demand
from debubble.recorder.session import Session
from debubble.recorder.wishes import wish_of


@pytest.fixture
def session(tmp_path):
    said: list[str] = []
    made = Session(wish_of(tmp_path / "run"), said.append)
    made.said = said
    return made


class Model:
    """Two stages of a pipeline of one rank."""

    config = SimpleNamespace(overlap_p2p_comm=False, overlap_moe_expert_parallel_comm=True)


@pytest.fixture
def played(monkeypatch):
    """A Megatron-Core that runs F0, F1 & B0 in one slot, B1, with stand-ins for what needs GPUs."""
    combined = ModuleType("played.combined_1f1b")
    messages = ModuleType("played.p2p_communication")
    schedules = ModuleType("played.schedules")
    schedules.__package__ = "played"

    class P2PCommunicator:
        def _communicate(self, *, tensor_send_next, tensor_send_prev, recv_prev, recv_next, wait_on_reqs=True):
            return None, None, None

    def combined_forward_backward_step(
        forward_step_func, data_iterator, f_model, num_microbatches, input_tensor, forward_data_store, b_model,
        b_input_tensor, b_output_tensor, b_output_tensor_grad, config, f_model_chunk_id=None, current_microbatch=None,
    ):  # fmt: skip
        return ([object()] if f_model else None), None, ([object()] if b_model else None)

    def forward_step(
        func, data, model, num_microbatches, tensor, store, config, current_microbatch=None, vp_stage=None
    ):
        raise AssertionError("the combined schedule calls it not")

    def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
        raise AssertionError("nor this")

    def step(*, model, num_microbatches, forward_only=False):
        call, outputs = combined.combined_forward_backward_step, []
        for f, b in ((0, None), (1, 0), (None, 1)):
            made, _, _ = call(
                None, None, model if f is not None else None, 2, None, [], model if b is not None else None,
                None, outputs[b] if b is not None else None, None, model.config, f_model_chunk_id=0,
                current_microbatch=f,
            )  # fmt: skip
            outputs.append(made)

    combined.combined_forward_backward_step = combined_forward_backward_step
    messages.P2PCommunicator = P2PCommunicator
    schedules.forward_step, schedules.backward_step = forward_step, backward_step
    for name in megatron._STEPS:
        setattr(schedules, name, step)
    state = SimpleNamespace(
        get_pipeline_model_parallel_world_size=lambda: 1,
        get_pipeline_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_group=lambda: None,
    )
    dist = SimpleNamespace(
        get_process_group_ranks=lambda group: [0], is_available=lambda: True, is_initialized=lambda: False
    )
    monkeypatch.setitem(__import__("sys").modules, "played.combined_1f1b", combined)
    monkeypatch.setitem(__import__("sys").modules, "played.p2p_communication", messages)
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", state)
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", dist)
    return schedules


def test_the_combined_1f1b_of_expert_parallelism_is_joined_slots(session, played):
    patches, taken = Patches(), []
    session.take = lambda seat, measured, number, outside: taken.append((seat, measured))
    megatron.install(session, played, patches)
    for _ in range(3):
        played.forward_backward_pipelining_with_interleaving(model=Model(), num_microbatches=2)
    assert taken == []  # each model is a pipeline of its own, whose first step is left out
    model = Model()
    for _ in range(3):
        played.forward_backward_pipelining_with_interleaving(model=model, num_microbatches=2)
    assert len(taken) == 2
    seat, measured = taken[0]
    assert measured.kind.tolist() == [Kind.F, Kind.F, Kind.B, Kind.B]
    assert measured.unit.tolist() == [0, 1, 0, 1]
    assert measured.joined.tolist() == [False, False, True, False]
    assert measured.times.start[1] == measured.times.start[2]
    assert measured.times.end[1] == measured.times.end[2]
    assert measured.missing([0], 2) == ""
    assert seat.switches["overlap_moe_expert_parallel_comm"] is True
    patches.undo()
    assert not hasattr(played.forward_step, "__wrapped__")


def test_a_step_whose_ops_are_in_a_cuda_graph_is_refused_by_name(session, played):
    megatron.install(session, played, Patches())
    model = Model()
    model.config = SimpleNamespace(cuda_graph_impl="full_iteration")
    played.forward_backward_pipelining_with_interleaving.__wrapped__.__kwdefaults__ = {"forward_only": False}
    session.begin(model, "first")
    session.end(lambda: None)
    for _ in range(2):
        session.begin(model, "first")
        step = {"chunks": 1, "microbatches": 2, "config": model.config, "group": None}
        session.end(lambda step=step: megatron._seat(step, "9.9"))
    session.close()
    (line,) = session.said
    assert "no step was recorded: 2 not written, megatron 9.9: 0 of 2 forwards were seen" in line
    assert "CUDA graphs of full iterations run no op by itself" in line


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("forward_step", "schedules has no forward_step"),
        ("backward_step", "schedules has no backward_step"),
        ("forward_backward_pipelining_with_interleaving", "has no forward_backward_pipelining_with_interleaving"),
    ],
)
def test_an_engine_that_is_built_otherwise_is_left_alone_and_named(session, played, lost, said):
    before = dict(vars(played))
    delattr(played, lost)
    with pytest.raises(Mismatch, match=said):
        megatron.install(session, played, Patches())
    assert {name: value for name, value in before.items() if name != lost} == dict(vars(played))


def test_a_function_that_takes_other_arguments_is_a_mismatch():
    with pytest.raises(Mismatch, match="takes no micro"):
        demand(SimpleNamespace(__name__="engine", step=lambda model: None), "step", "model", "micro")


def test_instructions_that_are_not_there_are_named(session):
    engine = type("PipelineEngine", (), {"_INSTRUCTION_MAP": {type("ForwardPass", (), {}): len}})
    engine._exec_schedule = lambda self, pipe_schedule: None
    with pytest.raises(Mismatch, match="PipelineEngine has no instruction BackwardPass"):
        deepspeed.install(session, SimpleNamespace(__package__="played", PipelineEngine=engine), Patches())


def test_an_error_of_ours_never_reaches_the_job_and_ends_the_recording_in_one_line(session):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    session.engines["megatron"] = "0.16.1"
    before = around(lambda x: x + 1, broken, broken, session.failed)
    after = around(lambda x: x + 1, lambda x: x, broken, session.failed)
    assert (before(1), after(1), before(2)) == (2, 2, 3)
    assert not session.on
    assert session.said == ["debubble: recording ends here (megatron 0.16.1): ZeroDivisionError: ours\n"]


def test_the_jobs_own_error_passes_through_a_hook_as_it_is(session):
    def raising():
        raise KeyError("the job's")

    with pytest.raises(KeyError, match="the job's") as caught:
        around(raising, lambda: 1, lambda token, result: None, session.failed)()
    assert caught.traceback[-1].name == "raising"
    assert session.on
