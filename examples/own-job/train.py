"""A training job that knows nothing of debubble: four stages on torch.distributed.pipelining, 1F1B, on CPUs.

    torchrun --nproc-per-node 4 train.py MICROBATCHES
    torchrun --nproc-per-node 4 -m debubble record --out runs/now train.py MICROBATCHES

Each stage sleeps 50 ms in a forward and 100 ms in a backward, in the place of a model that would not fit here.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

FORWARD_S, BACKWARD_S, WIDTH, STEPS = 0.05, 0.1, 64, 5


class Slow(torch.autograd.Function):
    """The identity, at the pace of a large stage."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient.clone()


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Slow.apply(torch.tanh(self.linear(x)))


def main(microbatches):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Stage()
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(2 * microbatches, WIDTH)
    for _ in range(STEPS):
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(**({"target": x, "losses": []} if rank == ranks - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
