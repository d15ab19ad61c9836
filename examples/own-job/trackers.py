"""``on_step`` for the trackers that people have: each function makes one, which gets a dict for every recorded step.

debubble.record("runs/now", on_step=tensorboard("runs/now/events"))
"""

from collections.abc import Callable, Mapping
from typing import Any

FIGURES = ("idle_share", "bubble_ratio", "window_ms", "step_ms", "slowest_ratio", "drift_share")
OnStep = Callable[[Mapping[str, Any]], None]


def tensorboard(folder: str) -> OnStep:
    """Scalars under ``pipeline/``, by the number of the step."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(step: Mapping[str, Any]) -> None:
        for name in FIGURES:
            writer.add_scalar(f"pipeline/{step['phase']}/{name}", step[name], step["step"])
        writer.flush()  # it is called once a step, from a thread of its own

    return log


def wandb(**run: Any) -> OnStep:
    """Charts under ``pipeline/`` in the run that your job has, or in one of its own."""
    import wandb as library

    here = library.run or library.init(**run)
    here.define_metric("pipeline/*", step_metric="pipeline/step")  # beside your own steps, which may be others

    def log(step: Mapping[str, Any]) -> None:
        here.log({f"pipeline/{name}": step[name] for name in ("step", *FIGURES)})

    return log


def opentelemetry(provider: Any = None) -> OnStep:
    """Gauges ``pipeline.*`` with phase and schedule as attributes; by default of the provider that your job set."""
    from opentelemetry import metrics

    meter = metrics.get_meter("debubble", meter_provider=provider)
    gauges = {name: meter.create_gauge(f"pipeline.{name}") for name in FIGURES}

    def log(step: Mapping[str, Any]) -> None:
        said = {"phase": step["phase"], "schedule": step["schedule"], "slowest_rank": step["slowest_rank"]}
        for name, gauge in gauges.items():
            gauge.set(step[name], said)

    return log
