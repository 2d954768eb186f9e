"""The model made from a seed, and its one word for each token."""

from __future__ import annotations

import pytest
from safetensors import safe_open

from bench.core.model_135m import EOS, ModelShape, make
from bench.core.prompts import as_text, count_tokens, prompt_ids
from engine.text.tokenizer import Tokenizer

SMALL = ModelShape(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bench") / "model", SMALL)


def test_a_text_has_as_many_tokens_as_words(folder):
    tokenizer = Tokenizer.load(str(folder))
    ids = prompt_ids(128, SMALL.vocabulary, "a")
    assert tokenizer.encode(as_text(ids)) == ids
    assert tokenizer.decode(ids) == as_text(ids)
    assert count_tokens(tokenizer.decode(ids)) == 128
    assert tokenizer.eos_ids == {EOS}


def test_prompts_are_decided_by_their_name():
    assert prompt_ids(40, 300, "a") == prompt_ids(40, 300, "a")
    assert prompt_ids(40, 300, "a") != prompt_ids(40, 300, "b")
    assert min(prompt_ids(2000, 300, "a")) == 3


def test_the_sizes_are_those_of_the_weights(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    matrices = [shape for name, shape in sizes.items() if ".layers." in name and len(shape) == 2]
    assert sum(rows * columns for rows, columns in matrices) == SMALL.layer_parameters
    rows, columns = sizes["model.embed_tokens.weight"]
    assert rows * columns == SMALL.head_parameters


def test_it_is_made_once(folder):
    weights = folder / "model.safetensors"
    written = weights.stat().st_mtime_ns
    make(folder, SMALL)
    assert weights.stat().st_mtime_ns == written


def test_the_measured_shape_has_135_million_parameters():
    shape = ModelShape()
    assert shape.layer_parameters + shape.head_parameters == 134_479_872
    assert shape.kv_bytes == 23_040
