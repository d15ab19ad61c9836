"""What Megatron-Core's configuration classes refuse of recomputation, offloading and CUDA graphs.

Each rule names the method that checks it, in megatron-core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Value
from .framework import Breach, Rule, rule

_CONFIG = "transformer_config.py TransformerConfig.__post_init__"
_RECOMPUTABLE = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}
_OFFLOADABLE = {"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"}
_SCOPES = ("full", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_DROPOUT = 0.1  # of attention and of the hidden state, where nothing is said


def refused(name: str, what: str, *others: str, law: str, value: str = "on", remedy: str = "") -> Breach:
    """A word of the framework that goes neither alone nor with these others."""
    return Breach(law, (name, *others), what, remedy or f"leave out <{name}>", value)


def listed(value: Value) -> tuple[str, ...]:
    """A list of words, however it was written."""
    if value is None:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else tuple(str(value).replace(",", " ").split())


def count(config: Config, name: str, otherwise: int) -> int:
    """A framework's own word that is a whole number."""
    text = str(config.word(name, otherwise))
    return int(text) if text.lstrip("-").isdecimal() else otherwise


def graphed(config: Config) -> str:
    """Who captures graphs: ``none``, ``local`` or ``transformer_engine``; former switches say it too."""
    how = str(config.word("cuda_graph_impl", "none"))
    if how != "none":
        return how
    return (
        "local"
        if config.on("enable_cuda_graph")
        else "transformer_engine"
        if config.on("external_cuda_graph")
        else "none"
    )


def _selective(config: Config) -> bool:
    """Whether parts of layers are recomputed; a former switch says it of experts."""
    return config.recompute == "selective" or (config.recompute == "none" and config.on("moe_layer_recompute"))


def _parts(config: Config) -> set[str]:
    """The parts that a selective recomputation runs again."""
    again = {"moe"} if config.on("moe_layer_recompute") else set()
    return set(config.recompute_modules or ("core_attn",)) | again


@rule(_CONFIG)
def _recomputed_modules(config: Config) -> Iterator[Breach]:
    """A selective recomputation names parts that there are."""
    if config.recompute == "full" and config.on("moe_layer_recompute"):
        yield refused("moe_layer_recompute", "everything is recomputed already", "recompute", law="experts again")
    if config.recompute != "none" and config.on("distribute_saved_activations") and config.sequence_parallel:
        what = "sequence parallelism spreads activations already"
        yield refused("distribute_saved_activations", what, "sequence_parallel", law="activations spread twice")
    if config.recompute != "selective":
        return
    name, parts = "recompute_modules", _parts(config)
    text = " ".join(sorted(parts))
    if strange := parts - _RECOMPUTABLE:
        what = f"it knows {', '.join(sorted(_RECOMPUTABLE))}, not {', '.join(sorted(strange))}"
        yield refused(name, what, value=text, law="parts to recompute")
    if "moe_act" in parts and not config.on("moe_grouped_gemm"):
        what, other = "moe_act needs <moe_grouped_gemm>", "moe_grouped_gemm"
        yield refused(name, what, other, value=text, law="activation of experts again")
    if "mla_up_proj" in parts and not config.on("multi_latent_attention"):
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
        yield refused(name, what, "moe_shared_expert_overlap", value=text, law="shared experts again")
    delayed = config.word("fp8") and config.word("fp8_recipe", "delayed") == "delayed"
    if delayed and parts & {"moe_act", "layernorm"}:
        what = "delayed scaling recomputes neither moe_act nor layernorm"
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
            yield refused("cpu_offloading", "graphs are not offloaded", "cuda_graph_impl", law="offloaded graphs")
    name = "fine_grained_activation_offloading"
    if not config.on(name):
        return
    parts = set(listed(config.word("offload_modules")))
    if config.on("cpu_offloading"):
        yield refused(name, "it is another way of <cpu_offloading>", "cpu_offloading", law="offloaded twice")
    if not parts:
        yield refused(name, "it needs <offload_modules>", "offload_modules", law="nothing to offload")
    elif strange := parts - _OFFLOADABLE:
        what = f"it knows {', '.join(sorted(_OFFLOADABLE))}, not {', '.join(sorted(strange))}"
        yield refused("offload_modules", what, value=" ".join(sorted(parts)), law="parts to offload")
    elif "attn_proj" in parts and "core_attn" not in parts:
        what = "attn_proj needs core_attn, whose output it takes"
        yield refused("offload_modules", what, value=" ".join(sorted(parts)), law="projection offloaded alone")


@rule(_CONFIG)
def _graphs(config: Config) -> Iterator[Breach]:
    """CUDA graphs: one way to ask for them, of a kind that there is."""
    how = str(config.word("cuda_graph_impl", "none"))
    old = [name for name in ("enable_cuda_graph", "external_cuda_graph") if config.on(name)]
    if old and how != "none":
        yield refused(old[0], "<cuda_graph_impl> says it", "cuda_graph_impl", law="graphs asked for twice")
    elif len(old) == 2:
        yield refused(old[0], "one of them alone", old[1], law="two kinds of graphs")
    if how not in ("none", "local", "transformer_engine"):
        what = "the kinds are local and transformer_engine"
        yield refused("cuda_graph_impl", what, value=how, law="kind of graph")
    scope = listed(config.word("cuda_graph_scope"))
    if strange := [name for name in scope if name not in _SCOPES]:
        what = f"the scopes are {', '.join(_SCOPES)}"
        yield refused("cuda_graph_scope", what, value=" ".join(strange), law="scope of graphs")
    elif "full" in scope and len(scope) > 1:
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
        yield refused(name, what, "cuda_graph_impl", value=text, law="whole graphs")
    if {"moe", "moe_router"} <= scope:
        yield refused(name, "moe holds moe_router already", value=text, law="router twice")
    if "moe_preprocess" in scope and "moe_router" not in scope:
        yield refused(name, "moe_preprocess needs moe_router", value=text, law="preprocessing alone")
    if (config.experts or 1) == 1:
        if scope & {"moe", "moe_router"}:
            yield refused(name, "the model has no experts", "experts", value=text, law="graphs without experts")
        return
    if "mlp" in scope and config.word("moe_layer_freq", 1) in (1, "1"):
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


MEMORY_RULES: tuple[Rule, ...] = (
    _recomputed_modules,
    _offloading,
    _graphs,
    _graphed_experts,
    _graphed_recomputation,
)
