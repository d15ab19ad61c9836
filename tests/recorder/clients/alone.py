"""A pipeline of one process, two stages in it: as small as a recorded job can be. What bites is asked for by name."""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleDualPipeV, ScheduleInterleaved1F1B, schedules


def plain(function):
    """A function without whatever was put around it."""
    return getattr(function, "__wrapped__", function)


def own_functions(schedule, stages):
    """Register functions for F and B that no stage has, as GraphPP does: here those that torch would call, unhooked."""
    kind = type(stages[0])

    def forward(action, context):
        stage, unit = stages[action.stage_index], action.microbatch_index
        given = context.arg_mbs[unit] if stage.is_first else ()
        output = plain(kind.forward_one_chunk)(stage, unit, given, {})
        plain(type(schedule)._maybe_compute_loss)(schedule, stage, output, context.target_mbs, unit)
        if not stage.is_last:
            stages[action.stage_index + 1].set_local_fwd_input(output, unit)

    def backward(action, context):
        stage, unit = stages[action.stage_index], action.microbatch_index
        loss = schedule._maybe_get_loss(stage, unit)
        plain(kind.backward_one_chunk)(stage, unit, loss=loss, last_backward=False)
        if not stage.is_first:
            stages[action.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(unit), unit)

    def both(action, context):
        for each, run in zip(action.sub_actions, (forward, backward), strict=True):
            run(each, context)

    schedule.register_custom_function(schedules.FORWARD, forward)
    schedule.register_custom_function(schedules.FULL_BACKWARD, backward)
    schedule.register_custom_function(schedules.OVERLAP_F_B, both)


def main(what: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stages = [PipelineStage(torch.nn.Linear(4, 4), at, 2, torch.device("cpu")) for at in range(2)]
    made = ScheduleDualPipeV if what == "overlap" else ScheduleInterleaved1F1B
    schedule = made(stages, 4, loss_fn=lambda output, target: (output - target).square().mean())
    if what in ("graph", "overlap"):
        own_functions(schedule, stages)
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
