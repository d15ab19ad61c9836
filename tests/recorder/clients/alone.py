"""A pipeline of one process, two stages in it: as small as a recorded job can be. What bites is asked for by name."""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B


def main(what: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stages = [PipelineStage(torch.nn.Linear(4, 4), at, 2, torch.device("cpu")) for at in range(2)]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=lambda output, target: (output - target).square().mean())
    x = torch.randn(8, 4)
    step = schedule.step
    if what == "late":  # the job's own line, after it has looked up its step
        import debubble

        debubble.record(sys.argv[2])
    for number in range(4):
        loader = torch.utils.data.DataLoader(x, batch_size=8, num_workers=2 if what == "workers" else 0)
        (batch,) = list(loader)
        if what == "thread":
            thread = threading.Thread(target=step, args=(batch,), kwargs={"target": x, "losses": []})
            thread.start()
            thread.join()
        else:
            step(batch, target=x, losses=[])
        if what == "raise" and number == 2:
            raise KeyError("the job's own error")
        if what == "exit" and number == 2:
            sys.exit(7)
        if what == "_exit" and number == 2:
            os._exit(5)
        if what == "once" and number == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(3)
        if what == "kill" and number == 2:
            os.kill(os.getpid(), 9)
    print("argv", sys.argv[1:], "main", __name__)


if __name__ == "__main__":
    main(sys.argv[1])
