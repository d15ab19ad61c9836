"""Parameters and FLOPs of named models against what their authors print."""

from dataclasses import replace

import pytest

from debubble.estimate.model import active_parameters, flops_per_token, layer_parameters, parameters
from debubble.estimate.read_model import known_models, read_model

# Parameters in units of 10^9 as the model cards and papers print them, to the digits printed there.
PRINTED = {
    "llama2-7b": 6.74,
    "llama2-13b": 13.02,
    "llama2-70b": 68.98,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.85,
    "mistral-7b": 7.24,
    "mixtral-8x7b": 46.70,
    "mixtral-8x22b": 140.63,
    "qwen2.5-7b": 7.62,
    "qwen2.5-32b": 32.76,
    "qwen2.5-72b": 72.71,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09,
    "deepseek-v2": 235.74,
    "deepseek-v3": 671.03,
    "bloom-176b": 176.25,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.8,
}


@pytest.mark.parametrize(("name", "printed"), PRINTED.items())
def test_parameters_are_those_that_the_authors_print(name, printed):
    assert parameters(read_model(name)) / 1e9 == pytest.approx(printed, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "printed"), [("deepseek-v3", 37), ("deepseek-v2", 21), ("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3)]
)
def test_a_token_meets_the_active_parameters_that_the_authors_print(name, printed):
    assert active_parameters(read_model(name)) / 1e9 == pytest.approx(printed, rel=0.03)


@pytest.mark.parametrize(
    "name", ["gpt-1.7b", "gpt-3.6b", "gpt-7.5b", "gpt-18b", "gpt-39b", "gpt-76b", "gpt-145b", "gpt-310b", "gpt-1t"]
)
def test_flops_of_a_token_match_equation_3_of_narayanan_2021(name):
    """96 B s l h^2 (1 + s/(6h) + V/(16 l h)) with full recomputation and dense attention: 3/4 of it without."""
    m, s = read_model(name), 2048
    theirs = 72 * m.layers * m.hidden**2 * (1 + s / (6 * m.hidden) + m.vocab / (12 * m.layers * m.hidden))
    causal = 6 * s * m.hidden * m.layers  # we count the half of the scores that a causal model needs
    assert flops_per_token(m, s) == pytest.approx(theirs - causal, rel=1e-9)


def test_flops_of_nanotron_models_match_what_its_mfu_implies(shared):
    """1B: 11.271 GFLOP a token at sequence 4,096, scores counted dense, tied embeddings twice at p=2."""
    from debubble.estimate.model import transformer

    sizes = {"layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "kv_heads": 32, "vocab": 131072}
    model = replace(transformer("1B", **sizes), tied=True)
    dense = flops_per_token(model, 4096) + 6 * 4096 * 2048 * 16
    assert dense + 6 * 131072 * 2048 == pytest.approx(11.271e9, rel=0.01)


def test_every_shipped_model_has_a_source_and_reads():
    import tomllib

    from debubble.estimate.read_model import FOLDER

    assert len(known_models()) >= 20
    for file in FOLDER.glob("*.toml"):
        table = tomllib.loads(file.read_text())
        assert table["source"].strip(), file.name
        assert parameters(read_model(file.stem)) > 1e8


def test_latent_attention_of_deepseek_v3_has_187_million_parameters_its_two_norms_among_them():
    """128 heads of 128 + 64: queries through 1,536 numbers, keys and values through 512, each with its norm."""
    model = read_model("deepseek-v3")
    mixer = replace(model.last_kind, feed_forward=None)
    queries = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys_and_values = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    out = 128 * 128 * 7168
    norms = 7168 + 1536 + 512
    assert layer_parameters(model, mixer) == queries + keys_and_values + out + norms
    assert queries + keys_and_values + out + norms == 187_114_496
