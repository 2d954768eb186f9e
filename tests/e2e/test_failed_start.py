"""`tandem serve` of a model that cannot be loaded ends, and says why in its last line."""

from __future__ import annotations

import pytest

from tests.e2e.serving import START_TIMEOUT_S, begin

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_damaged_model_ends_the_start_with_the_reason(model, model_folder, tmp_path):
    folder, log = tmp_path / "model", tmp_path / "serve.log"
    folder.mkdir()
    for path in model_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    process = begin("--model", str(folder), "--prefill-replicas", "0", log=log)
    try:
        assert process.wait(START_TIMEOUT_S) != 0
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert "model.safetensors is cut short or damaged at " in text.splitlines()[-1]
    assert "Traceback" not in text and "\nready" not in text
