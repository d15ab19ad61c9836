"""What ``fit`` found, as the document that ``--json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..diagnosis.fit_memory import MemoryFit
    from ..diagnosis.fit_steps import StepFit
    from ..readers.steplog import StepLog


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say.

    Args:
        ranks: of the pipeline.
        data: data-parallel replicas.
        micro_batch: samples in one micro-batch.
        constant: whether all rows share one batch.
        forecast: settings to forecast, in the unit of the file.
        capacity: bytes of a device.
    """

    ranks: int
    data: int | None
    micro_batch: int | None
    constant: bool
    forecast: tuple[float, ...]
    capacity: int | None

    @property
    def samples(self) -> int | None:
        """Samples that one micro-batch of every replica holds."""
        return self.data * self.micro_batch if self.data and self.micro_batch else None


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Everything that is printed, as text or JSON.

    Args:
        log: what was read.
        asked: what the options say.
        steps: the fit of step times; None where the file has none.
        memory: the fit of peak memory; None where the file has none.
    """

    log: StepLog
    asked: Asked
    steps: StepFit | None
    memory: MemoryFit | None


def document_of(fitted: Fitted) -> dict[str, Any]:
    """What ``fit --json`` prints."""
    document: dict[str, Any] = {"source": fitted.log.source, "ranks": fitted.asked.ranks}
    verdict: list[str] = []
    if fitted.steps is not None:
        from ..diagnosis.fit_steps import sentences

        document |= _steps_document(fitted, fitted.steps)
        verdict += sentences(fitted.steps)
    if fitted.memory is not None:
        document["memory"] = _memory_document(fitted, fitted.memory)
        verdict.append(fitted.memory.verdict)
    if fitted.log.timers:
        document["timers"], said = _timers(fitted)
        verdict += said
    return document | {"verdict": verdict, "remarks": list(fitted.log.remarks)}


def _steps_document(fitted: Fitted, steps: StepFit) -> dict[str, Any]:
    from ..diagnosis.fit_steps import gains

    return {
        "model": steps.model,
        "why": steps.why,
        "slot_ms": steps.slot * 1e3,
        "intercept_ms": steps.intercept * 1e3,
        "bubble_ms": None if steps.bubble is None else steps.bubble * 1e3,
        "fixed_ms": steps.fixed * 1e3,
        "evidence": steps.evidence,
        "rows": _rows(steps),
        "outliers": [
            {
                "row": outlier.row + 1,
                "microbatches": outlier.microbatches,
                "step_ms": outlier.seconds * 1e3,
                "expected_ms": outlier.expected * 1e3,
                "reason": outlier.reason,
            }
            for outlier in steps.outliers
        ],
        "forecast": _forecast(fitted, steps),
        "gains": [
            {"microbatches": m, "bubble_only_ratio": alone, "measured_ratio": measured}
            for m, alone, measured in (gains(steps) if steps.times.constant else [])
        ],
    }


def _rows(steps: StepFit) -> list[dict[str, Any]]:
    """One line a setting: the median of its steps, the line's value, the bubble's share."""
    import numpy as np

    found = []
    for m in np.unique(steps.times.microbatches).tolist():
        mine = steps.times.microbatches == m
        seconds = float(np.median(steps.times.seconds[mine]))
        row = {"microbatches": m, "batch": None if steps.times.batch is None else float(steps.times.batch[mine][0])}
        row |= {"steps": int(mine.sum()), "step_ms": seconds * 1e3, "fitted_ms": steps.seconds(m) * 1e3}
        found.append(
            row | {"residual_ms": row["step_ms"] - row["fitted_ms"], "bubble_share": steps.bubble_share(seconds)}
        )
    return found


def _forecast(fitted: Fitted, steps: StepFit) -> list[dict[str, Any]]:
    """Larger settings foretold from smaller ones beside what was measured, then what was asked for."""
    from ..diagnosis.fit_steps import holdouts

    batched = fitted.asked.samples if steps.times.batch is not None and not steps.times.constant else None
    found: list[dict[str, Any]] = [
        {"microbatches": m, "step_ms": said * 1e3, "measured_ms": was * 1e3, "error_share": said / was - 1}
        for m, said, was in holdouts(steps)
    ]
    for setting in fitted.asked.forecast:
        m = setting / batched if batched else setting
        found.append({"microbatches": m, "step_ms": steps.seconds(m) * 1e3, "measured_ms": None, "error_share": None})
    return [{"batch": row["microbatches"] * batched if batched else None, **row} for row in found]


def _memory_document(fitted: Fitted, memory: MemoryFit) -> dict[str, Any]:
    import numpy as np

    from ..diagnosis.fit_memory import in_flight

    asked = np.array(fitted.asked.forecast, np.float64)
    held = in_flight(asked, fitted.asked.ranks)
    forecast = []
    for m, flying in zip(asked.tolist(), held.tolist(), strict=True):
        peak, most = memory.bytes(flying), fitted.asked.capacity
        fits = None if most is None or peak is None else peak <= most
        forecast.append({"microbatches": m, "in_flight": flying, "peak_bytes": peak, "fits": fits})
    return {
        "in_flight": memory.in_flight.tolist(),
        "base_bytes": memory.base,
        "bytes_per_in_flight": memory.each,
        "grows_beyond_in_flight": memory.grows,
        "forecast": forecast,
    }


def _timers(fitted: Fitted) -> tuple[dict[str, Any], list[str]]:
    """Timers as they stand, and what they bound: they are sums without an order."""
    import numpy as np

    from ..readers.steplog import BACKWARD, FORWARD

    log = fitted.log
    rows = [{"timer": t.name, "least_ms": t.low * 1e3, "most_ms": t.high * 1e3} for t in log.timers]
    found: dict[str, Any] = {"timers": rows, "evidence": "measured, coarse: sums without an order"}
    forward, backward = log.timer(FORWARD), log.timer(BACKWARD)
    if forward is None or backward is None or np.isnan(log.seconds).all():
        return found, []
    step, most = float(np.nanmedian(log.seconds)), forward.high + backward.high
    found["idle_share_at_least"] = max(0.0, 1 - most / step)
    found["imbalance_ratio"] = most / max(forward.low + backward.low, 1e-12)
    return found, [
        f"timers are coarse: even the busiest rank computes {most:.3g} s of a {step:.3g} s step, so at least "
        f"{100 * found['idle_share_at_least']:.0f} % is idle or outside the pipeline"
    ]
