"""Laid out: the layout that a framework's setup means, with one set of assumptions about what it does not say."""

from __future__ import annotations

from dataclasses import replace

from ..config.layout import Layout
from .setup import Backend, Setup


def laid_out(backend: Backend, setup: Setup, base: Layout | None = None) -> Layout:
    """The layout of a setup.

    Of what it does not say:

    * tensor, pipeline, data, context, expert degree, chunks and micro-batch are 1;
    * the devices that share an expert are the tensor group, or one where the framework says so;
    * there are as many micro-batches as ranks, the fewest that fill the pipe;
    * nothing is recomputed, and the schedule is 1F1B;
    * layers fall to stages as the framework splits them, else as evenly as can be;
    * a switch that the framework has is off, as it is by default there: sequence parallelism, the distributed
      optimizer (ZeRO-1), overlaps;
    * the rest, and the sequence, is that of ``base``.

    Args:
        backend: whose setup.
        setup: as read, or settled.
        base: what frameworks do not say; None for the defaults of ``Layout``.
    """
    base, full = base or Layout(), backend.settled(setup)
    switched = {name: flag in full.switches for name, flag in backend.switches.items()}
    shared = switched.pop("zero", base.zero)
    zero = shared if full.zero is None else full.zero
    own = dict(backend.habits) | (dict(backend.in_pipelines) if full.ranks > 1 else {})
    return replace(
        base,
        tensor=full.tensor or 1,
        pipeline=full.ranks,
        data=full.replicas or 1,
        context=full.context or 1,
        expert=full.expert or 1,
        expert_tensor=0 if full.expert_tensor == (full.tensor or 1) else full.expert_tensor or 0,
        chunks=full.chunks or 1,
        micro_batch=full.micro_batch or 1,
        microbatches=full.flush or full.ranks,
        sequence=full.sequence or base.sequence,
        recompute=full.recompute or "none",
        recompute_layers=full.recompute_layers if full.recompute_method == "block" else None,
        schedule=backend.schedule(full) or "1f1b",
        layers=backend.split(full) or (),
        zero=int(zero),
        **(switched | own),  # type: ignore[arg-type]  # names of fields and what they are
    )
