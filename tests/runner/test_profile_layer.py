"""One layer by its sizes: causal, a gradient for every weight, and right against what is plain."""

import pytest
import torch
from torch.nn import functional

from debubble.runner.profile import Experts, Latent, Layer, LayerSizes, _angles, _Mixture, _turned, activated

SIZES = {
    "grouped": LayerSizes(32, 4, 2, 8, 48, 100),
    "plain": LayerSizes(32, 4, 4, 8, 64, 100, gated=False, biases=True, rotary=False),
    "latent": LayerSizes(32, 4, 4, 12, 48, 100, latent=Latent(16, 24, 4, 8)),
    "experts": LayerSizes(32, 4, 4, 8, 48, 100, experts=Experts(4, 4, 2, 16, 16)),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_layer_keeps_the_shape_of_its_input_looks_back_only_and_gives_every_weight_a_gradient(sizes):
    torch.manual_seed(0)
    layer, x = Layer(sizes), torch.randn(2, 6, 32)
    later = x.clone()
    later[:, 4:] += 1
    first, second = layer(x), layer(later)
    assert first.shape == x.shape
    if not sizes.experts:  # tokens of other samples share an expert, but never a value
        assert torch.allclose(first[:, :4], second[:, :4], atol=1e-6)
    first.square().sum().backward()
    grads = [p.grad for p in layer.parameters()]
    assert all(g is not None and g.isfinite().all() and g.abs().sum() > 0 for g in grads)


def test_a_turned_query_and_key_see_their_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (_turned(v.expand(1, 1, 16, 8))[0, 0] for v in (q, k))
    seen = turned_q @ turned_k.T
    assert torch.allclose(seen.diagonal(3), seen.diagonal(3)[0].expand(13), atol=1e-5)
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(16))
    assert _angles(16, 8, q.device, q.dtype)[0][0].tolist() == [1] * 8


def test_one_expert_that_all_tokens_pass_is_a_feed_forward():
    torch.manual_seed(0)
    sizes = LayerSizes(16, 1, 1, 16, 32, 10)
    mixture, x = _Mixture(sizes, Experts(1, 1, 1, 32, 0)), torch.randn(2, 5, 16)
    plain = functional.linear(activated(functional.linear(x, mixture.up[0].T), True), mixture.down[0].T)
    assert torch.allclose(mixture(x), plain, atol=1e-6)
