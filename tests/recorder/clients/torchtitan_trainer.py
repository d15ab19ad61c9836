"""torchtitan's own trainer on CPU ranks: SCHEDULE FOLDER. What a CPU lacks is put in its place before it is imported.

* the device is the CPU, and FlexAttention, which wants a GPU's compiler, is torch's scaled dot product;
* ``schedule.step`` takes the names of a newer torch, whose micro-batches are cut already;
* tokenizer and text are made on the spot: a token for each letter, and nothing is downloaded.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from torch.distributed.pipelining import schedules  # noqa: E402


def cut_already(owner: type) -> None:
    """Let ``step`` take micro-batches; the whole of what it does besides is its own."""
    step, split = owner.step, owner._split_inputs

    def stepped(self, *args, arg_mbs=None, kwarg_mbs=None, target_mbs=None, **given):
        if kwarg_mbs is None:
            return step(self, *args, **given)
        count = self._n_microbatches
        self._split_inputs = lambda *_: (arg_mbs or [()] * count, kwarg_mbs)
        if target_mbs is not None:
            given["target"] = torch.cat(target_mbs)
        try:
            return step(self, **given)
        finally:
            self._split_inputs = split.__get__(self)

    owner.step = stepped


for owner in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
    cut_already(owner)

from torchtitan.components import metrics  # noqa: E402
from torchtitan.distributed import utils  # noqa: E402
from torchtitan.models.common import attention  # noqa: E402


def plain(q, k, v, *, enable_gqa, **_):
    """Causal attention, for which no kernel has to be compiled."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa), None


class NoMemory:
    """A device whose memory nobody counts."""

    device_name, device_capacity = "cpu", 1

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        return None


metrics.build_device_memory_monitor = NoMemory
utils.set_pg_timeouts = lambda **_: None  # it asks groups for what those of gloo do not have
attention.FlexAttention.compiled_flex_attn = staticmethod(plain)

from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.observability import structured_logger  # noqa: E402
from torchtitan.tools.logging import init_logger  # noqa: E402


def assets(folder: Path) -> None:
    """A tokenizer with a token a byte, and a text."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = {chr(code): code for code in range(32, 127)} | {"<|begin_of_text|>": 0, "<|end_of_text|>": 1}
    made = Tokenizer(models.WordLevel(letters, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.save(str(folder / "tokenizer.json"))
    words = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    text = folder / "text"
    text.mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"line {number} of a text that nobody reads " * 20}) for number in range(200)]
    (text / "lines.json").write_text("\n".join(lines))


def main() -> None:
    """Train some steps."""
    schedule, folder = sys.argv[1], Path(sys.argv[2])
    mine = folder / f"rank{os.environ['RANK']}"
    assets(mine)
    init_logger()
    structured_logger.init_structured_logger(source="training", output_dir=str(folder / "log"))
    config = llama3_debugmodel()
    config.hf_assets_path = str(mine)
    config.dump_folder = str(mine / "out")
    config.dataloader.dataset_path = str(mine / "text")
    config.training.steps, config.training.seq_len, config.training.local_batch_size = 4, 64, 8
    config.training.disable_cuda_graphs = True
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.pipeline_parallel_schedule = schedule
    config.parallelism.pipeline_parallel_microbatch_size = 1
    config.checkpoint.enable = False
    config.validator.enable = False
    trainer = config.build()
    trainer.train()
    trainer.close()


if __name__ == "__main__":
    main()
