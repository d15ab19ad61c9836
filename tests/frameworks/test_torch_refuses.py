"""PyTorch's rules as we state them, against PyTorch itself: each class is built on stand-ins, over a grid of sizes."""

from itertools import product
from unittest import mock

import pytest

from debubble.config.config import Config
from debubble.frameworks.torch_pipelining import SCHEDULES, TORCH

torch = pytest.importorskip("torch")
pipelining = pytest.importorskip("torch.distributed.pipelining")


def torch_refuses(name: str, ranks: int, microbatches: int, chunks: int) -> bool:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    found = get_schedule_class(name)
    stages = []
    for chunk in range(chunks):
        stage = mock.create_autospec(pipelining.PipelineStage, instance=True)
        stage.group_rank, stage.group_size, stage.submod = 0, ranks, None
        stage.stage_index, stage.num_stages = chunk * ranks, chunks * ranks
        stage.is_first, stage.is_last = chunk == 0, False
        stages.append(stage)
    try:
        found(stages[0] if issubclass(found, PipelineScheduleSingle) else stages, microbatches)
    except (ValueError, AssertionError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_torch_2_13_refuses_exactly_what_our_rules_refuse(name):
    theirs, stages = SCHEDULES[name]
    chunks = (1,) if stages == 1 else (1, 2, 3)
    for ranks, microbatches, chunk in product((2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12), chunks):
        setup = Config(pipeline=ranks, microbatches=microbatches, chunks=chunk, schedule=theirs)
        refused = torch_refuses(theirs, ranks, microbatches, chunk)
        assert bool(TORCH.broken(setup).faults) == refused, (theirs, ranks, microbatches, chunk)


def test_torch_knows_every_schedule_that_we_say_it_has():
    from torch.distributed.pipelining.schedules import get_schedule_class

    assert all(get_schedule_class(theirs) for theirs, _ in SCHEDULES.values())


@pytest.mark.parametrize("many", range(1, 9))
def test_a_batch_of_8_is_refused_exactly_where_torch_cuts_unequal_micro_batches(many):
    from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks

    cut, _ = split_args_kwargs_into_chunks((torch.zeros(8, 1),), None, many)
    unequal = len({chunk[0].shape[0] for chunk in cut}) > 1 or len(cut) != many
    laws = TORCH.broken(Config(local_batch=8, microbatches=many, schedule="GPipe")).laws
    assert ("equal micro-batches" in laws) == unequal
