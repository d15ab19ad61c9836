"""What Megatron-Core's configuration classes refuse: precision, attention, experts, recomputation, offloading, graphs.

Each rule names the method that checks it, in megatron-core 0.16.1. Left out is what rests on other packages and their
versions (Transformer Engine, DeepEP), on inference, on activation functions and on initialisation: none of it is about
a layout.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Value
from .framework import Breach, Rule, named, rule

_CONFIG = "transformer_config.py TransformerConfig.__post_init__"
_RECOMPUTABLE = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}
_OFFLOADABLE = {"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"}
_SCOPES = ("full", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_DROPOUT = 0.1  # of attention and of the hidden state, where nothing is said
_BALANCED = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
_DISPATCHERS = ("allgather", "alltoall", "flex")


def refused(name: str, what: str, *others: str, law: str, value: str = "on", remedy: str = "") -> Breach:
    """A word of the framework that goes neither alone nor with these others."""
    return Breach(law, (name, *others), what, remedy or f"leave out <{name}>", value)


def listed(value: Value) -> tuple[str, ...]:
    """A list of words, however it was written."""
    if value is None:
        return ()
    if isinstance(value, tuple):
        return tuple(map(str, value))
    return tuple(str(value).replace(",", " ").split())


def count(config: Config, name: str, otherwise: int) -> int:
    """A framework's own word that is a whole number."""
    text = str(config.word(name, otherwise))
    if text.lstrip("-").isdecimal():
        return int(text)
    return otherwise


def graphed(config: Config) -> str:
    """Who captures graphs: ``none``, ``local`` or ``transformer_engine``; former switches say it too."""
    how = str(config.word("cuda_graph_impl", "none"))
    if how != "none":
        return how
    if config.on("enable_cuda_graph"):
        return "local"
    if config.on("external_cuda_graph"):
        return "transformer_engine"
    return "none"


def _selective(config: Config) -> bool:
    """Whether parts of layers are recomputed; a former switch says it of experts."""
    return config.recompute == "selective" or (config.recompute == "none" and config.on("moe_layer_recompute"))


def _parts(config: Config) -> set[str]:
    """The parts that a selective recomputation runs again."""
    parts = set(config.recompute_modules or ("core_attn",))
    if config.on("moe_layer_recompute"):
        parts.add("moe")
    return parts


@rule(_CONFIG)
def _precision(config: Config) -> Iterator[Breach]:
    """One precision at a time; parameters in it only where products are in it too."""
    if config.on("bf16") and config.on("fp16"):
        # transformer_config.py:916
        yield refused("fp16", "only one of bf16 and fp16 may be on", "bf16", law="one precision")
    eight, four = config.word("fp8"), config.word("fp4")
    if eight and four:
        # transformer_config.py:1035
        yield refused("fp4", "fp4 and fp8 cannot be on together", "fp8", value=str(four), law="fp4 with fp8")
    for name, mode, holds in (("fp8_param", "fp8", eight), ("fp4_param", "fp4", four)):
        if config.on(name) and not holds:
            yield refused(name, f"it needs <{mode}>", mode, law=f"{name} alone")


@rule(_CONFIG)
def _ends_in_bf16(config: Config) -> Iterator[Breach]:
    """First and last layers in 16 bits: not with delayed scaling, and no more of them than a stage holds."""
    if not config.word("fp8") or not config.on("first_last_layers_bf16"):
        return
    if config.word("fp8_recipe", "delayed") == "delayed":
        what = "delayed scaling has no first and last layers in BF16"
        # transformer_config.py:991
        yield refused("first_last_layers_bf16", what, "fp8_recipe", law="ends in bf16 with delayed scaling")
    most = config.number("layers") // config.ranks
    for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        many = count(config, name, 1)
        if not 0 <= many <= most:
            what = f"it is from 0 to the {most} layers of a pipeline stage"
            yield refused(name, what, "pipeline", value=str(many), law=f"{name} in a stage", remedy=f"give {most}")


@rule(_CONFIG)
def _linear_attention(config: Config) -> Iterator[Breach]:
    """Gated delta nets name their sizes, share their heads over the tensor group, and know no context groups."""
    if config.word("experimental_attention_variant") != "gated_delta_net":
        return
    context = config.number("context")
    if context > 1:
        what = "gated delta nets have no context parallelism"
        # transformer_config.py:983
        yield Breach("linear attention in context", ("context",), what, "give 1")
    heads = ("linear_num_key_heads", "linear_num_value_heads")
    needed = ("linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", *heads)
    missing = [name for name in needed if config.word(name) is None]
    if missing:
        what = f"it needs {', '.join(f'<{name}>' for name in missing)}"
        yield refused("experimental_attention_variant", what, value="gated_delta_net", law="linear attention sizes")
        return
    keys, values, tensor = count(config, heads[0], 1), count(config, heads[1], 1), config.number("tensor")
    if values % keys:
        what = f"{values} value heads are a multiple of {keys} key heads"
        yield refused(heads[1], what, heads[0], value=str(values), law="linear heads", remedy=f"a multiple of {keys}")
    elif keys % tensor or values % tensor:
        what = f"a tensor group of {tensor} shares {keys} key heads and {values} value heads without rest"
        yield Breach("linear heads over tensor", ("tensor", *heads), what)


@rule(_CONFIG)
def _attention(config: Config) -> Iterator[Breach]:
    """Variants of attention that exclude each other."""
    if config.word("experimental_attention_variant") == "dsa":
        if config.number("context") > 1:
            # transformer_config.py:1989
            yield Breach("dsa in context", ("context",), "DSA has no context parallelism", "give 1")
        if config.on("apply_rope_fusion"):
            yield refused("apply_rope_fusion", "DSA has no fused rotary embedding", law="dsa with fused rope")
    if config.on("multi_latent_attention") and config.on("rotary_interleaved"):
        # transformer_config.py:1559
        yield refused("rotary_interleaved", "latent attention does not interleave", law="latent and interleaved")
    if config.on("fused_single_qkv_rope") and config.on("attention_output_gate"):
        # transformer_config.py:1556
        yield refused("fused_single_qkv_rope", "it has no gated attention", "attention_output_gate", law="gated qkv")
    every = config.word("no_rope_freq")
    if every is not None and str(every).isdecimal() and int(str(every)) and config.number("layers") % int(str(every)):
        what = f"it divides the {config.layers} layers"
        # transformer_config.py:1966
        yield refused("no_rope_freq", what, "layers", value=str(every), law="layers without rope")


@rule(_CONFIG)
def _expert_sizes(config: Config) -> Iterator[Breach]:
    """Words of experts want experts, and experts want no bias on several devices."""
    shared = config.word("moe_shared_expert_intermediate_size")
    if shared is not None and count(config, "moe_shared_expert_intermediate_size", 1) <= 0:
        what = "it is the number of shared experts times the width of each"
        # transformer_config.py:1085
        yield refused("moe_shared_expert_intermediate_size", what, value=str(shared), law="width of shared experts")
    if not config.experts:
        config.need("layers")  # else the model stands elsewhere: in a checkpoint, or in a file that was not read
        if config.number("expert") > 1:
            what = "it spreads experts, of which the model has none"
            # transformer_config.py:1049
            yield Breach("expert degree without experts", ("expert", "experts"), what, "give <experts>")
        if config.word("moe_ffn_hidden_size") is not None:
            # transformer_config.py:1060
            yield refused("moe_ffn_hidden_size", "it needs experts", "experts", law="expert width without experts")
        return
    # Megatron-LM adds biases unless told otherwise; elsewhere the model's provider decides.
    biased = config.on("add_bias_linear", otherwise=config.whole and config.framework == "megatron")
    if biased and config.number("expert_tensor") != 1:
        what = "biases of experts work on one device for each expert alone"
        remedy = "give <expert_tensor> 1, or switch biases off: --disable-bias-linear, add_bias_linear = False"
        # transformer_config.py:1590
        yield Breach("bias of experts", ("expert_tensor", "add_bias_linear"), what, remedy)


@rule(f"{_CONFIG}; transformer/moe/moe_layer.py MoELayer.__init__; token_dispatcher.py MoEFlexTokenDispatcher.__init__")
def _dispatch(config: Config) -> Iterator[Breach]:
    """How tokens travel to experts."""
    how = str(config.word("moe_token_dispatcher_type", "allgather"))
    name = "moe_token_dispatcher_type"
    if config.experts and how not in _DISPATCHERS:
        known = ", ".join(_DISPATCHERS)
        # moe_layer.py:218
        yield refused(name, f"the dispatchers are {known}", value=how, law="dispatcher", remedy="give alltoall")
    backend = str(config.word("moe_flex_dispatcher_backend", "deepep"))
    if config.on("moe_enable_deepep"):
        if how != "flex":
            # transformer_config.py:1065
            yield refused("moe_enable_deepep", f"it needs <{name}> flex", name, law="deepep without flex")
        if backend == "hybridep":
            what = "hybridep is another backend"
            # transformer_config.py:1067
            yield refused("moe_enable_deepep", what, "moe_flex_dispatcher_backend", law="deepep with hybridep")
    padded = config.on("moe_pad_expert_input_to_capacity")
    if how == "flex" and padded and (backend == "deepep" or config.on("moe_enable_deepep")):
        what = "flex with deepep does not pad experts to their capacity"
        # transformer_config.py:1078
        yield refused("moe_pad_expert_input_to_capacity", what, name, law="padding with deepep")
    if config.experts and how == "flex" and config.number("expert") * config.number("expert_tensor") == 1:
        what = "flex dispatch wants experts on several devices"
        # token_dispatcher.py:1346
        yield refused(name, what, "expert", value="flex", law="flex on one device", remedy="give alltoall")
    if how == "allgather" and config.on("variable_seq_lengths"):
        what = "allgather takes sequences of one length"
        # transformer_config.py:1829
        yield refused("variable_seq_lengths", what, name, law="variable lengths with allgather")
    shared = config.word("moe_shared_expert_intermediate_size") is not None and config.on("moe_shared_expert_overlap")
    if shared and how != "alltoall":
        what = f"it works with <{name}> alltoall alone"
        # transformer_config.py:1093
        yield refused("moe_shared_expert_overlap", what, name, law="overlapped shared experts")


@rule(_CONFIG)
def _capacity(config: Config) -> Iterator[Breach]:
    """A capacity wants a balance that bounds it, and padding wants a capacity."""
    factor = config.word("moe_expert_capacity_factor")
    negative = factor is not None and str(factor).startswith("-")
    balance = config.word("moe_router_load_balancing_type", "aux_loss")
    kinds = listed(balance)
    if factor is not None and any(kind not in _BALANCED for kind in kinds):
        what = f"it works with <moe_router_load_balancing_type> {', '.join(_BALANCED)}"
        others = ("moe_router_load_balancing_type",)
        # transformer_config.py:1126
        yield refused("moe_expert_capacity_factor", what, *others, value=str(factor), law="capacity and balance")
    if config.on("moe_pad_expert_input_to_capacity") and (factor is None or negative):
        what = "it needs <moe_expert_capacity_factor>"
        # transformer_config.py:1133
        yield refused("moe_pad_expert_input_to_capacity", what, law="padding without capacity")


@rule(_CONFIG)
def _router(config: Config) -> Iterator[Breach]:
    """How a router scores and groups experts."""
    score = config.word("moe_router_score_function", "softmax")
    if config.on("moe_router_enable_expert_bias") and score != "sigmoid":
        what = "a bias of experts needs <moe_router_score_function> sigmoid"
        # transformer_config.py:1594
        yield refused("moe_router_enable_expert_bias", what, "moe_router_score_function", law="bias of the router")
    balance = config.word("moe_router_load_balancing_type", "aux_loss")
    top = count(config, "moe_router_topk", 2)
    if top == 1 and score == "softmax" and not config.on("moe_router_pre_softmax") and balance != "sinkhorn":
        what = "of one expert a softmax after the choice has no gradient"
        remedy = "turn on <moe_router_pre_softmax>"
        # transformer_config.py:1641
        yield refused("moe_router_topk", what, "moe_router_pre_softmax", value="1", law="top 1", remedy=remedy)
    yield from _groups_of_experts(config)
    if config.on("moe_router_padding_for_quantization") or config.on("moe_router_padding_for_fp8"):
        name = "moe_router_padding_for_quantization"
        if not config.word("fp8") and not config.word("fp4"):
            yield refused(name, "it needs fp8 or fp4", "fp8", law="padding for quantization")
        if config.word("moe_token_dispatcher_type", "allgather") in ("allgather", "alltoall_seq"):
            what = "allgather and alltoall_seq do not pad"
            yield refused(name, what, "moe_token_dispatcher_type", law="padding and dispatcher")


def _groups_of_experts(config: Config) -> Iterator[Breach]:
    """Routing limited to groups: they share the experts, and no more are chosen than there are."""
    chosen = count(config, "moe_router_group_topk", 0)
    if not chosen:
        return
    name, groups = "moe_router_group_topk", count(config, "moe_router_num_groups", 0)
    if config.word("moe_router_topk_limited_devices"):
        what = "<moe_router_topk_limited_devices> is its former name"
        # transformer_config.py:1645
        yield refused("moe_router_topk_limited_devices", what, name, law="limited devices")
    elif not groups:
        what = "routing limited to groups needs <moe_router_num_groups>"
        # transformer_config.py:1650
        yield refused(name, what, value=str(chosen), law="groups of experts", remedy="give <moe_router_num_groups>")
    elif not config.experts:
        # transformer_config.py:1654
        yield refused(name, "it needs experts", "experts", value=str(chosen), law="groups without experts")
    elif config.experts % groups:
        what = f"it shares {config.experts} experts without rest"
        # transformer_config.py:1654
        yield refused("moe_router_num_groups", what, "experts", value=str(groups), law="experts over groups")
    elif chosen > groups:
        what = f"there are {groups} groups"
        # transformer_config.py:1658
        yield refused(name, what, "moe_router_num_groups", value=str(chosen), law="chosen groups")


@rule(_CONFIG)
def _expert_overlap(config: Config) -> Iterator[Breach]:
    """Communication of experts beside the work of another micro-batch."""
    name = "overlap_moe_expert_parallel_comm"
    if not config.on(name):
        for other in ("delay_wgrad_compute", "ep_overlap_early_attn_memory_release"):
            if config.on(other):
                yield refused(other, f"it needs <{name}>", name, law=f"{other} alone")
        return
    following = config.next_layers
    how = config.word("moe_token_dispatcher_type", "allgather")
    wants = (
        (config.ranks > 1 and config.number("chunks") == 1, "in a pipeline it wants virtual stages", "chunks"),
        (config.number("expert") == 1, "it wants experts on several devices", "expert"),  # 1864
        (how not in ("alltoall", "flex"), "it works with the dispatchers alltoall and flex", _DISPATCHER),  # 1866
        (config.recompute == "full", "it works without full recomputation", "recompute"),
        (config.recompute_method is not None, "it works without a method of recomputation", "recompute_method"),
        (config.recompute_layers is not None, "it works without a number of layers", "recompute_layers"),  # 1878
        (not (config.on("bf16") or config.on("fp16")) and config.whole, "it wants bf16 or fp16", "bf16"),  # 1882
        (config.on("moe_shared_expert_overlap"), "shared experts do not overlap too", "moe_shared_expert_overlap"),
        (following not in (None, 1), "it takes one layer that predicts further tokens", "next_layers"),  # 1890
        (following == 1 and config.ranks == 1, "with a layer of further tokens it wants a pipeline", "pipeline"),
        (not _graphs_apart(config), "graphs of attention and the router alone go with it", "cuda_graph_impl"),
    )
    for broken, what, other in wants:
        if broken:
            yield refused(name, what, other, law=f"expert overlap and {other}", remedy=f"change <{other}>")
    if config.on("delay_wgrad_compute") and config.on("moe_use_legacy_grouped_gemm"):
        what = "it does not work with the legacy grouped products"
        # transformer_config.py:1913
        yield refused("delay_wgrad_compute", what, "moe_use_legacy_grouped_gemm", law="delayed with legacy products")


def _graphs_apart(config: Config) -> bool:
    """Whether no graph covers what is overlapped."""
    how, scope = graphed(config), listed(config.word("cuda_graph_scope"))
    return how == "none" or (how == "transformer_engine" and not {"moe", "mlp"} & set(scope))


_DISPATCHER = "moe_token_dispatcher_type"


@rule("model_parallel_config.py ModelParallelConfig.__post_init__")
def _deferred_embedding(config: Config) -> Iterator[Breach]:
    """The gradient of the embedding behind the pipeline's end needs fused accumulation and a limit that is one."""
    name = "defer_embedding_wgrad_compute"
    if not config.on(name):
        return
    if not config.on("gradient_accumulation_fusion", otherwise=not config.whole or config.framework == "megatron"):
        what = "it needs <gradient_accumulation_fusion>"
        # model_parallel_config.py:431
        yield refused(name, what, "gradient_accumulation_fusion", law="deferred without fusion")
    if count(config, "wgrad_deferral_limit", 0) < 0:
        # model_parallel_config.py:436
        yield refused("wgrad_deferral_limit", "it is 0 or more", name, law="deferral limit", remedy="give 0")


@rule("parallel_state.py initialize_model_parallel; distributed/distributed_data_parallel.py __init__")
def _instances(config: Config) -> Iterator[Breach]:
    """Instances of the distributed optimizer share the replicas without rest."""
    name = "num_distributed_optimizer_instances"
    many = count(config, name, 1)
    if many == 1:
        return
    holders = config.number("data") * config.number("context")
    spread, unit = holders * config.number("tensor"), config.number("expert") * config.number("expert_tensor")
    if holders % many:
        what = f"data {config.data} x context {config.context} devices are shared by them without rest"
        # parallel_state.py:833
        yield refused(name, what, "data", value=str(many), law="optimizer instances", remedy="give a divisor")
    elif spread % unit == 0 and spread // unit % many:
        what = f"each expert is held {spread // unit} times, which they share without rest"
        # parallel_state.py:1264
        yield refused(name, what, "expert", value=str(many), law="expert instances", remedy="give a divisor")


@rule("tensor_parallel/layers.py ColumnParallelLinear.__init__; utils.py divide")
def _widths(config: Config) -> Iterator[Breach]:
    """A tensor group shares the width of the feed-forward part without rest."""
    tensor = config.number("tensor")
    if config.ffn and config.ffn % tensor and not config.experts:
        what = f"it shares a feed-forward width of {config.ffn} without rest"
        # utils.py:468
        yield Breach("feed-forward width", ("tensor", "ffn"), what)


@rule("tensor_parallel/mappings.py _reduce_scatter_along_first_dim")
def _sequence_over_tensor(config: Config) -> Iterator[Breach]:
    """With sequence parallelism a tensor group shares the tokens of a context group's member without rest."""
    tensor, context = config.number("tensor"), config.number("context")
    if config.sequence_parallel and tensor > 1 and config.number("sequence") % (tensor * context):
        what = f"{config.sequence} tokens over context {context} are shared by {tensor} devices without rest"
        # mappings.py:173
        yield Breach("sequence over tensor", ("tensor", "sequence"), what)


@rule("transformer_config.py TransformerConfig.__post_init__")
def _recomputation(config: Config) -> Iterator[Breach]:
    """A full recomputation says of which layers; a selective one has its own idea."""
    if config.recompute not in ("none", "full", "selective"):
        yield Breach("granularity", ("recompute",), "it is full or selective", "give one of them")
    elif config.recompute == "full":
        missing = [f for f in ("recompute_method", "recompute_layers") if getattr(config, f) is None]
        if missing:
            remedy = "<recompute_method> uniform <recompute_layers> 1 for every layer, or block N for N of each stage"
            # transformer_config.py:1167
            yield Breach("layers of a full recomputation", ("recompute",), f"full needs {named(missing)}", remedy)
        elif config.recompute_method not in ("uniform", "block"):
            # transformer_config.py:1163
            yield Breach("method", ("recompute_method",), "the methods are uniform and block", "give one of them")
    elif config.recompute == "selective" and config.recompute_layers is not None:
        what = "selective recomputes the attention of every layer"
        # transformer_config.py:1182
        yield Breach("layers of a selective one", ("recompute_layers",), what, "leave out <recompute_layers>")
    elif config.recompute == "selective" and config.recompute_method not in (None, "uniform", "block"):
        # transformer_config.py:1163
        yield Breach("method", ("recompute_method",), "the methods are uniform and block", "leave it out")


@rule(_CONFIG)
def _recomputed_modules(config: Config) -> Iterator[Breach]:
    """A selective recomputation names parts that there are."""
    if config.recompute == "full" and config.on("moe_layer_recompute"):
        # transformer_config.py:1261
        yield refused("moe_layer_recompute", "everything is recomputed already", "recompute", law="experts again")
    if config.recompute != "none" and config.on("distribute_saved_activations") and config.sequence_parallel:
        what = "sequence parallelism spreads activations already"
        # transformer_config.py:1188
        yield refused("distribute_saved_activations", what, "sequence_parallel", law="activations spread twice")
    if config.recompute != "selective":
        return
    name, parts = "recompute_modules", _parts(config)
    text = " ".join(sorted(parts))
    if strange := parts - _RECOMPUTABLE:
        what = f"it knows {', '.join(sorted(_RECOMPUTABLE))}, not {', '.join(sorted(strange))}"
        # transformer_config.py:1208
        yield refused(name, what, value=text, law="parts to recompute")
    if "moe_act" in parts and not config.on("moe_grouped_gemm"):
        what, other = "moe_act needs <moe_grouped_gemm>", "moe_grouped_gemm"
        yield refused(name, what, other, value=text, law="activation of experts again")
    if "mla_up_proj" in parts and not config.on("multi_latent_attention"):
        # transformer_config.py:1219
        yield refused(
            name,
            "mla_up_proj needs latent attention",
            "multi_latent_attention",
            value=text,
            law="projection of latents again",
        )
    overlapped = config.on("moe_shared_expert_overlap")
    if "shared_experts" in parts and overlapped and config.word("moe_shared_expert_intermediate_size") is not None:
        what = "shared experts that overlap are not recomputed"
        # transformer_config.py:1237
        yield refused(name, what, "moe_shared_expert_overlap", value=text, law="shared experts again")
    delayed = config.word("fp8") and config.word("fp8_recipe", "delayed") == "delayed"
    if delayed and parts & {"moe_act", "layernorm"}:
        what = "delayed scaling recomputes neither moe_act nor layernorm"
        # transformer_config.py:1244
        yield refused(name, what, "fp8_recipe", value=text, law="delayed scaling again")


@rule(_CONFIG)
def _offloading(config: Config) -> Iterator[Breach]:
    """Activations on the host: of fewer layers than there are, and instead of recomputing them."""
    if config.on("cpu_offloading"):
        many = count(config, "cpu_offloading_num_layers", 0)
        if not 0 <= many < config.number("layers"):
            what = f"fewer than the {config.layers} layers are offloaded"
            yield refused("cpu_offloading_num_layers", what, "layers", value=str(many), law="layers on the host")
        if config.recompute != "none":
            what = "what is recomputed is not offloaded"
            yield refused("cpu_offloading", what, "recompute", law="offloaded and recomputed")
        if graphed(config) != "none":
            # transformer_config.py:1723
            yield refused("cpu_offloading", "graphs are not offloaded", "cuda_graph_impl", law="offloaded graphs")
    name = "fine_grained_activation_offloading"
    if not config.on(name):
        return
    parts = set(listed(config.word("offload_modules")))
    if config.on("cpu_offloading"):
        yield refused(name, "it is another way of <cpu_offloading>", "cpu_offloading", law="offloaded twice")
    if not parts:
        # transformer_config.py:1272
        yield refused(name, "it needs <offload_modules>", "offload_modules", law="nothing to offload")
    elif strange := parts - _OFFLOADABLE:
        what = f"it knows {', '.join(sorted(_OFFLOADABLE))}, not {', '.join(sorted(strange))}"
        # transformer_config.py:1283
        yield refused("offload_modules", what, value=" ".join(sorted(parts)), law="parts to offload")
    elif "attn_proj" in parts and "core_attn" not in parts:
        what = "attn_proj needs core_attn, whose output it takes"
        # transformer_config.py:1288
        yield refused("offload_modules", what, value=" ".join(sorted(parts)), law="projection offloaded alone")


@rule(_CONFIG)
def _graphs(config: Config) -> Iterator[Breach]:
    """CUDA graphs: one way to ask for them, of a kind that there is."""
    how = str(config.word("cuda_graph_impl", "none"))
    old = [name for name in ("enable_cuda_graph", "external_cuda_graph") if config.on(name)]
    if old and how != "none":
        # transformer_config.py:1672
        yield refused(old[0], "<cuda_graph_impl> says it", "cuda_graph_impl", law="graphs asked for twice")
    elif len(old) == 2:
        # transformer_config.py:1674
        yield refused(old[0], "one of them alone", old[1], law="two kinds of graphs")
    if how not in ("none", "local", "transformer_engine"):
        what = "the kinds are local and transformer_engine"
        # transformer_config.py:1717
        yield refused("cuda_graph_impl", what, value=how, law="kind of graph")
    scope = listed(config.word("cuda_graph_scope"))
    if strange := [name for name in scope if name not in _SCOPES]:
        what = f"the scopes are {', '.join(_SCOPES)}"
        # transformer_config.py:1711
        yield refused("cuda_graph_scope", what, value=" ".join(strange), law="scope of graphs")
    elif "full" in scope and len(scope) > 1:
        # transformer_config.py:1702
        yield refused("cuda_graph_scope", "full goes with no other", value=" ".join(scope), law="full and more")


@rule(_CONFIG)
def _graphed_experts(config: Config) -> Iterator[Breach]:
    """Parts of a layer of experts inside a graph."""
    how, scope = graphed(config), set(listed(config.word("cuda_graph_scope")))
    if how == "none":
        return
    name, text = "cuda_graph_scope", " ".join(sorted(scope))
    if how == "local" and scope & {"moe_router", "moe_preprocess"}:
        scope |= {"moe_router", "moe_preprocess"}  # it does not tell them apart
    if how == "transformer_engine" and "full_iteration" in scope:
        what = "a graph of the full iteration is local"
        # transformer_config.py:1739
        yield refused(name, what, "cuda_graph_impl", value=text, law="whole graphs")
    if {"moe", "moe_router"} <= scope:
        yield refused(name, "moe holds moe_router already", value=text, law="router twice")
    if "moe_preprocess" in scope and "moe_router" not in scope:
        yield refused(name, "moe_preprocess needs moe_router", value=text, law="preprocessing alone")
    if (config.experts or 1) == 1:
        if scope & {"moe", "moe_router"}:
            # transformer_config.py:1754
            yield refused(name, "the model has no experts", "experts", value=text, law="graphs without experts")
        return
    if "mlp" in scope and config.word("moe_layer_freq", 1) in (1, "1"):
        # transformer_config.py:1760
        yield refused(name, "every layer has experts, none is dense", value=text, law="graphs of no layer")
    factor = config.word("moe_expert_capacity_factor")
    bounded = factor is not None and not str(factor).startswith("-")
    if bounded and config.on("moe_pad_expert_input_to_capacity"):
        return
    if "moe" in scope:
        yield refused(name, "moe needs experts padded to their capacity", value=text, law="graphs of unpadded experts")
    synchronised = bounded or config.on("moe_router_padding_for_fp8")
    if config.word("moe_token_dispatcher_type") == "alltoall" and synchronised and "moe_preprocess" in scope:
        what = "moe_preprocess waits for the host here"
        yield refused(name, what, "moe_token_dispatcher_type", value=text, law="graphs that wait")


@rule(_CONFIG)
def _graphed_recomputation(config: Config) -> Iterator[Breach]:
    """What is recomputed inside a graph has no random number in it."""
    how, scope = graphed(config), set(listed(config.word("cuda_graph_scope"))) - {"full"}
    if how == "none":
        return
    if config.recompute == "full" and scope != {"full_iteration"}:
        what = "full recomputation works inside a graph of the full iteration alone"
        yield refused("cuda_graph_impl", what, "recompute", value=how, law="recomputed graphs")
    if not _selective(config):
        return
    parts, whole = _parts(config), not scope or "full_iteration" in scope
    if how == "transformer_engine" and "moe" in parts and "moe_router" in scope:
        what = "experts whose router is in a graph are not recomputed"
        # transformer_config.py:1793
        yield refused("recompute_modules", what, "cuda_graph_scope", value="moe", law="experts around a graph")
    for dropout, inside in (
        ("attention_dropout", {"core_attn": "attn"}),
        ("hidden_dropout", {"mlp": "mlp", "moe": "moe"}),
    ):
        graphed_parts = [part for part, place in inside.items() if part in parts and (whole or place in scope)]
        if graphed_parts and _share(config, dropout):
            what = f"{' and '.join(graphed_parts)} inside a graph is recomputed without dropout"
            law = f"{dropout} in a graph"
            yield refused(dropout, what, "recompute_modules", value="on", law=law, remedy=f"give <{dropout}> 0")


def _share(config: Config, name: str) -> float:
    """A dropout: what the configuration class takes by itself in a whole launch, none in a question."""
    value = config.word(name, _DROPOUT if config.whole else 0.0)
    try:
        return float(str(value))
    except ValueError:
        return 0.0


CORE_RULES: tuple[Rule, ...] = (
    _recomputation,
    _recomputed_modules,
    _offloading,
    _graphs,
    _graphed_experts,
    _graphed_recomputation,
    _precision,
    _ends_in_bf16,
    _linear_attention,
    _attention,
    _expert_sizes,
    _dispatch,
    _capacity,
    _router,
    _expert_overlap,
    _deferred_embedding,
    _instances,
    _widths,
    _sequence_over_tensor,
)
