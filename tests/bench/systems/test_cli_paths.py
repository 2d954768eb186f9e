"""Where a comparison's model comes from."""

from __future__ import annotations

import argparse

from bench.core.model_135m import SIZES
from bench.core.results import RESULTS
from bench.systems import cli_paths as paths
from bench.systems.cli_paths import add_paths, open_record, prepare


def test_a_model_is_made_in_the_size_that_was_asked_for(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(paths, "make", lambda folder, shape: made.append(shape) or folder)
    monkeypatch.setattr(paths.signal, "signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    add_paths(parser)
    words = ["--cache", str(tmp_path)]
    options = parser.parse_args(words)
    assert prepare(options).model == tmp_path / "model-135m"
    assert options.results == RESULTS
    assert made.pop() == SIZES["135m"]
    options = parser.parse_args([*words, "--size", "8b"])
    assert prepare(options).model == tmp_path / "8b" / "model-8b"
    assert made.pop() == SIZES["8b"]
    # The figures in the repository, and in its documents, are of the other.
    assert options.results == RESULTS / "8b"
    assert open_record(options, "burst.jsonl").parent == tmp_path / "8b"


def test_the_large_shape_is_of_eight_billion():
    shape = SIZES["8b"]
    assert 6.5e9 < shape.layer_parameters + shape.head_parameters < 8.5e9
    assert shape.kv_bytes == 131_072
