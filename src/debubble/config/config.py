"""A configuration: what is said of a job, each field known, open or absent; and a layout, of which all is known.

A script, a log's head, a job TOML or options say something of a job. Known is a value. Absent is None: nobody said it.
Open was said but not resolved, as ``${PP}`` in a script: such a field has no value at all, and reading it raises
``StillOpen``, which asks for it by name. So no verdict can rest on an open field unseen, and no place that reads a
configuration must remember to look. Of a layout all is known, and how its layers fall to stages follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..core.errors import Fault, InputError
from ..core.units import Hops

Value = bool | int | float | str | Hops | tuple["Value", ...] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Open:
    """A field that was said but not resolved.

    Args:
        field: of ``Config``, or a framework's own word.
        text: what was said instead of a value, as in ``${PP}``.
        place: where, as in ``train.sh:12``; empty where that is not known.
        rests_on: what it follows from and is open itself; empty where it was said.
    """

    field: str
    text: str
    place: str = ""
    rests_on: tuple[Open, ...] = ()

    @property
    def fault(self) -> Fault:
        """What asks for it."""
        what = f"{self.field} = {self.text}"
        if self.place:
            what += f" ({self.place})"
        return Fault(what, "it is set outside of what was given", ask(self.field))


class Unknown(InputError):
    """A question needs a field that is not known."""


class StillOpen(Unknown):
    """A question needs a field that was said but not resolved."""

    def __init__(self, *fields: Open) -> None:
        super().__init__(*(one.fault for one in fields))
        self.fields = fields


class Absent(Unknown):
    """A question needs fields that nobody said."""

    def __init__(self, name: str, *fields: str) -> None:
        super().__init__(*(Fault(f"{name}: {one}", "it is not said", ask(one)) for one in fields))
        self.fields = fields


def ask(field: str) -> str:
    """How a field is given on a command line."""
    return f"give --{field.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Config:
    """What is said of a job. None is absent; a field in ``open`` has no value, and reading it raises ``StillOpen``.

    Args:
        name: what reports call it.
        framework: whose configuration it is, by the name in ``frameworks.catalog``; ``engine`` what executes it.
        whole: whether it is a whole launch, so that what is absent is what the framework takes by itself.
        gpus: devices of the whole job; ``per_node`` of one host.
        tensor: devices that share each layer, t; likewise ``context`` each sequence and ``expert`` the experts.
        expert_tensor: devices that share each expert.
        pipeline: ranks of one pipeline, p.
        data: data-parallel replicas; ``sharded`` share one model out among them, ``copies`` such groups make up data.
        layers: transformer layers; likewise ``heads``, ``kv_heads``, ``experts`` of a layer, ``hidden`` (width),
            ``ffn`` (width of the feed-forward part), ``vocab``, and ``next_layers``, which predict further tokens.
        sequence: tokens in a sample.
        chunks: stages per rank, v; ``chunk_layers`` are layers of each, from which some frameworks work v out.
        first: layers of the first rank, ``last`` of the last one, where the ends are told apart.
        embedding_layers: layers as which the embedding counts in the split; likewise ``loss_layers``.
        split: layers of each stage, where all are given.
        layout: Megatron's string of stages.
        pattern: Megatron's string of layers of a hybrid model, with bars where stages are cut.
        micro_batch: samples in a micro-batch, b.
        microbatches: per pipeline and step, m.
        local_batch: samples of one replica in a step; ``global_batch`` of all.
        rampup: samples at the start, by how many they grow, and over how many samples.
        group: micro-batches that pass a chunk before the next has its turn.
        schedule: by our name or the framework's own.
        recompute: ``none``, ``selective`` or ``full``; ``recompute_method`` and ``recompute_layers`` as Megatron says.
        zero: what data-parallel ranks share out, 0 to 3.
        precision: of the matrix products.
        sequence_parallel: whether norms and dropout are split over the tensor group; likewise the switches ``overlap``,
            ``overlap_gather``, ``tensor_overlap`` of ``Layout``.
        fused_attention: how a layer runs and what is kept of it, each as ``Layout`` has it: likewise the switches
            ``fused_kernels``, ``fused_loss``, ``keep_gathered``, ``gather_by_tensor``, ``blocking_sends``,
            ``scattered_sends``, ``blocking_launches``, ``graphs``, ``flex_dispatch``, ``expert_overlap``,
            ``weights_are_master`` and ``offload_optimizer``; the counts ``offload_layers`` and ``pieces``; and
            ``recompute_modules``, ``gradient_precision``, ``optimizer_precision``, ``gradient_copies``, ``bucket``.
        forward: F of one micro-batch on one rank, nanoseconds; likewise ``backward``, ``input``, ``weight``.
        transfer: one hop between ranks, nanoseconds, on all links or by link.
        stage_scale: a factor for each stage.
        utilisation: busy share of the GPUs as it was seen, 0 to 1; likewise ``tokens_per_second`` and
            ``samples_per_second`` of the whole run, ``tokens_per_second_per_gpu``, ``tflops_per_gpu`` of the model,
            ``mfu`` (0 to 1), ``step`` in
            nanoseconds, ``peak_memory`` of a device in bytes.
        evidence: of these figures: ``stated`` by the user, or ``measured`` where the run's own log says it.
        own: the framework's own words that no field stands for, by their names.
        open: what was said but not resolved.
        places: where each field was said, as in ``train.sh:12`` or ``--pipeline``.
        follows: fields that nobody said: a framework's default, or what follows from others.
        remarks: what a reader noticed, a sentence each.
    """

    name: str = "job"
    framework: str | None = None
    engine: str | None = None
    whole: bool = False

    gpus: int | None = None
    per_node: int | None = None
    tensor: int | None = None
    context: int | None = None
    pipeline: int | None = None
    data: int | None = None
    sharded: int | None = None
    copies: int | None = None
    expert: int | None = None
    expert_tensor: int | None = None

    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    experts: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    next_layers: int | None = None
    sequence: int | None = None

    chunks: int | None = None
    chunk_layers: int | None = None
    first: int | None = None
    last: int | None = None
    embedding_layers: int | None = None
    loss_layers: int | None = None
    split: tuple[int, ...] | None = None
    layout: str | None = None
    pattern: str | None = None

    micro_batch: int | None = None
    microbatches: int | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    rampup: tuple[int, ...] | None = None
    group: int | None = None
    schedule: str | None = None

    recompute: str | None = None
    recompute_method: str | None = None
    recompute_layers: int | None = None
    zero: int | None = None
    precision: str | None = None
    sequence_parallel: bool | None = None
    overlap: bool | None = None
    overlap_gather: bool | None = None
    tensor_overlap: bool | None = None

    recompute_modules: tuple[str, ...] | None = None
    gradient_precision: str | None = None
    optimizer_precision: str | None = None
    gradient_copies: float | None = None
    bucket: float | None = None
    offload_layers: int | None = None
    pieces: int | None = None
    offload_optimizer: bool | None = None
    weights_are_master: bool | None = None
    fused_attention: bool | None = None
    fused_kernels: bool | None = None
    fused_loss: bool | None = None
    keep_gathered: bool | None = None
    gather_by_tensor: bool | None = None
    blocking_sends: bool | None = None
    scattered_sends: bool | None = None
    blocking_launches: bool | None = None
    graphs: bool | None = None
    flex_dispatch: bool | None = None
    expert_overlap: bool | None = None

    forward: float | None = None
    backward: float | None = None
    input: float | None = None
    weight: float | None = None
    transfer: float | Hops | None = None
    stage_scale: tuple[float, ...] | None = None

    utilisation: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    samples_per_second: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    step: float | None = None
    peak_memory: int | None = None
    evidence: str = "stated"

    own: Mapping[str, Value] = field(default_factory=dict)
    open: tuple[Open, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    follows: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take the values of open fields away: a slot that is not set asks ``__getattr__``, the rest cost nothing."""
        for one in self.open:
            if one.field in SAYABLE:
                object.__delattr__(self, one.field)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Only a slot without a value comes here: that of an open field, or a name that no field has.
            if name in _ALL:
                raise StillOpen(*_roots(self, (name,)))
            raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, wherever they say it."""
        if not isinstance(other, Config):
            return NotImplemented
        # Places are left out: the same job may be said in a script and by options.
        opened, others = ({(one.field, one.text) for one in config.open} for config in (self, other))
        return opened == others and self.known() == other.known() and dict(self.own) == dict(other.own)

    __hash__ = None  # type: ignore[assignment]  # it holds mappings

    def __repr__(self) -> str:
        said = [f"{name}={value!r}" for name, value in self.known().items() if value != _DEFAULTS[name]]
        said += [f"{one.field}=<open {one.text}>" for one in self.open]
        if self.own:
            said.append(f"own={dict(self.own)!r}")
        return f"Config({', '.join(said)})"

    def known(self) -> dict[str, Value]:
        """Every field that has a value, with it, in the order of the fields."""
        opened, found = self.opened(), {}
        for name in SAYABLE:
            if name not in opened and (value := getattr(self, name)) is not None:
                found[name] = value
        return found

    def opened(self) -> frozenset[str]:
        """Names of what is open."""
        return frozenset(one.field for one in self.open)

    def said(self, *names: str) -> tuple[str, ...]:
        """Those of these fields that somebody said, known or open; not what a framework takes by itself."""
        opened, found = self.opened(), []
        for name in names:
            if name in opened or (name not in self.follows and getattr(self, name) is not None):
                found.append(name)
        return tuple(found)

    def number(self, name: str) -> int:
        """A field that is a whole number.

        Raises:
            StillOpen: it is open.
            Absent: nobody said it.
        """
        value = getattr(self, name)
        if value is None:
            raise Absent(self.name, name)
        return cast("int", value)

    def word(self, name: str, otherwise: Value = None) -> Value:
        """One of the framework's own words; ``otherwise`` where it is absent.

        Raises:
            StillOpen: it is open.
        """
        if name in self.opened():
            raise StillOpen(*open_in(self, (name,)))
        value = self.own.get(name)
        if value is None:
            return otherwise
        return value

    def on(self, name: str, *, otherwise: bool = False) -> bool:
        """Whether one of the framework's own switches is on; ``otherwise`` where it is absent."""
        value = self.word(name, otherwise)
        if isinstance(value, str):
            return value.lower() in YES
        return bool(value)

    def need(self, *names: str) -> None:
        """Ask for those of these fields that are not known, all at once.

        Raises:
            Unknown: some are open or absent.
        """
        opened = _roots(self, names)
        missing = [name for name in names if name not in self.opened() and getattr(self, name) is None]
        if opened and missing:
            raise Unknown(*StillOpen(*opened).faults, *Absent(self.name, *missing).faults)
        if opened:
            raise StillOpen(*opened)
        if missing:
            raise Absent(self.name, *missing)

    def changed(self, **values: Any) -> Config:
        """The same with other values, which are known from now on."""
        open_ = tuple(one for one in self.open if one.field not in values)
        kept = {one.field for one in open_}
        everything = {name: getattr(self, name) for name in _ALL if name not in kept and name not in values}
        everything["follows"] = self.follows.difference(values)
        return Config(**(everything | {"open": open_} | values))

    def filled(self, **values: Any) -> Config:
        """The same with values for what is absent; what is known or open stays."""
        opened = self.opened()
        new = {}
        for name, value in values.items():
            if value is not None and name not in opened and getattr(self, name) is None:
                new[name] = value
        if not new:
            return self
        return self.changed(**new, follows=self.follows.union(new))

    def derived(self, name: str, work: Callable[[Config], Value]) -> Config:
        """The same with a field that follows from others: open where one of them is, absent where one of them is.

        Args:
            name: the field; where it is known or open already, nothing changes.
            work: its value; None where there is none.
        """
        if name in self.opened() or getattr(self, name) is not None:
            return self
        try:
            return self.filled(**{name: work(self)})
        except StillOpen as error:
            texts = ", ".join(f"{one.field} = {one.text}" for one in error.fields)
            return self.changed(open=(*self.open, Open(name, texts, error.fields[0].place, error.fields)))
        except Absent:
            return self

    def renamed(self, name: str, names: Mapping[str, str]) -> Config:
        """The same with our word for a framework's in one field, where there is one; who said it stays."""
        if name in self.opened():
            return self
        ours = names.get(str(getattr(self, name)).lower())
        if ours is None:
            return self
        return self.changed(**{name: ours}, follows=self.follows)

    def where(self, name: str) -> str:
        """Where a field was said; empty where nobody did."""
        return self.places.get(name, "")

    @property
    def ranks(self) -> int:
        """Ranks of one pipeline."""
        return self.number("pipeline")

    @property
    def replica(self) -> int:
        """Devices of one data-parallel replica."""
        return self.number("tensor") * self.number("pipeline") * self.number("context")

    @property
    def replicas(self) -> int | None:
        """Data-parallel replicas, as given or as the devices leave them; None where that cannot be told."""
        if self.data is not None:  # what was said wins; whether it fits the devices is a rule of each framework
            return self.data
        if not self.gpus or self.gpus % self.replica:
            return None
        return self.gpus // self.replica

    @property
    def flush(self) -> int | None:
        """Micro-batches per pipeline and step, as given or as the batch leaves them; None where it does not divide."""
        if self.microbatches is not None:
            return self.microbatches
        if self.micro_batch is None:
            return None
        # The batch of one replica needs no number of replicas, which a file often leaves to its launcher.
        if self.local_batch is not None:
            return _whole(self.local_batch, self.micro_batch)
        if self.global_batch is None or self.replicas is None:
            return None
        return _whole(self.global_batch, self.micro_batch * self.replicas)

    @property
    def counted_share(self) -> float:
        """Share of the work that model FLOPs count: less than 1 where forwards are computed twice."""
        return FULL_RECOMPUTE if self.recompute == "full" else 1.0


FULL_RECOMPUTE = 0.75  # a second forward in each backward: 3 of 4 parts of the work are counted, where B = 2 F
YES = ("true", "1", "on", "yes")
_ALL = tuple(Config.__dataclass_fields__)
_ABOUT = ("own", "open", "places", "follows", "remarks")
_DEFAULTS = {one.name: one.default for one in fields(Config)}
SAYABLE = tuple(name for name in _ALL if name not in _ABOUT)


def _of_type(text: str) -> tuple[str, ...]:
    """Fields of a type; annotations are texts here, since they are not evaluated."""
    return tuple(one.name for one in fields(Config) if one.type == text)


# Counts that people write as whole numbers; bytes are written as sizes, as in 48GB.
NUMBERS = tuple(name for name in _of_type("int | None") if name != "peak_memory")
# A file that says these alone is a model, and no job.
OF_THE_MODEL = frozenset(
    ("layers", "heads", "kv_heads", "experts", "hidden", "ffn", "vocab", "next_layers", "sequence")
)
SWITCHES = _of_type("bool | None")
# How a layer runs and what is kept of it: fields of a layout too, under the same names.
RECIPE = (
    *("precision", "recompute", "recompute_modules", "gradient_precision", "optimizer_precision", "gradient_copies"),
    *("bucket", "offload_layers", "pieces", *SWITCHES),
)
# What a run was seen to do; all else says how it is launched.
FIGURES = (
    "utilisation",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "samples_per_second",
    "tflops_per_gpu",
    "mfu",
    "step",
    "peak_memory",
)


def _whole(amount: int, of: int) -> int | None:
    """How often a part goes into an amount, once or more; None where something is left over."""
    if of <= 0 or amount < of or amount % of:
        return None
    return amount // of


def _roots(config: Config, names: Iterable[str]) -> tuple[Open, ...]:
    """What must be asked for so that these fields are known: themselves, or what they follow from."""
    roots: dict[Open, None] = {}
    for one in open_in(config, names):
        roots |= dict.fromkeys(one.rests_on or (one,))  # two fields may rest on one, which is asked for once
    return tuple(roots)


def open_in(config: Config, names: Iterable[str]) -> tuple[Open, ...]:
    """Those of these fields that are open."""
    wanted = set(names)
    return tuple(one for one in config.open if one.field in wanted)


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
