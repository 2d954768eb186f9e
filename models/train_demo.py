"""Train the demo model from nothing: `python -m models.train_demo [--out DIR]`.

Takes about ten minutes on two cores. Seeded: the same machine and versions give the same model.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.chat_format import CHAT_TEMPLATE, CONTEXT_TOKENS, build_tokenizer
from models.conversations import SYSTEM_PROMPTS, Batch, Conversations
from models.facts import MODEL_FOLDER, Fact, load_facts, load_held_out
from models.phrasing import vary

SEED = 20
VOCABULARY = 1536
STEPS = 900
BATCH_TOKENS = 5000
MUON_LR, ADAM_LR = 0.01, 0.004
WARMUP_STEPS = 30


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A small Llama with grouped-query attention and tied embeddings, about 1.9 M parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def demo_tokenizer(facts: Sequence[Fact]) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on the answers and on varied questions."""
    rng = random.Random(SEED)
    texts = [vary(fact, rng) for fact in facts for _ in range(12 + len(fact.about))]
    texts += [fact.answer for fact in facts for _ in range(4)]
    return build_tokenizer([*texts, *SYSTEM_PROMPTS], VOCABULARY)


@cache
def has_bf16() -> bool:
    """Whether this CPU multiplies in bfloat16, which nearly halves the time of a step."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Cross entropy of the next token, weighted by how much each token matters."""
    with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16()):
        logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.tokens[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def make_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adam]


def rate_at(step: int, steps: int) -> float:
    """The learning rate's factor: a short rise, then a cosine down to 1 %."""
    rise = min(1.0, (step + 1) / WARMUP_STEPS)
    return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(
    facts: Sequence[Fact], forbidden: Sequence[str], steps: int = STEPS
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train tokenizer and model on `facts`, never on a question in `forbidden`."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    tokenizer = demo_tokenizer(facts)
    source = Conversations(facts, forbidden, tokenizer, SEED)
    model = new_model(tokenizer).train()
    print(f"{model.num_parameters():,} parameters, {len(facts)} facts", flush=True)
    optimizers = make_optimizers(model)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
        for optimizer in optimizers
    ]
    started, recent = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        loss = batch_loss(model, source.batch(BATCH_TOKENS))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        recent = loss.item() if step == 1 else 0.9 * recent + 0.1 * loss.item()
        if step % 25 == 0 or step == steps:
            spent = time.monotonic() - started
            print(f"step {step}/{steps}  loss {recent:.4f}  {spent:.0f} s", flush=True)
    return model.eval(), tokenizer


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the loadable folder, weights in bfloat16."""
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
        max_new_tokens=128,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    forbidden = [question.text for question in load_held_out()]
    model, tokenizer = train(load_facts(), forbidden, options.steps)
    save(model, tokenizer, options.out)
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
