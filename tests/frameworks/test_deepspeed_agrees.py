"""DeepSpeed's rules as we state them, against DeepSpeed 0.19.8: thousands of configurations, both ways."""

import copy
import logging
import random
import warnings
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from agreement import Said, compared, setting, wording
from debubble.frameworks.deepspeed import DEEPSPEED, REMOVED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    config = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.module import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
REFUSALS = (ValueError, AssertionError, RuntimeError, TypeError, NotImplementedError, config.DeepSpeedConfigError)


def base(rng: random.Random) -> Said:
    """A legal launch."""
    t, p, d = rng.choice((1, 1, 2)), rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
    micro, many = rng.choice((1, 2, 3)), rng.choice((1, 2, 4, 8))
    batch = {"global_batch": micro * many * d, "micro_batch": micro, "microbatches": many}
    for name in rng.choice(
        ((), ("global_batch",), ("microbatches",), ("micro_batch",), ("global_batch", "microbatches"))
    ):
        del batch[name]
    return {
        "gpus": t * p * d,
        "tensor": t,
        "pipeline": p,
        "layers": 8,
        "zero": rng.choice((0, 1)),
        "own": {"bf16": rng.choice((True, False)), "partition": rng.choice(("uniform", "type:Layer"))},
        **batch,
    }


def dropping(*names: str):
    def edit(said: Said, rng: random.Random) -> None:
        for name in names:
            if rng.random() < 0.6:
                said.pop(name, None)

    return edit


def leftover(said: Said, rng: random.Random) -> None:
    said["own"] = {**said["own"], rng.choice(REMOVED): True}


def summed(said: Said, rng: random.Random) -> None:
    said |= {"zero": rng.choice((1, 3)), "pipeline": 1, "own": {**said["own"], "gradient_allreduce_op": "sum"}}


def shallow(said: Said, rng: random.Random) -> None:
    said |= {"layers": rng.choice((1, 2, 3)), "pipeline": 4, "tensor": 1, "gpus": 4}


ON = (True, True, False)
EDITS = [
    setting("gpus", 2, 3, 4, 6, 8, 12),
    setting("tensor", 1, 2, 3),
    setting("pipeline", 1, 2, 3, 4, 5),
    setting("layers", 1, 2, 3, 7, 8),
    setting("global_batch", 1, 4, 6, 8, 12, 16, 24),
    setting("micro_batch", 1, 2, 3, 4, 5),
    setting("microbatches", 1, 2, 3, 5, 8),
    setting("zero", 0, 1, 2, 3, 4),
    dropping("global_batch", "micro_batch"),
    dropping("microbatches", "micro_batch"),
    wording(bf16=ON, fp16=ON),
    wording(fp16=(False,), bf16=(True,), bf16_master_weights_and_grads=ON, bf16_optimizer_states=ON),
    wording(bf16=(False,), fp16=(True,), fp16_master_weights_and_grads=ON),
    wording(offload_ratio=(0.5, 1.0)),
    wording(compute_grad_norm=ON),
    wording(gradient_allreduce_op=("sum", "mean")),
    wording(partition=("uniform", "parameters", "type:Layer", "profile", "balanced")),
    *[leftover] * 5,
    summed,
    shallow,
]
# One of the parts that were removed stands for all in the count: each is checked by the same line.
LAWS = [
    *("devices", "batch", "a layer a stage", "a batch", "accumulation", "zero", "zero stage", "one precision"),
    *("fp16_master_weights_and_grads whole", "bf16_master_weights_and_grads whole", "bf16_optimizer_states whole"),
    *("states without weights", "part of the optimizer", "norm of gradients", "sums of gradients", "method"),
    *(f"{name} is gone" for name in REMOVED),
]


def document(said: Said) -> dict:
    """The JSON that says it."""
    own = said["own"]
    names = {"global_batch": "train_batch_size", "micro_batch": "train_micro_batch_size_per_gpu"}
    names |= {"microbatches": "gradient_accumulation_steps"}
    found = {key: said[name] for name, key in names.items() if name in said}
    found["zero_optimization"] = {"stage": said["zero"]}
    if "offload_ratio" in own:
        found["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "ratio": own["offload_ratio"]}
    if "compute_grad_norm" in own:
        found["zero_optimization"]["compute_grad_norm"] = own["compute_grad_norm"]
    for name in ("fp16", "bf16"):
        found[name] = {"enabled": own.get(name, False)}
        inner = ("fp16_master_weights_and_grads",) if name == "fp16" else ()
        inner += ("bf16_master_weights_and_grads", "bf16_optimizer_states") if name == "bf16" else ()
        found[name] |= {key: own[key] for key in inner if key in own}
    if "gradient_allreduce_op" in own:
        found["gradient_allreduce_op"] = own["gradient_allreduce_op"]
    for name in REMOVED:
        if own.get(name) and name.startswith(("mics", "zeropp")):
            found["zero_optimization"][name] = own[name]
        elif own.get(name):
            found[name] = {"enabled": True}
    return found


def refuses(said: Said) -> str:
    """What DeepSpeed says: of the grid of processes, of its JSON, of its pipeline module and engine."""
    try:
        _launched(said)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def _launched(said: Said) -> None:
    t, p, gpus = said["tensor"], said["pipeline"], said["gpus"]
    if gpus % (t * p):
        raise RuntimeError("the topology is not the world")  # PipelineParallelGrid._is_grid_valid
    topology = PipeModelDataParallelTopology(num_pp=p, num_mp=t, num_dp=gpus // (t * p))
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: topology.get_dim("data"))
    with mock.patch.object(config.dist, "get_rank", return_value=0):
        read = config.DeepSpeedConfig(copy.deepcopy(document(said)), mpu=mpu)
    if p == 1:
        return
    _partitioned(said, p)
    engine = PipelineEngine.__new__(PipelineEngine)
    with (
        mock.patch.object(PipelineEngine.__bases__[0], "__init__", return_value=None),
        mock.patch.object(PipelineEngine, "zero_optimization_stage", return_value=read.zero_config.stage),
    ):
        object.__setattr__(engine, "module", _module(said, p))
        try:
            engine.__init__()
        except AttributeError:  # past its first checks it wants processes
            return


def _module(said: Said, stages: int) -> PipelineModule:
    module = PipelineModule.__new__(PipelineModule)
    module.__dict__ |= {"num_stages": stages, "global_rank": 1, "_layer_specs": [None] * (said["layers"] + 2)}
    return module


def _partitioned(said: Said, stages: int) -> None:
    """Layers between an embedding and a head, dealt by the method."""
    module = _module(said, stages)
    layers = said["layers"]
    module.__dict__ |= {
        "_topo": SimpleNamespace(get_coord=lambda _: SimpleNamespace(pipe=0)),
        "_count_layer_params": lambda: [5, *[10] * layers, 5],
        "_find_layer_type": lambda _: range(1, layers + 1),
        "_set_bounds": lambda **_: None,
    }
    PipelineModule._partition_layers(module, said["own"]["partition"])
    for first, behind in pairwise(module.parts):
        torch.optim.SGD([torch.zeros(1) for _ in range(first, behind)])


def ASKED():
    return DEEPSPEED, base, EDITS, refuses, LAWS


def test_two_thousand_configurations_are_judged_as_deepspeed_0_19_judges_them():
    tally = compared(*ASKED())
    assert tally.legal_share >= 0.40, tally.legal_share
    rare = {law: tally.fired[law] for law in LAWS if tally.fired[law] < 20}
    assert not rare, (tally.draws, rare)
    assert not tally.disagreements, f"{len(tally.disagreements)} of {tally.draws}\n{tally.told()}"
