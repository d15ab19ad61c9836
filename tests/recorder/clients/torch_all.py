"""Every schedule class of torch.distributed.pipelining in four processes, one after the other; orders as torch says.

    torchrun --nproc-per-node 4 torch_all.py ORDERS.json

Between steps it evaluates, changes its number of micro-batches, and starts workers that load data.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

WIDTH, STEPS = 8, 3
SINGLE = ("1F1B", "GPipe")
LOOP = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
VEE = ("ZBVZeroBubble", "DualPipeV")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def error(output, target):
    return (output - target).square().mean()


def made(name, microbatches, stages=None):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kind = get_schedule_class(name)
    if issubclass(kind, PipelineScheduleSingle):
        stages = stages or [PipelineStage(Layer(), rank, ranks, torch.device("cpu"))]
        return kind(stages[0], microbatches, loss_fn=error), stages
    own = [rank, 2 * ranks - 1 - rank] if name in VEE else [rank, rank + ranks]
    stages = stages or [PipelineStage(Layer(), at, 2 * ranks, torch.device("cpu")) for at in own]
    return kind(stages, microbatches, loss_fn=error), stages


def stepped(name, schedule, microbatches, run="step"):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randn(2 * microbatches, WIDTH)
    last = 0 if name in VEE else ranks - 1
    given = {"target": x, "losses": []} if rank == last else {}
    getattr(schedule, run)(*([x] if rank == 0 else []), **given)


def orders(schedule):
    """What torch says each rank runs: F, I, W, B as letters."""
    found = {}
    for rank, row in schedule.pipeline_order.items():
        flat = []
        for action in row:
            flat += (action.sub_actions or (action,)) if action is not None else ()
        found[rank] = [[str(a.computation_type), a.stage_index, a.microbatch_index] for a in flat]
    return found


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    told = {}
    for name in (*SINGLE, *LOOP, *VEE):
        schedule, _ = made(name, 8)
        told[name] = orders(schedule)
        for _ in range(STEPS):
            stepped(name, schedule, 8)
    # One model: training, evaluation between steps, then a larger number of micro-batches, as a growing batch has.
    schedule, stages = made("1F1B", 4)
    for _ in range(STEPS):
        stepped("1F1B", schedule, 4)
        stepped("1F1B", schedule, 4, "eval")
    grown, _ = made("1F1B", 6, stages)
    for _ in range(STEPS):
        stepped("1F1B", grown, 6)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(told, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
