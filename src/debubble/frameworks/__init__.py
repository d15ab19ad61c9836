"""Frameworks: what Megatron-LM, torchtitan, PyTorch, DeepSpeed, NeMo and nanotron accept, read and write."""
