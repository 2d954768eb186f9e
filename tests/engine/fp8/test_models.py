"""Models in FP8 of each form: brought back on a CPU, and kept in FP8 where a device has it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.fp8.module import Fp8Linear
from engine.kv.cache import KvCache
from engine.model.fused_forward import CompactRunner
from engine.model.fused_weights import read
from engine.model.loading import load_weights
from engine.model.ops_cuda import TritonOps
from engine.model.ops_torch import TorchOps
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model.self_check import check_runner, check_tokens, probe_layout, reference_logits
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.families import SERVED, save
from tests.engine.kinds import why_no_triton
from tests.engine.model.test_families import BLOCKS, NEW_TOKENS, generate
from tests.fp8_models import FORMS, rounded_inputs, save_fp8, wide_shape

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def kept(monkeypatch):
    """As if the CPU had products in FP8, which torch computes there too."""
    monkeypatch.setattr("engine.model.loading.has_fp8", lambda device: True)


def saved(folder, form, family="llama", **more):
    """A model in FP8 in `folder`, and the module of what its weights mean, in float32."""
    name, extra = SERVED[family]
    model = save(folder, name, {**extra, **wide_shape(), **more})
    save_fp8(folder, model, form)
    return model


def changed(folder, change):
    """Rewrite the stored tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def loaded(folder, dtype="bfloat16"):
    return load_weights(describe(ModelConfig(path=str(folder), dtype=dtype)), CPU)


@pytest.mark.parametrize("family", ["llama-tied", "qwen2-sliding", "qwen3", "phi3", "phi"])
def test_the_tokens_are_those_of_the_weights_brought_back(form, family, tmp_path):
    reference = saved(tmp_path, form, family)
    config = ModelConfig(path=str(tmp_path), dtype="float32", forward="compact")
    kv = KvConfig(blocks=BLOCKS)
    engine = Engine.load(describe(config), kv, config, device=CPU, most_tokens=1)
    prompts = [[(11 * i + n) % 500 + 3 for i in range(n)] for n in (1, 17, 70)]
    expected = [
        reference.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )[0].tolist()
        for prompt in prompts
    ]
    assert generate(engine, prompts) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_weight_is_its_number_times_its_scale_and_then_rounded(form, dtype, tmp_path):
    reference = saved(tmp_path, form).to(getattr(torch, dtype))
    found, wanted = (dict(one.named_parameters()) for one in (loaded(tmp_path, dtype), reference))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("operations", [TorchOps, TritonOps])
@pytest.mark.parametrize("family", ["llama", "qwen2-sliding"])
def test_weights_that_stay_in_fp8_give_nearly_the_logits_of_float32(
    form, family, operations, tmp_path, kept
):
    if operations is TritonOps and (reason := why_no_triton()):
        pytest.skip(reason)
    # Smaller weights, because attention to single tokens makes much of small differences.
    reference = saved(tmp_path, form, family, initializer_range=0.05)
    rounded_inputs(reference, form)
    description = describe(ModelConfig(path=str(tmp_path), dtype="bfloat16"))
    model, tokens = load_weights(description, DEVICE), check_tokens(description)
    layout, own = probe_layout(description, model, 16), reference_logits(model, tokens)
    decoder = read(model, 256)
    runner = CompactRunner(decoder, operations(decoder))
    check_runner(description, runner, layout, DEVICE, own)
    sequence = Sequence("a", tokens, len(tokens), SamplingParams(temperature=0.0), blocks=[1, 0])
    batch = pack([Span(sequence, 0, len(tokens))], KvCache(layout, 2, DEVICE))
    with torch.inference_mode():
        got = whole(runner.layers(batch))[0].float().cpu()
        expected = reference(torch.tensor([tokens])).logits[0, -1]
    for logits in (got, own.cpu()):
        # Numbers in bfloat16 are rounded to FP8 to the other side now and then.
        assert (logits - expected).norm() <= 0.12 * expected.norm()


def test_the_module_of_weights_that_stay_in_fp8_rounds_inputs_alone(form, tmp_path, kept):
    reference = saved(tmp_path, form)
    rounded_inputs(reference, form)
    model, tokens = loaded(tmp_path, "float32"), list(range(5, 30))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0, -1]
    found = reference_logits(model, tokens)
    assert (found - expected).norm() <= 1e-3 * expected.norm()


def test_an_engine_begins_with_weights_that_stay_in_fp8(tmp_path, kept):
    saved(tmp_path, "fine-grained")
    for forward in ("compact", "transformers"):
        config = ModelConfig(path=str(tmp_path), forward=forward, operations="torch")
        kv = KvConfig(blocks=BLOCKS)
        engine = Engine.load(describe(config), kv, config, device=CPU, most_tokens=1)
        assert len(generate(engine, [[5, 6, 7]])[0]) == 3 + NEW_TOKENS


def test_weights_that_stay_in_fp8_take_a_byte_and_are_fused_without_a_copy(form, tmp_path, kept):
    saved(tmp_path, form)
    model = loaded(tmp_path)
    places = {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert isinstance(model.model.layers[0].mlp.down_proj, Fp8Linear)
    for layer in read(model, 64).layers:
        for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
            assert linear.weight.itemsize == 1
            assert linear.weight.untyped_storage().data_ptr() in places
            rows, columns = linear.weight.shape
            grid = (-(-rows // linear.scales.height), -(-columns // linear.scales.width))
            assert linear.scales.weight.shape == grid


def test_kv_of_weights_that_stay_in_fp8_is_not_exchanged_with_that_of_others(tmp_path, kept):
    saved(tmp_path, "fine-grained")
    description = describe(ModelConfig(path=str(tmp_path)))
    here = probe_layout(description, load_weights(description, CPU), 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.model.loading.has_fp8", lambda device: False)
        there = probe_layout(description, load_weights(description, CPU), 16)
    assert "model_identity" in here.difference(there)


def test_experts_in_fp8_are_refused(tmp_path):
    name, extra = SERVED["mixtral"]
    save_fp8(tmp_path, save(tmp_path, name, extra), "fine-grained")
    assert read(loaded(tmp_path), 64).layers[0].experts is not None  # attention alone is in FP8
    stack = "model.layers.0.mlp.experts.down_proj"
    one = "model.layers.0.block_sparse_moe.experts.0.w2.weight"
    changed(tmp_path, lambda t: t.update({one: t.pop(stack)[0].to(torch.float8_e4m3fn)}))
    with pytest.raises(
        UnsupportedModel, match=r"experts\.0\.w2\.weight is stored in FP8 and is no"
    ):
        loaded(tmp_path)


def test_weights_without_scales_and_of_other_layers_are_refused(tmp_path, kept):
    saved(tmp_path, "compressed by tensor")
    name = "model.layers.1.mlp.up_proj.weight_scale"
    changed(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(UnsupportedModel, match=r"1\.mlp\.up_proj\.weight .* without a scale"):
        loaded(tmp_path)
    changed(tmp_path, lambda tensors: tensors.update({name: torch.ones(7)}))
    with pytest.raises(UnsupportedModel, match=r"scales of shape \[7\] for weights \[320, 192\]"):
        read(loaded(tmp_path), 64)
    name = "model.embed_tokens.weight"
    changed(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(UnsupportedModel, match=r"embed_tokens\.weight is stored in FP8 and is no"):
        loaded(tmp_path)


def test_projections_that_are_fused_are_all_in_fp8_or_none(tmp_path):
    saved(tmp_path, "compressed by tensor")
    name = "model.layers.0.self_attn.k_proj.weight"
    changed(tmp_path, lambda tensors: tensors.update({name: tensors[name].float()}))
    with pytest.raises(UnsupportedModel, match="q_proj, k_proj, v_proj only some are FP8"):
        loaded(tmp_path)


def test_names_of_a_base_model_are_refused(tmp_path):
    """`transformers` alone knows where these weights belong, and not how to bring them back."""
    saved(tmp_path, "compressed by tensor")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match="FP8"):
        loaded(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]
