"""Parameters of named models of 2025 and 2026, all and active ones, as their cards and reports print them."""

import pytest

from debubble.core.errors import InputError
from debubble.estimate.model import active_parameters, embedding_parameters, parameters
from debubble.estimate.read_model import model_of_config, read_model

# Billions of parameters as published, all and active. Cards count the active ones with both embeddings (*all*), without
# the table of the input (*head*), or without either (*none*); None where a card prints less than two digits of it.
PUBLISHED = {
    "qwen3-8b": (8.2, 8.2, "all"),
    "qwen3-14b": (14.8, 14.8, "all"),
    "qwen3-32b": (32.8, 32.8, "all"),
    "qwen3-30b-a3b": (30.5, 3.3, "all"),
    "qwen3-235b-a22b": (235, 22, "all"),
    "qwen3-next-80b-a3b": (80, None, ""),
    "gpt-oss-120b": (
        116.83,
        5.13,
        "head",
    ),  # arXiv 2508.10925, table 1
    "gpt-oss-20b": (20.91, 3.61, "head"),
    "kimi-k2": (1040, 32.6, "all"),
    "llama4-scout": (109, 17, "all"),
    "llama4-maverick": (400, 17, "all"),
    "nemotron-3-nano-30b-a3b": (31.6, 3.6, "all"),  # 3.2 without embeddings
    "nemotron-h-8b": (8.1, 8.1, "all"),
    "nemotron-nano-9b-v2": (8.89, 8.89, "all"),
    "nemotron-nano-12b-v2": (12.31, 12.31, "all"),
    "glm-4.5": (355, 32, "none"),
    "glm-4.5-air": (106, 12, "none"),
    "minimax-m2": (230, None, ""),
    "minimax-text-01": (456, 45.9, "none"),
    "jamba-mini": (52, 12, "all"),
    "granite-4.0-h-small": (32, None, ""),
    "gemma-3-27b": (27.43, 27.43, "all"),  # arXiv 2503.19786, table 1: 417 + 1,416 + 25,600 million
    "gemma-3-12b": (12.19, 12.19, "all"),
    "phi-4": (14.7, 14.7, "all"),
    "seed-oss-36b": (36, 36, "all"),
    "smollm3-3b": (3.08, 3.08, "all"),
    "ernie-4.5-300b-a47b": (300, 47, "all"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name):
    model, (total, active, counted) = read_model(name), PUBLISHED[name]
    assert parameters(model) / 1e9 == pytest.approx(total, rel=0.02)
    if active is not None:
        table = {"all": 0, "head": 1, "none": 2}[counted] * embedding_parameters(model)
        assert (active_parameters(model) - table) / 1e9 == pytest.approx(active, rel=0.02)


# Models that do not come with the package; below, billions of parameters, all and active, as their cards print them.
DBRX = {
    **{"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352},
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "tie_word_embeddings": False,
}
HUNYUAN_A13B = {
    **{"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128167},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128, "intermediate_size": 3072},
    **{"num_experts": 64, "moe_topk": 32 * [8], "num_shared_expert": 32 * [1], "moe_intermediate_size": 32 * [3072]},
    "tie_word_embeddings": True,
}
GEMMA_2_27B = {
    **{"model_type": "gemma2", "hidden_size": 4608, "num_hidden_layers": 46, "vocab_size": 256000},
    **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 36864},
    **{"sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh"},
}
OLMO_2_32B = {
    **{"model_type": "olmo2", "hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 100352},
    **{"num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648, "tie_word_embeddings": False},
}
OTHERS = [(DBRX, 132, 36), (HUNYUAN_A13B, 80, 13), (GEMMA_2_27B, 27.2, 27.2), (OLMO_2_32B, 32.2, 32.2)]


@pytest.mark.parametrize(("fields", "total", "active"), OTHERS, ids=["dbrx", "hunyuan", "gemma", "olmo"])
def test_tables_inside_lists_a_layer_and_ties_that_no_field_says_are_read(fields, total, active):
    model = model_of_config(fields, "other", "config.json")
    assert not model.warnings
    assert parameters(model) / 1e9 == pytest.approx(total, rel=0.02)
    assert active_parameters(model) / 1e9 == pytest.approx(active, rel=0.02)


def test_every_second_layer_of_gemma_2_looks_back_all_the_way_though_no_field_says_so():
    model = model_of_config(GEMMA_2_27B, "gemma", "config.json")
    assert sorted((kind.mixer.window, count) for kind, count in zip(model.kinds, model.counts, strict=True)) == [
        (0, 23),
        (4096, 23),
    ]


def test_a_table_inside_that_nothing_reads_is_a_line_and_a_list_of_unlike_sizes_a_fault():
    strange = config(mixer_config={"state_size": 64, "learned": True}, rope_scaling={"head_dim": 64})
    assert "mixer_config.state_size" in " ".join(model_of_config(strange, "strange", "config.json").warnings)
    assert "rope" not in " ".join(model_of_config(strange, "strange", "config.json").warnings)
    with pytest.raises(InputError, match="intermediate_size"):
        model_of_config(config(intermediate_size=[4096, 8192]), "strange", "config.json")


def config(**fields):
    plain = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    return plain | {"vocab_size": 32000, "intermediate_size": 4096} | fields


def words(**fields):
    model = model_of_config(config(**fields), "model", "config.json")
    names = [type(kind.mixer).__name__ if kind.mixer else "" for kind in model.kinds]
    return [names[place] for place in model.pattern]


@pytest.mark.parametrize(
    "fields",
    [
        {"attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16, "mamba_dt_rank": 64},
        {"layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"] * 2},
        {"attn_type_list": [0, 0, 1, 0] * 2},
        {"linear_attn_config": {"full_attn_layers": [3, 7], "kda_layers": [1, 2, 4, 5, 6, 8]}},
    ],
)
def test_each_family_says_in_its_own_words_which_layers_are_recurrent(fields):
    assert words(**fields) == ["Recurrent", "Recurrent", "Attention", "Recurrent"] * 2


def test_every_fourth_layer_of_an_interval_has_attention():
    assert words(full_attention_interval=4) == ["Recurrent", "Recurrent", "Recurrent", "Attention"] * 2


def test_letters_of_a_pattern_are_layers_of_one_part():
    model = model_of_config(config(hybrid_override_pattern="M-M*-|MM-", num_hidden_layers=8), "m", "c")
    assert model.letters == "M-M*-MM-"
    assert {kind.parts for kind in model.kinds} == {1}


def test_a_field_that_may_change_the_count_and_is_not_read_is_a_line():
    model = model_of_config(config(moe_latent_size=1024, max_position_embeddings=4096), "model", "config.json")
    assert [line for line in model.warnings if "moe_latent_size" in line]
    assert not [line for line in model.warnings if "max_position" in line]
    assert not model_of_config(config(), "model", "config.json").warnings
