"""What FSDP keeps whole in a pipeline, as we plan it for torchtitan, asked of PyTorch itself."""

import pytest

from debubble.frameworks.torchtitan import zeros

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of gloo and of devices that are not here


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    if dist.is_initialized():
        pytest.skip("another test has a process group")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shared_out(layer) -> tuple[set[bool], set[bool]]:
    """Whether weights are shares of a tensor, and whether their gradients are."""
    from torch.distributed.tensor import DTensor

    weights = list(layer.parameters())
    return {isinstance(one, DTensor) for one in weights}, {isinstance(one.grad, DTensor) for one in weights}


@pytest.mark.parametrize("reshard", [False, True])
def test_torch_2_13_keeps_weights_and_gradients_whole_until_the_last_micro_batch(mesh, monkeypatch, reshard):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layer, seen = torch.nn.Linear(4, 4), []
    fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    stage = PipelineStage(layer, 0, 1, torch.device("cpu"))
    reduced = stage.perform_reduce_grad
    monkeypatch.setattr(stage, "perform_reduce_grad", lambda scale: (seen.append(shared_out(layer)), reduced(scale)))
    schedule = Schedule1F1B(stage, 3, loss_fn=lambda out, target: (out - target).pow(2).mean())
    schedule.step(torch.ones(3, 4), target=torch.zeros(3, 4))
    assert seen == [({False}, {False})]
    assert shared_out(layer) == ({True}, {True})
    assert zeros(2) == (1,)
