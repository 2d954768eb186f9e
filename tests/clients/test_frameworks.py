"""Frameworks that applications and evaluations are written with."""

from __future__ import annotations

import json

from tests.clients.conftest import DEMO

LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="demo", temperature=0, max_tokens=12)
whole = model.invoke("What is prefill?")
pieces = [piece.content for piece in model.stream("What is prefill?")]
try:
    model.invoke("hello " * 6000)
except Exception as error:
    long = type(error).__name__
print(json.dumps({"whole": whole.content, "pieces": pieces, "long": long,
                  "tokens": whole.usage_metadata["output_tokens"]}))
"""
TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: "%s"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: label
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}]
"""


def test_langchain(serving, run):
    found = json.loads(
        run("gateways/bin/python", "-", serving.http, stdin=LANGCHAIN).splitlines()[-1]
    )
    assert found["tokens"] == 12
    assert "".join(found["pieces"]) == found["whole"]
    assert len([piece for piece in found["pieces"] if piece]) > 1
    assert found["long"] == "OpenAIContextOverflowError"


def test_lm_eval(serving, run, tmp_path):
    """Its multiple choice scores texts with `echo`."""
    rows = [{"question": f"{n} is", "choices": [" even", " odd"], "label": n % 2} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "capitals.yaml").write_text(TASK % (tmp_path / "rows.jsonl"))
    model = f"model=demo,base_url={serving.http}/completions,tokenizer={DEMO},num_concurrent=2"
    run(
        "load-clients/bin/lm_eval",
        "--model",
        "local-completions",
        "--model_args",
        model,
        "--include_path",
        str(tmp_path / "tasks"),
        "--tasks",
        "capitals",
        "--output_path",
        str(tmp_path / "found"),
    )
    (report,) = (tmp_path / "found").rglob("results_*.json")
    found = json.loads(report.read_text())
    assert 0.0 <= found["results"]["capitals"]["acc,none"] <= 1.0
    assert found["n-samples"]["capitals"]["effective"] == 6
