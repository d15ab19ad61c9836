"""What follows the backwards of a step: gradients of shared parameters are summed, then the optimizer takes its step.

A parameter that several stages hold (the embedding of a language model that is its head as well) is a copy on each of
their ranks, and each copy has the gradient of its own stages alone. Their sum is that of the one parameter:

    rank 0   embedding    dL/dE from the lookup  --+
    rank 3   head         dL/dE from the logits  --+-->  the sum, on both; so both copies stay equal

as in Megatron-LM (finalize_model_grads.py, _allreduce_word_embedding_grads).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from .task import Task

RATE = {"sgd": 0.1, "adamw": 1e-3}  # the second is torch's own default; both sides of a check use the same


def optimizer_of(task: Task, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimizer that a task asks for, over what can be trained; None where there is nothing."""
    trained = list({id(p): p for p in parameters if p.requires_grad}.values())
    if not trained:
        return None
    rate = RATE[task.optimizer] if task.learning_rate is None else task.learning_rate
    if task.optimizer == "adamw":
        return torch.optim.AdamW(trained, rate, weight_decay=task.weight_decay)
    return torch.optim.SGD(trained, rate, weight_decay=task.weight_decay)


class SharedParameters:
    """The parameters that stages on several ranks share, with a group of processes for each set of ranks.

    Args:
        stages: all stages of the model, as built in this process.
        homes: rank of each stage.
        replicas: of the pipeline; all processes must make their groups together.
        me: replica and rank of this process.
        timeout_s: how long a rank waits for another.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        homes: list[int],
        replicas: int,
        *,
        me: tuple[int, int],
        timeout_s: float,
    ) -> None:
        holders: dict[int, list[int]] = {}
        by_id: dict[int, nn.Parameter] = {}
        for at, stage in enumerate(stages):
            for parameter in stage.parameters():
                by_id[id(parameter)] = parameter
                holders.setdefault(id(parameter), []).append(homes[at])
        sets = {key: tuple(sorted(set(ranks))) for key, ranks in holders.items()}
        width = max(homes) + 1
        self._shared: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for ranks in dict.fromkeys(ranks for ranks in sets.values() if len(ranks) > 1):
            for replica in range(replicas):  # every process makes every group, its own or not
                members = [replica * width + rank for rank in ranks]
                group = dist.new_group(members, timeout=timedelta(seconds=timeout_s))
                if replica == me[0] and me[1] in ranks:
                    groups[ranks] = group
        for key, ranks in sets.items():
            group = groups.get(ranks)
            if group is not None and by_id[key].requires_grad:
                self._shared.append((by_id[key], group))

    def sum_gradients(self) -> None:
        """Give each copy the gradient of all uses; a copy that was not used counts as zero."""
        for parameter, group in self._shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
