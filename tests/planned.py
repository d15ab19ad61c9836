"""What most tests of ``plan`` ask: a model on devices, with a batch and degrees that leave some choice."""

MODEL = ("--model", "llama3-8b", "--gpu", "h100", "--global-batch", 32, "--sequence", 8192)
MODEL += ("--tensor", "1,2", "--micro-batch", 1)
