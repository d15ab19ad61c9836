"""A training loop of our own, one process a rank, with our names in its profile: ``annotated_loop.py RANK FOLDER``.

GPipe by hand: two stages, four micro-batches, two steps, plain send and receive.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from debubble import annotate

RANKS, MICROBATCHES, WIDTH = 2, 4, 512


def train(rank: int, folder: Path) -> None:
    torch.manual_seed(rank)
    stage = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    last = rank == RANKS - 1

    @annotate("F", stage=rank, of=MICROBATCHES)
    def forward(x):
        out = stage(x)
        return out.square().mean() if last else out

    def step():
        inputs, outputs = [], []
        for _ in range(MICROBATCHES):
            x = torch.randn(WIDTH, WIDTH)
            if rank:
                dist.recv(x, rank - 1)
                x.requires_grad_()
            inputs.append(x)
            outputs.append(forward(x))
            if not last:
                dist.send(outputs[-1].detach(), rank + 1)
        for i in range(MICROBATCHES):
            gradient = None
            if not last:
                gradient = torch.empty(WIDTH, WIDTH)
                dist.recv(gradient, rank + 1)
            with annotate("B", stage=rank, microbatch=i):
                outputs[i].backward(gradient)
            if rank:
                dist.send(inputs[i].grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()

    step()
    steps = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)

    def export(profile):
        profile.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))

    with torch.profiler.profile(schedule=steps, on_trace_ready=export) as profile:
        for _ in range(3):
            step()
            profile.step()


if __name__ == "__main__":
    number, place = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place / 'store'}", rank=number, world_size=RANKS)
    train(number, place)
    dist.destroy_process_group()
