"""Models with quantised weights are refused by name, before anything is fetched or allocated.

Those in FP8 are not, if both weights and inputs are of the supported forms.
"""

import json
from pathlib import Path

import huggingface_hub
import pytest

from engine.config import ModelConfig
from engine.errors import UnsupportedModel
from engine.model_description import describe, resolve
from engine.quantization import has_fp8_weights, quantisation_of
from tests import tiny
from tests.fp8_models import FINE, FORMS, compressed

KINDS = {
    "AWQ": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "GPTQ": {"quant_method": "gptq", "bits": 4},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "FP8": {**FINE, "weight_block_size": [64, 64]},
    "FBGEMM's FP8": {"quant_method": "fbgemm_fp8"},
    "hqq": {"quant_method": "hqq"},
    "a method without a name": {"bits": 3},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_quantised_model_is_refused_by_name(name, tmp_path):
    tiny.make(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": KINDS[name]}))
    with pytest.raises(UnsupportedModel) as refusal:
        describe(ModelConfig(path=str(tmp_path)))
    assert f"quantised ({name}" in refusal.value.message
    assert "\n" not in refusal.value.message


def group(**changes):
    """The section of compressed-tensors by channel, with changes in its only group."""
    section = compressed("channel")
    section["config_groups"]["group_0"] |= changes
    return section


NUMBERS = {"type": "float", "num_bits": 8, "symmetric": True}
REASONS = {
    "weight_block_size [64, 64]": {**FINE, "weight_block_size": [64, 64]},
    "activation_scheme none": {**FINE, "activation_scheme": "none"},
    "fmt e5m2": {**FINE, "fmt": "e5m2"},
    "format pack-quantized": compressed("channel") | {"format": "pack-quantized"},
    "format int-quantized": group(format="int-quantized"),
    "weights of type int in 8 bits": group(weights={**NUMBERS, "type": "int"}),
    "weights of type float in 4 bits": group(weights={**NUMBERS, "num_bits": 4}),
    "weights by group": group(weights={**NUMBERS, "strategy": "group"}),
    "block_structure [64, 128]": compressed("block", block_structure=[64, 128]),
    "weights alone": group(input_activations=None),
    "inputs by group": group(input_activations={**NUMBERS, "strategy": "group"}),
    "activations that are not FP8 inputs": group(output_activations=NUMBERS),
    "sparse weights": compressed("channel") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    "without config_groups": {"quant_method": "compressed-tensors"},
}


@pytest.mark.parametrize("reason", REASONS)
def test_another_form_of_fp8_is_refused_with_the_reason(reason):
    assert f", {reason}" in quantisation_of({"quantization_config": REASONS[reason]})


@pytest.mark.parametrize("form", FORMS)
def test_fp8_in_a_supported_form_is_not_refused(form):
    config = {"quantization_config": FORMS[form]}
    assert quantisation_of(config) is None
    assert has_fp8_weights(config)
    assert not has_fp8_weights({"quantization_config": {"quant_method": "mxfp4"}})
    assert not has_fp8_weights({})


def test_a_quantised_model_of_the_hub_is_refused_before_its_weights_are_fetched(
    tmp_path, monkeypatch
):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": KINDS["AWQ"]}))
    asked = []

    def fetch(name, file):
        asked.append((name, file))
        return str(tmp_path / file)

    def fetch_all(*arguments, **options):
        raise AssertionError("the weights were fetched")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch_all)
    with pytest.raises(UnsupportedModel, match=r"quantised \(AWQ\)"):
        resolve("owner/model-awq")
    assert asked == [("owner/model-awq", "config.json")]


def test_other_models_of_the_hub_are_fetched_whole(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(tmp_path / file))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert resolve("owner/model") == Path(tmp_path)


def test_sections_of_a_text_model_inside_another_count():
    assert quantisation_of({"text_config": {"quantization_config": KINDS["GPTQ"]}}) == "GPTQ"
    assert quantisation_of({"compression_config": {"format": "int"}}) is not None
    assert quantisation_of({"quantization_config": {"quant_method": "mxfp4"}}) is None
    assert quantisation_of({"quantization_config": None, "text_config": None}) is None
