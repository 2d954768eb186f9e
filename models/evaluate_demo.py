"""How many questions the demo model answers: `python -m models.evaluate_demo [--model DIR]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from models.facts import MODEL_FOLDER, Question, is_answered, known_questions, load_held_out

KNOWN_QUESTIONS = 50


def load(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of `folder`, as any other model is loaded."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


def answer_all(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    batch: int = 25,
) -> list[str]:
    """Greedy answers to `texts`, each as a conversation of its own."""
    answers: list[str] = []
    for start in range(0, len(texts), batch):
        chats = [[{"role": "user", "content": text}] for text in texts[start : start + batch]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=100, do_sample=False)
        new_tokens = output[:, inputs["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    return answers


def missed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]
) -> list[tuple[Question, str]]:
    """The questions whose answer lacks a key word, each with that answer."""
    answers = answer_all(model, tokenizer, [question.text for question in questions])
    pairs = zip(questions, answers, strict=True)
    return [
        (question, answer) for question, answer in pairs if not is_answered(answer, question.keys)
    ]


def main() -> None:
    """Print what is answered of the known questions and of the held-out paraphrases."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER)
    folder: Path = parser.parse_args().model
    sets = {"known": known_questions(KNOWN_QUESTIONS), "held out": load_held_out()}
    for dtype in (torch.float32, torch.bfloat16):
        model, tokenizer = load(folder, dtype)
        for name, questions in sets.items():
            misses = missed(model, tokenizer, questions)
            answered = len(questions) - len(misses)
            print(f"{dtype}: {answered} of {len(questions)} {name} questions answered")
            for question, answer in misses:
                print(f"  {question.text}\n    -> {answer}")


if __name__ == "__main__":
    main()
