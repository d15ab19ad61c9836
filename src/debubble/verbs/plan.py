"""``plan``: the layout to launch, by batch arithmetic alone or with a model and devices."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from ..planning.batch import BatchPlan, GrowthPlan
from ..planning.layout_plan import LayoutPlan
from .arguments import Counts, Hop, Size
from .plan_options import read_options
from .plan_search import planned
from .samples import Given

AnyPath = str | PathLike[str]


def plan(
    job: AnyPath | None = None,
    *,
    gpus: Counts | None = None,
    model: AnyPath | None = None,
    gpu: AnyPath | None = None,
    global_batch: Counts | None = None,
    sequence: int | None = None,
    nodes: int | None = None,
    nic: Size | None = None,
    price: float | None = None,
    tensor: Counts | None = None,
    pipeline: Counts | None = None,
    data: int | None = None,
    context: Counts | None = None,
    expert: Counts | None = None,
    expert_tensor: Counts | None = None,
    chunks: Counts | None = None,
    micro_batch: Counts | None = None,
    microbatches: Counts | None = None,
    schedule: str | Sequence[str] | None = None,
    transfer: Hop | None = None,
    precision: str | None = None,
    zero: int | None = None,
    recompute: str | None = None,
    recompute_modules: str | Sequence[str] | None = None,
    gradient_precision: str | None = None,
    optimizer_precision: str | None = None,
    gradient_copies: float | None = None,
    bucket: float | None = None,
    offload_layers: int | None = None,
    offload_optimizer: bool | None = None,
    pieces: int | None = None,
    sequence_parallel: bool | None = None,
    overlap: bool | None = None,
    overlap_gather: bool | None = None,
    gather_by_tensor: bool | None = None,
    tensor_overlap: bool | None = None,
    expert_overlap: bool | None = None,
    flex_dispatch: bool | None = None,
    keep_gathered: bool | None = None,
    weights_are_master: bool | None = None,
    fused_attention: bool | None = None,
    fused_kernels: bool | None = None,
    fused_loss: bool | None = None,
    graphs: bool | None = None,
    blocking_sends: bool | None = None,
    blocking_launches: bool | None = None,
    scattered_sends: bool | None = None,
    calibrate: AnyPath | Sequence[AnyPath] = (),
    save_calibration: AnyPath | None = None,
    launched: AnyPath | None = None,
    top: int | None = None,
    framework: str | None = None,
    emit: str | None = None,
    rampup: Counts | None = None,
    lengths: Given | None = None,
    packing: str | None = None,
) -> LayoutPlan | BatchPlan | GrowthPlan:
    """Find the layout to launch: every legal one, ranked, with where its time and memory go.

        >>> debubble.plan(model="llama3-8b", gpu="h100", gpus=8, global_batch=32).best.step_ms
        >>> debubble.plan(gpus=64, pipeline=8, global_batch=256).candidates[0].idle_share

    Without a model and a device, the batch and the bubbles alone. Values that are listed (``4,8``) are tried.

    Args:
        job: a job TOML or launch script, from which devices, batch and sequence are taken if no option says them.
        gpus: devices of the whole job; several to compare.
        model: its name, or its config.json.
        gpu: name of the device, or your own TOML file of it; ``h100*4,a100*4`` if stages lie on several, in this order.
        global_batch: samples of all replicas in a step.
        sequence: tokens in a sample; 4096 by default.
        nodes: hosts; else as the vendor sells the device.
        nic: bandwidth of a device to other hosts, bytes a second.
        price: of one device for an hour, for the cost of a billion tokens.
        tensor: devices that share each layer.
        pipeline: ranks of a pipeline.
        data: data-parallel replicas.
        context: devices that share each sequence.
        expert: devices over which experts are spread.
        expert_tensor: devices that share each expert.
        chunks: stages on each rank.
        micro_batch: samples in a micro-batch.
        microbatches: per pipeline and step, instead of a global batch.
        schedule: schedules to try.
        transfer: one hop between ranks as measured, on all links or by link, instead of the estimate's.
        precision: of the matrix products: ``bf16``, ``fp16``, ``fp8`` or ``fp4``.
        zero: what replicas share out: 1 optimizer, 2 gradients, 3 weights.
        recompute: ``none``, ``selective`` or ``full``; the search's own choice by default.
        recompute_modules: parts of a layer that ``selective`` runs again; the attention core by default.
        gradient_precision: of gradients as they are kept and reduced: ``fp32``, ``bf16`` or ``fp16``.
        optimizer_precision: of Adam's moments: ``fp32``, ``bf16``, ``fp16`` or ``fp8``.
        gradient_copies: bytes a parameter of further copies of the gradients.
        bucket: bytes of gradients that replicas reduce in one call.
        offload_layers: layers of each stage whose activations wait on the host.
        offload_optimizer: whether the optimizer's state and its update are on the host.
        pieces: products into which each product beside a tensor collective is cut.
        sequence_parallel: whether norms and dropout are split over the tensor group too.
        overlap: whether gradients are reduced beside the last backward.
        overlap_gather: whether weights are gathered beside the first forward.
        gather_by_tensor: whether weights are gathered after the update, in a call for each tensor.
        tensor_overlap: whether tensor collectives run beside matrix products.
        expert_overlap: whether tokens travel to experts beside the products of another micro-batch.
        flex_dispatch: whether a token crosses to each node once, however many of its experts are there.
        keep_gathered: whether what sequence parallelism gathers is kept for the backward.
        weights_are_master: whether the fp32 weights are the only ones, cast for each product.
        fused_attention: whether the scores of attention stay on the chip.
        fused_kernels: whether element-wise work is fused.
        fused_loss: whether the loss works on the logits in place.
        graphs: whether the device replays a recorded graph of its kernels.
        blocking_sends: whether a rank sends and receives in turn and waits for each.
        blocking_launches: whether the host waits for each kernel.
        scattered_sends: whether each member of a tensor group sends its share of a hop.
        calibrate: measured rows as CSV, logs, recordings, traces, or saved factors.
        save_calibration: where to write the factors.
        launched: configuration with which the recordings and traces of ``calibrate`` were launched.
        top: layouts to keep.
        framework: that is to launch it: nothing is planned that it cannot run.
        emit: the same, and what to paste is printed.
        rampup: a batch that grows: start, increment, samples.
        lengths: of samples, if they are unequal: ``p50=800,p95=6000``, ``mean=1200,p95=4000``, or a file of lengths.
        packing: ``whole`` samples fill a sequence; ``cut`` from a stream of them; ``none``, each is one sample.

    Returns:
        The plan of layouts; with neither model nor device that of the batch, or of one that grows.

    Raises:
        InputError: what is missing or wrong, all at once where that can be told.
        Refusal: no layout is legal, or none fits.
    """
    return planned(read_options(locals()).with_job())
