"""Execution on torch.distributed.pipelining: the only room that imports torch."""
