"""A layout: how one job lies on its devices, all of it known, and how its layers fall to stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import RECIPE, Config, StillOpen, open_in

RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
# Parts of a layer that ``selective`` recomputation may run again, by the names of Megatron-Core's
# ``--recompute-modules``.
MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "shared_experts", "moe")
# Bytes of a gradient, and of both moments of Adam together, by their precision.
GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
MOMENT_BYTES = {"fp32": 8.0, "bf16": 4.0, "fp16": 4.0, "fp8": 2.0}
# Of a layout, what is never taken to be 1.
_MUST = ("tensor", "pipeline", "data", "context", "chunks", "micro_batch", "microbatches", "schedule")
_MAY = ("sequence", "expert", "zero", *RECIPE)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one job lies on its devices: ``gpus = tensor x pipeline x data x context``.

    Args:
        tensor: devices that share each layer, t.
        pipeline: ranks of one pipeline, p.
        data: data-parallel replicas, d.
        context: devices that share each sequence, c.
        expert: devices over which the experts of a layer are spread, e.
        chunks: stages per rank, v.
        micro_batch: samples in a micro-batch, b.
        microbatches: per pipeline and step, m.
        sequence: tokens in a sample, s.
        recompute: ``none``, ``selective`` (parts of a layer) or ``full``.
        recompute_modules: the parts, of ``MODULES``; empty for the attention core alone.
        recompute_layers: layers of each stage to which ``full`` applies; None for all of them.
        schedule: a name of the catalog.
        layers: transformer layers of each stage, ``pipeline x chunks`` of them; empty for as even as can be, where the
            first stages take what does not divide.
        zero: what data-parallel ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too.
        precision: of the matrix products: ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``tf32`` or ``fp32``.
        gradient_precision: of gradients as they are kept and reduced: ``fp32``, ``bf16`` or ``fp16``; empty for fp16 in
            fp16, else fp32 (Megatron-LM's default for bf16).
        optimizer_precision: of Adam's moments: ``fp32``, ``bf16``, ``fp16`` or ``fp8`` (Megatron-LM's
            precision-aware optimizer, which then reads gradients as they are).
        gradient_copies: bytes a parameter of further copies of the gradients that a framework keeps.
        weights_are_master: whether the fp32 weights are the only ones, cast for each product (FSDP).
        fused_loss: whether the loss works on the logits in place (fused cross-entropy).
        offload_optimizer: whether the optimizer's state and its update are on the host.
        offload_layers: layers of each stage whose activations wait on the host.
        sequence_parallel: whether norms and dropout are split over the tensor group too.
        overlap: whether gradients are reduced beside the last backward (Megatron's ``--overlap-grad-reduce``).
        overlap_gather: whether weights are gathered beside the first forward (``--overlap-param-gather``).
        gather_by_tensor: whether gradients are reduced for all replicas though they share out the update, and weights
            gathered afterwards in a call for each tensor (nanotron's ZeRO-1).
        fused_attention: whether the scores of attention stay on the chip (flash attention).
        bucket: bytes of gradients that data-parallel ranks reduce in one call (PyTorch's DDP: 25 MB); 0 is what
            Megatron-LM takes where nothing is said, 40 million gradients or one million for each replica.
        fused_kernels: whether element-wise work is fused (Transformer Engine, Megatron's kernels, ``torch.compile``).
        keep_gathered: whether what sequence parallelism gathers is kept for the backward; Megatron-LM gathers again.
        blocking_sends: whether a rank sends and receives in turn and waits for each (DeepSpeed's pipeline engine).
        tensor_overlap: whether tensor collectives run beside matrix products (Megatron's ``--tp-comm-overlap``).
        scattered_sends: whether each member of a tensor group sends its share of a hop, and the receivers gather it
            (DeepSpeed's pipeline engine).
        blocking_launches: whether the host waits for each kernel (``CUDA_LAUNCH_BLOCKING=1``).
        graphs: whether the device replays a recorded graph of its kernels, so that no host issues them (CUDA graphs of
            whole iterations).
        flex_dispatch: whether a token crosses to each node once, however many of its experts are there (DeepEP,
            HybridEP: Megatron-Core's ``flex`` dispatcher).
        expert_overlap: whether tokens travel to experts beside the products of another micro-batch (Megatron-Core's
            ``--overlap-moe-expert-parallel-comm``, DualPipe).
        expert_tensor: devices that share each expert, et; 0 for the whole tensor group, as Megatron-LM takes it where
            nothing is said. e x et divides the tensor x data x context devices of a stage.
        pieces: products into which each product beside a tensor collective is cut, so that a part of it may run
            beside the collective (nanotron's asynchronous linear layers: 3).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    micro_batch: int = 1
    microbatches: int = 1
    sequence: int = 4096
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int | None = None
    schedule: str = "1f1b"
    layers: tuple[int, ...] = ()
    zero: int = 1
    precision: str = "bf16"
    gradient_precision: str = ""
    optimizer_precision: str = "fp32"
    gradient_copies: float = 0.0
    weights_are_master: bool = False
    fused_loss: bool = False
    offload_optimizer: bool = False
    offload_layers: int = 0
    sequence_parallel: bool = True
    overlap: bool = True
    overlap_gather: bool = False
    gather_by_tensor: bool = False
    fused_attention: bool = True
    fused_kernels: bool = True
    keep_gathered: bool = False
    blocking_sends: bool = False
    tensor_overlap: bool = False
    scattered_sends: bool = False
    blocking_launches: bool = False
    graphs: bool = False
    flex_dispatch: bool = False
    expert_overlap: bool = False
    pieces: int = 1
    bucket: float = 0.0
    expert_tensor: int = 0

    @property
    def gpus(self) -> int:
        """Devices of the whole job."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def is_full_precision(self) -> bool:
        """Whether numbers have 4 bytes: products in tf32 or fp32."""
        return self.precision in ("tf32", "fp32")

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight as it lies on a device: 2, or the 4 of fp32 weights."""
        if self.is_full_precision or self.weights_are_master:
            return 4.0
        return 2.0

    @property
    def reduced_bytes(self) -> float:
        """Bytes of a gradient as it is reduced."""
        if self.gradient_precision:
            return GRADIENT_BYTES[self.gradient_precision]
        return 2.0 if self.precision == "fp16" else 4.0

    @property
    def state_bytes(self) -> float:
        """Bytes of a parameter's optimizer: an fp32 weight unless the weight is one, two moments.

        Gradients of 2 bytes are copied to fp32 for the update, unless the optimizer reads them as they are: 4 + 16/d
        bytes in fp16 (README of Megatron-LM's distributed optimizer).
        """
        size = MOMENT_BYTES[self.optimizer_precision]
        if self.weight_bytes < 4:
            size += 4.0  # the fp32 weight that is updated, of which the one on the device is a rounded copy
        if self.reduced_bytes == 2 and self.optimizer_precision == "fp32":
            size += 4.0
        return size

    @property
    def expert_shards(self) -> int:
        """Devices that share each expert: ``expert_tensor``, or the tensor group where that is 0."""
        return self.expert_tensor or self.tensor

    @property
    def stages(self) -> int:
        """Slices of the model: pipeline x chunks."""
        return self.pipeline * self.chunks

    @property
    def global_batch(self) -> int:
        """Samples of all replicas in one step."""
        return self.data * self.micro_batch * self.microbatches

    def split(self, layers: int) -> tuple[int, ...]:
        """Transformer layers of each stage for a model of so many."""
        return self.layers or even_split(layers, self.stages)


def layout_of(config: Config, base: Layout | None = None) -> Layout:
    """The layout, all known, that a configuration amounts to once its framework has filled in what it takes by itself.

    Degrees, batch and schedule must be known: none of them is ever taken to be 1. Switches, precision and the sequence
    may be absent, and are then those of ``base``.

    Args:
        config: as ``Framework.filled`` or ``settled`` leave it.
        base: what it does not say; None for the defaults of ``Layout``.

    Raises:
        Unknown: what is missing, all at once.
    """
    base = base or Layout()
    config = config.derived("data", lambda c: c.replicas).derived("microbatches", lambda c: c.flush)
    config.need(*_MUST)
    if opened := open_in(config, (*_MAY, "split", "expert_tensor", "recompute_layers")):
        raise StillOpen(*opened)
    known = config.known()
    own = {name: known[name] for name in (*_MUST, *_MAY) if name in known}
    own["recompute_layers"] = None  # uniform recomputes every layer, and its number only says in what portions
    if known.get("recompute_method") == "block":
        own["recompute_layers"] = known.get("recompute_layers")
    own["expert_tensor"] = known.get("expert_tensor", 0)
    if own["expert_tensor"] == config.tensor:
        own["expert_tensor"] = 0  # 0 is the tensor group, so that one layout has one way to be said
    own["layers"] = known.get("split", ())
    return replace(base, **own)  # type: ignore[arg-type]  # fields of both, by one name


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be; the first stages take what does not divide: 10 over 4 is 3, 3, 2, 2."""
    least, over = divmod(layers, stages)
    return (least + 1,) * over + (least,) * (stages - over)


# Splits that several frameworks make; what one of them makes alone stands with it.
def ends_counted(layers: int, stages: int, embedding: int, loss: int) -> tuple[int, ...] | None:
    """As even as can be where embedding and loss count as layers; None where an end has no room for them."""
    split = list(even_split(layers + embedding + loss, stages))
    # The ends hold what is not a layer, so that many fewer layers.
    split[0] -= embedding
    split[-1] -= loss
    if min(split) < 0:
        return None
    return tuple(split)
