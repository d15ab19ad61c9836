"""From the ops of single devices to a pipeline: who talks to whom, positions, clocks, steps, windows."""
