"""What ``diagnose --json`` prints: everything about a run, under keys that scripts may rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .report import MILLISECOND, per_rank

if TYPE_CHECKING:
    from ..core.observation import Link
    from ..diagnosis.diagnose import Diagnosis
    from ..diagnosis.evidence.replicas import Replica


def document(d: Diagnosis) -> dict[str, Any]:
    """Everything about a run, as ``--json`` prints it."""
    from ..core.memory import peak_activations

    summary, schedule = d.summary, d.summary.window.timeline.program.schedule
    return {
        "source": d.run.source,
        "steps": summary.steps,
        "replicas": summary.replicas,
        "ranks": schedule.ranks,
        "chunks": schedule.stages // schedule.ranks,
        "microbatches": schedule.microbatches,
        "schedule": str(d.order),
        "nearest": d.order.nearest,
        "departure": d.order.departure or None,
        "paced": d.run.paced,
        **_windows(d),
        "per_rank": per_rank(summary.account, peak_activations(schedule)),
        "worst": _worst(d),
        "heat": [_replica(each) for each in d.replicas],
        "causes": _causes(d),
        "resim_ratio": d.causes.resim_ratio,
        "resim_without_transfer_ratio": d.causes.resim_without_transfer_ratio,
        "matched_share": d.run.matched_share if d.run.links or d.run.matched_share < 1 else None,
        "torn_ranks": d.run.torn,
        "transfers": [_link(each) for each in d.run.links],
        "receive_waiting_share": _waiting_share(d.run.links),
        "clock_uncertainty_ms": d.run.clock_uncertainty_ns / MILLISECOND,
        "findings": _findings(d),
        "what_if": _what_if(d),
        "verdict": d.verdict,
        "remarks": d.remarks,
    }


def _windows(d: Diagnosis) -> dict[str, Any]:
    """The numbers over all windows: means of shares, medians of lengths, least and most beside them."""
    summary = d.summary
    lengths = [each.window for each in summary.accounts]
    return {
        "makespan_ms": summary.makespan_ns / MILLISECOND,
        "makespan_min_ms": min(lengths) / MILLISECOND,
        "makespan_max_ms": max(lengths) / MILLISECOND,
        "predicted_ms": _ms(d.run.predicted_ns),
        "step_ms": _ms(summary.step_ns),
        "outside_ms": _ms(summary.outside_ns),
        "idle_share": summary.idle_share,
        "idle_share_min": min(summary.idle_shares),
        "idle_share_max": max(summary.idle_shares),
        "pooled_idle_share": summary.pooled_idle_share,
        "bubble_ratio": summary.bubble_ratio,
        "evidence": summary.account.evidence,
        "windows": len(lengths),
        "left_out_steps": summary.left_out,
    }


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / MILLISECOND


def _causes(d: Diagnosis) -> list[dict[str, Any]]:
    from ..diagnosis.diagnose import REMEDIES

    window = d.causes.window
    return [
        {
            "cause": name,
            "cost_ms": cost / MILLISECOND,
            "cost_share": cost / window if window else 0.0,
            "evidence": "measured" if name in ("ideal", "unexplained") else "simulated",
            "claimed": abs(cost) > d.run.clock_uncertainty_ns,
            "remedy": REMEDIES.get(name, ""),
        }
        for name, cost in d.causes
    ]


def _findings(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "finding": each.sentence,
            "cause": each.cause,
            "cost_ms": each.cost_ns / MILLISECOND,
            "evidence": each.evidence,
            "remedy": each.remedy,
            "gain_ratio": each.gain_ratio,
            "spans": [
                {"rank": s.rank, "op": s.op, "start_ms": s.start / MILLISECOND, "end_ms": s.end / MILLISECOND}
                for s in each.spans
            ],
        }
        for each in d.findings
    ]


def _what_if(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "change": each.change,
            "step_ms": each.step_ns / MILLISECOND,
            "makespan_ms": each.makespan_ns / MILLISECOND,
            "speedup": each.speedup,
            "microbatches": each.microbatches,
            "idle_share": each.idle_share,
            "peak_activations": each.peak_activations,
            "activations_ratio": each.activations_ratio,
            "assumes": each.assumes,
            "demands": each.demands,
            "bound": each.bound,
            "evidence": each.evidence,
        }
        for each in d.what_ifs
    ]


def _worst(d: Diagnosis) -> dict[str, Any]:
    """The median window of the slowest replica."""
    from ..core.memory import peak_activations

    window, account = d.summary.windows[d.worst], d.summary.accounts[d.worst]
    return {
        "replica": window.replica,
        "step": window.step,
        "makespan_ms": account.window / MILLISECOND,
        "idle_share": account.idle_share,
        "per_rank": per_rank(account, peak_activations(window.timeline.program.schedule)),
    }


def _replica(each: Replica) -> dict[str, Any]:
    """One line of the table of replicas by stages."""
    return {
        "replica": each.number,
        "windows": each.windows,
        "makespan_ms": each.makespan_ns / MILLISECOND,
        "idle_share": each.idle_share,
        "stage_ms": (each.stage_ns / MILLISECOND).tolist(),
    }


def _link(each: Link) -> dict[str, Any]:
    """Receives of one rank from another: what was waiting, and the most that can have been transfer."""
    whole = each.waiting_ns + each.transfer_ns
    return {
        "sender": each.sender,
        "receiver": each.receiver,
        "receives": each.receives,
        "waiting_ms": each.waiting_ns / MILLISECOND,
        "transfer_ms": each.transfer_ns / MILLISECOND,
        "usual_transfer_ms": each.usual_ns / MILLISECOND,
        "waiting_share": each.waiting_ns / whole if whole else 0.0,
    }


def _waiting_share(links: Sequence[Link]) -> float | None:
    """Of all receives together; None where no receive was measured."""
    waiting = sum(each.waiting_ns for each in links)
    whole = waiting + sum(each.transfer_ns for each in links)
    return waiting / whole if whole else None
