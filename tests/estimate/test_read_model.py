"""Reading models: Hugging Face fields, missing ones by name, unknown types with a warning, nearest names."""

import json

import pytest

from debubble.core.errors import InputError
from debubble.estimate.model import active_parameters, feed_forward_products, parameters
from debubble.estimate.read_model import model_of_config, read_model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}


def written(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_a_config_json_reads_as_the_named_model(tmp_path):
    assert parameters(read_model(written(tmp_path, LLAMA))) == parameters(read_model("llama3-8b"))


def test_deepseek_reads_with_latent_attention_experts_and_its_extra_head(tmp_path):
    model = read_model(written(tmp_path, DEEPSEEK))
    assert parameters(model) == parameters(read_model("deepseek-v3"))
    assert model.expert_layers == 58
    assert model.next_heads == 1
    assert active_parameters(model) / 1e9 == pytest.approx(37.55, abs=0.01)


def test_mixtral_keeps_the_width_of_its_experts_in_intermediate_size():
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
    assert parameters(model_of_config(config, "m", "m")) == parameters(read_model("mixtral-8x7b"))


@pytest.mark.parametrize("lost", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(tmp_path, lost):
    config = {key: value for key, value in LLAMA.items() if key != lost}
    with pytest.raises(InputError, match=f"{lost}: it is missing; add {lost}"):
        read_model(written(tmp_path, config))


def test_all_missing_fields_are_named_at_once(tmp_path):
    with pytest.raises(InputError) as caught:
        read_model(written(tmp_path, {"model_type": "llama"}))
    assert len(caught.value.faults) == 4


def test_an_unknown_model_type_is_planned_from_generic_fields_with_a_warning(tmp_path):
    model = read_model(written(tmp_path, {**LLAMA, "model_type": "novel"}))
    assert model.layers == 32
    assert "novel" in model.warnings[0]


@pytest.mark.parametrize(
    ("said", "gated"),
    [
        ({"hidden_act": "silu"}, True),
        ({"hidden_act": "swiglu"}, True),
        ({"hidden_act": "gelu"}, False),
        ({"activation_function": "gelu_new"}, False),
        ({"hidden_act": "relu2"}, False),
        ({"feed_forward_proj": "gated-gelu"}, True),
        ({"hidden_act": "gelu", "is_gated_act": True}, True),
        ({"hidden_act": "gelu_pytorch_tanh", "model_type": "gemma2"}, True),
        ({"hidden_activation": "gelu_pytorch_tanh", "model_type": "recurrent_gemma"}, True),
        ({"hidden_act": "silu", "model_type": "gpt_neox"}, False),
        ({}, True),
    ],
    ids=str,
)
def test_a_gate_is_what_the_type_is_known_for_or_else_what_the_activation_says(said, gated):
    model = model_of_config({**LLAMA, "model_type": "novel", **said}, "m", "m")
    assert model.last_kind.feed_forward.gated == gated
    up_and_down = (3 if gated else 2) * 4096 * 14336
    assert sum(p.weights for p in feed_forward_products(4096, model.last_kind.feed_forward)) == up_and_down


def test_the_field_that_tells_the_gate_of_an_unknown_type_is_named():
    model = model_of_config({**LLAMA, "model_type": "novel", "hidden_act": "gelu"}, "m", "m")
    assert "feed-forward without a gate (hidden_act = 'gelu')" in model.warnings[0]


def test_a_model_of_several_towers_is_read_from_its_text_config(tmp_path):
    model = read_model(written(tmp_path, {"model_type": "llava", "text_config": LLAMA}))
    assert parameters(model) == parameters(read_model("llama3-8b"))


def test_a_mistyped_name_gets_the_nearest():
    with pytest.raises(InputError, match="llama3-70b"):
        read_model("lama3-70b")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": NaN', "null", '{"num_hidden_layers": "many"}'])
def test_broken_files_give_one_clear_line(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_model(str(path))
