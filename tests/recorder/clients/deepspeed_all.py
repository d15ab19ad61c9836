"""DeepSpeed's pipeline engines in four processes on CPUs: 1F1B with evaluation, and DualPipeV.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 4 deepspeed_all.py
"""

import os
import sys

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch.set_num_threads(1)

import deepspeed  # noqa: E402
from deepspeed.pipe import DualPipeVModule, PipelineModule  # noqa: E402

WIDTH, MICROBATCHES, STEPS = 8, 8, 3


def batches():
    while True:
        x = torch.randn(2, WIDTH)
        yield x, x


def train(kind, evaluate):
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    net = kind(layers=layers, loss_fn=torch.nn.MSELoss(), num_stages=4, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=list(net.parameters()),
        config={
            "train_batch_size": 2 * MICROBATCHES,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": MICROBATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
            "steps_per_print": 1000,
        },
    )
    for _ in range(STEPS):
        engine.train_batch(batches())
        if evaluate:
            engine.eval_batch(batches())


deepspeed.init_distributed("gloo")
if "1f1b" in sys.argv:
    train(PipelineModule, evaluate=True)
if "dualpipe-v" in sys.argv:
    train(DualPipeVModule, evaluate=False)
