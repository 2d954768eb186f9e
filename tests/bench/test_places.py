"""Where a comparison's model comes from."""

from __future__ import annotations

import argparse

from bench import places
from bench.places import add_places, prepare
from bench.shape import SIZES


def test_a_model_is_made_in_the_size_that_was_asked_for(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(places, "make", lambda folder, shape: made.append(shape) or folder)
    monkeypatch.setattr(places.signal, "signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    add_places(parser)
    for words, size in (([], "135m"), (["--size", "8b"], "8b")):
        options = parser.parse_args([*words, "--cache", str(tmp_path)])
        assert prepare(options).model == tmp_path / f"model-{size}"
        assert made.pop() == SIZES[size]


def test_the_large_shape_is_of_eight_billion():
    shape = SIZES["8b"]
    assert 6.5e9 < shape.layer_parameters + shape.head_parameters < 8.5e9
    assert shape.kv_bytes == 131_072
