"""Models with quantised weights are refused by name, before anything is fetched or allocated."""

import json
from pathlib import Path

import huggingface_hub
import pytest

from engine.config import ModelConfig
from engine.errors import UnsupportedModel
from engine.model_description import describe, resolve
from engine.quantization import quantisation_of
from tests import tiny

KINDS = {
    "AWQ": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "GPTQ": {"quant_method": "gptq", "bits": 4},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "FP8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
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
    assert f"quantised ({name})" in refusal.value.message
    assert "\n" not in refusal.value.message


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
