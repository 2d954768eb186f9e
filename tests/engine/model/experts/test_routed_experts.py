"""The MLPs with experts of `transformers`' modules, in float32, float64 and without values."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.model.experts.grouped_product import product_by_loop, product_by_torch
from engine.model.experts.module_experts import experts_of, why_not
from engine.model.experts.routed_experts import RoutedExperts
from engine.model.fused_weights import read
from engine.model.ops_torch import TorchOps
from tests.engine.families import SERVED, config_of

FAMILIES = {name: SERVED[name] for name in ("mixtral", "qwen3-moe", "gpt-oss-sinks")}
NOT_RENORMALISED = ("Qwen3MoeConfig", {**SERVED["qwen3-moe"][1], "norm_topk_prob": False})
FAMILIES["qwen3-moe, not renormalised"] = NOT_RENORMALISED


def module_of(family, dtype=torch.float32):
    torch.manual_seed(5)
    config = config_of(*{**SERVED, **FAMILIES}[family])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    model.set_experts_implementation("eager")
    return model


def routed(mlp, config, product):
    """The experts of a module's MLP, with torch's operations."""
    found = experts_of(mlp, config)
    (gate_up, bias), (down, down_bias) = found.gate_up, found.down
    gate = found.experts.gate

    def gated(rows, experts):
        if gate is not None:
            return gate(rows + bias[experts])
        low, high = rows.chunk(2, dim=-1)
        return torch.nn.functional.silu(low) * high

    return RoutedExperts(found.experts.router, gate_up, gated, down, down_bias, product)


@pytest.mark.parametrize("product", [product_by_loop, product_by_torch])
@pytest.mark.parametrize("tokens", [1, 7, 50])
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_answer_as_the_module_does(family, tokens, product):
    model = module_of(family)
    mlp = model.model.layers[0].mlp
    x = torch.randn(tokens, 64)
    expected = mlp(x[None])
    expected = expected[0] if isinstance(expected, tuple) else expected
    found = routed(mlp, model.config, product)(x)
    torch.testing.assert_close(found, expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_routed_bit_for_bit_as_the_module_routes_them(family, dtype):
    model = module_of(family, dtype)
    mlp = model.model.layers[0].mlp
    x = torch.randn(200, 64).to(dtype)
    _, shares, chosen = (mlp.router if family.startswith("gpt") else mlp.gate)(x)
    router = experts_of(mlp, model.config).experts.router
    found, found_shares = router.route(x)
    assert torch.equal(found, chosen)
    assert torch.equal(found_shares, shares)
    assert found_shares.dtype == shares.dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_gets_its_answer_whatever_comes_with_it(family):
    model = module_of(family)
    experts = routed(model.model.layers[0].mlp, model.config, product_by_loop)
    x = torch.randn(40, 64)
    alone = torch.cat([experts(row[None]) for row in x])
    torch.testing.assert_close(experts(x), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_waits_for_values_on_the_device(family):
    """So that a step can be recorded: without values, an operation that needs one raises."""
    model = module_of(family, torch.bfloat16).to("meta")
    x = torch.empty(12, 64, dtype=torch.bfloat16, device="meta")
    mlp = model.model.layers[0].mlp
    assert routed(mlp, model.config, product_by_torch)(x).shape == (12, 64)
    with pytest.raises((NotImplementedError, RuntimeError)):
        routed(mlp, model.config, product_by_loop)(x)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_of_an_expert_is_copied(family):
    model = module_of(family)
    places = {one.untyped_storage().data_ptr() for one in model.parameters()}
    layers = read(model, 64).layers
    layer = layers[-1]
    assert layer.experts is not None
    stacked = (layer.gate_up.weight, layer.down.weight, layer.experts.router.weight)
    assert {one.untyped_storage().data_ptr() for one in stacked} <= places
    assert all(parameter.is_meta for parameter in model.model.layers[0].mlp.parameters())


def test_unknown_experts_are_told():
    model = module_of("mixtral")
    assert why_not(model.config, model) is None
    model.config.hidden_act = "gelu"
    assert why_not(model.config, model) == "activation gelu"
    model.config.hidden_act = "silu"
    experts = model.model.layers[2].mlp.experts
    experts.gate_up_proj = torch.nn.Parameter(torch.zeros(4, 64, 192))
    assert why_not(model.config, model) == "experts of shape (4, 64, 192)"


def test_layers_with_and_without_experts_are_told_apart():
    model = module_of("qwen3-moe-some-dense")
    decoder = read(model, 64)
    assert [layer.experts is not None for layer in decoder.layers] == [False, True, False]
    ready = TorchOps(decoder).prepare(decoder.layers[1])
    assert isinstance(ready.mlp, RoutedExperts)
