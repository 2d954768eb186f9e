"""The demo model: its folder, its tokenizer, its text, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from models.evaluate_demo import KNOWN_QUESTIONS, answer_all, load, missed
from models.facts import (
    MODEL_FOLDER,
    Question,
    is_answered,
    known_questions,
    load_facts,
    load_held_out,
    normal_form,
)

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
ODD_TEXTS = (
    "",
    " ",
    "plain words, with  two spaces",
    "\tindented\r\nline\n\n\n",
    "naïve façade \u2013 “quoted” … €",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 👍🏽",
    "漢字かな交じり文 한국어 汉语",
    "مرحبا שלום नमस्ते",
    "control \x00\x01\x07\x1b[31m\x7f\u0085\u200b\ufeff\ufffd",
    "e\u0301 is not \u00e9; \U0001d518\U0001d52b \U0010fffd",
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def loaded(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[PreTrainedModel, PreTrainedTokenizerBase]]:
    yield load(MODEL_FOLDER, request.param)


@pytest.mark.parametrize("name", FILES)
def test_the_folder_is_complete(name: str) -> None:
    assert (MODEL_FOLDER / name).stat().st_size > 0


def test_the_weights_are_small() -> None:
    assert (MODEL_FOLDER / "model.safetensors").stat().st_size <= 8_000_000


def test_the_config_is_a_llama_with_grouped_queries() -> None:
    config = AutoConfig.from_pretrained(MODEL_FOLDER)
    assert config.model_type == "llama"
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.max_position_embeddings >= 4096


def test_both_configs_and_the_tokenizer_agree_on_eos(tokenizer: PreTrainedTokenizerBase) -> None:
    names = ("config.json", "generation_config.json")
    ends = {json.loads((MODEL_FOLDER / name).read_text("utf-8"))["eos_token_id"] for name in names}
    assert ends == {tokenizer.eos_token_id}


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id is None


def test_every_byte_has_a_token(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "".join(chr(point) for point in range(0x250))
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_the_chat_template_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is TTFT?"},
        {"role": "assistant", "content": "A time."},
        {"role": "user", "content": " And TPOT? "},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|begin|><|system|>Be brief.<|end|><|user|>What is TTFT?<|end|>"
        "<|assistant|>A time.<|end|><|user|>And TPOT?<|end|><|assistant|>"
    )
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    assert ids["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_chat_template_refuses_an_unknown_role(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(Exception, match="unknown role"):
        tokenizer.apply_chat_template([{"role": "judge", "content": "?"}], tokenize=False)


def test_each_fact_is_distinguished_by_its_key_words() -> None:
    facts = load_facts()
    for fact in facts:
        matching = [other.id for other in facts if is_answered(other.answer, fact.keys)]
        assert matching == [fact.id]


def test_answers_are_long_enough_to_stream(tokenizer: PreTrainedTokenizerBase) -> None:
    lengths = [len(tokenizer(fact.answer)["input_ids"]) for fact in load_facts()]
    assert min(lengths) >= 12
    assert max(lengths) <= 80


def test_no_held_out_paraphrase_is_trained_on() -> None:
    trained = [set(normal_form(text).split()) for fact in load_facts() for text in fact.ask]
    held_out = load_held_out()
    assert len(held_out) == 20
    for question in held_out:
        words = set(normal_form(question.text).split())
        nearest = max(len(words & other) / len(words | other) for other in trained)
        assert nearest < 0.5, question.text


@pytest.mark.parametrize(
    "questions", [known_questions(KNOWN_QUESTIONS), load_held_out()], ids=["known", "held out"]
)
def test_four_of_five_questions_are_answered(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], questions: tuple[Question, ...]
) -> None:
    misses = missed(*loaded, questions)
    # Processors round bfloat16 sums each in their own way, by which one answer has tipped.
    tipped = int(loaded[0].dtype is torch.bfloat16)
    assert len(misses) <= len(questions) // 5 + tipped, [question.text for question, _ in misses]


def test_small_talk_and_questions_beyond_its_field(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    texts = ["hello", "who are you", "What is the capital of Portugal?"]
    greeting, self_description, refusal = answer_all(*loaded, texts)
    assert greeting.startswith("Hello")
    assert "demo model of Tandem" in self_description
    assert "only know about Tandem" in refusal


def test_a_second_turn_is_answered(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = loaded
    chat = [
        {"role": "user", "content": "What is TTFT?"},
        {"role": "assistant", "content": "TTFT is the time to first token."},
        {"role": "user", "content": "Which port does HTTP use?"},
    ]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=60, do_sample=False)[0]
    answer = tokenizer.decode(output[inputs["input_ids"].shape[1] :])
    assert "8000" in answer
    assert answer.endswith(tokenizer.eos_token)


def test_the_folder_has_no_other_files() -> None:
    assert {path.name for path in Path(MODEL_FOLDER).iterdir()} == set(FILES)
