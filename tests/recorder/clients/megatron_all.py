"""Megatron-Core's own schedules in four processes on CPUs: 1F1B, interleaved, with overlap, tensor and data groups.

    torchrun --nproc-per-node 4 megatron_all.py

The step is looked up once at the beginning, as training scripts do; evaluation runs between steps.
"""

import itertools
import sys

import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.cuda.current_device = lambda: torch.device("cpu")  # the engine's only wishes of a device
torch.cuda.synchronize = lambda *_, **__: None
_zeros = torch.zeros
torch.zeros = lambda *a, **k: _zeros(*a, **{key: "cpu" if str(v) == "cuda" else v for key, v in k.items()})

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel import schedules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

WIDTH, SEQUENCE, BATCH, STEPS = 8, 4, 1, 3


class Stage(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model_type, self.config, self.input = ModelType.encoder_or_decoder, config, None
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def set_input_tensor(self, tensor):
        self.input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, x):
        return torch.tanh(self.linear(x if self.input is None else self.input))


def forward_step(iterator, model):
    output = model(torch.randn(SEQUENCE, BATCH, WIDTH))

    def loss(out):
        mean = out.mean()
        return mean, {"loss": mean.detach()}

    return output, loss


def train(pipeline, chunks, microbatches, overlap=False, tensor=1, deallocate=False, evaluate=False):
    virtual = chunks if chunks > 1 else None
    parallel_state.initialize_model_parallel(tensor, pipeline, virtual_pipeline_model_parallel_size=virtual)
    config = TransformerConfig(
        num_layers=pipeline * chunks,
        hidden_size=WIDTH,
        num_attention_heads=4,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=not overlap,
        overlap_p2p_comm=overlap,
        use_cpu_initialization=True,
        deallocate_pipeline_outputs=deallocate,
    )
    models = [Stage(config) for _ in range(chunks)]
    step = schedules.get_forward_backward_func()
    for forward_only in [False] * STEPS + [True, True, False] * evaluate:
        iterators = [itertools.repeat(None) for _ in models]
        step(
            forward_step_func=forward_step,
            data_iterator=iterators if chunks > 1 else iterators[0],
            model=models if chunks > 1 else models[0],
            num_microbatches=microbatches,
            seq_length=SEQUENCE,
            micro_batch_size=BATCH,
            forward_only=forward_only,
        )
    parallel_state.destroy_model_parallel()


def main(what):
    dist.init_process_group("gloo")
    if what == "orders":
        train(4, 1, 8, deallocate=True, evaluate=True)
        train(4, 2, 8)
        train(4, 2, 8, overlap=True)
    elif what == "tensor":
        train(2, 1, 4, tensor=2)
    elif what == "data":
        train(2, 1, 4)
    elif what == "late":  # the engine is imported and looked up already when the recorder comes
        captured = schedules.forward_backward_pipelining_without_interleaving
        import debubble

        debubble.record(sys.argv[2])
        schedules.get_forward_backward_func = lambda: captured
        train(4, 1, 8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
