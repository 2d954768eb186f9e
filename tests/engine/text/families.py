# ruff: noqa: RUF001 - DeepSeek's control tokens have wide bars
"""Small tokenizers of the families of chat models: their added tokens, and their templates' form.

Each has the family's own normalizer, pre-tokenizer and flags of added tokens. Their vocabularies
are tiny.
"""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models.chat_format import CHAT_TEMPLATE, SPECIAL_TOKENS
from tests.engine.text.test_tokenizer import byte_level, sentencepiece_like

LLAMA_3 = (
    "{%- for message in messages %}"
    "{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{%- if loop.index0 == 0 %}{%- set content = bos_token + content %}{%- endif %}"
    "{{- content }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
QWEN_3 = """\
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n')\
.split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n')\
 + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] != 'assistant' %}"
    "{{ '[INST] ' + message['content'] + '[/INST]' }}{% else %}"
    "{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
BARE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _special(*texts, **flags):
    return [AddedToken(text, special=True, normalized=False, **flags) for text in texts]


def _plain(*texts, normalized=False):
    return [AddedToken(text, special=False, normalized=normalized) for text in texts]


def _wrapped(backend, template, bos=None, eos=None):
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, chat_template=template
    )


def llama_3():
    backend = byte_level()
    backend.add_tokens(
        _special(
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eot_id|>", "<|python_tag|>", "<|reserved_special_token_0|>"),
        )
    )
    return _wrapped(backend, LLAMA_3, "<|begin_of_text|>", "<|eot_id|>")


def qwen_3():
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    backend.add_tokens(_special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    thinking = ("</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|fim_prefix|>")
    backend.add_tokens(_plain(*thinking))
    return _wrapped(backend, QWEN_3, None, "<|im_end|>")


def mistral():
    backend = sentencepiece_like()
    backend.add_tokens(_special("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"))
    return _wrapped(backend, MISTRAL, "<s>", "</s>")


def mistral_tekken():
    backend = byte_level()
    backend.add_tokens(_special("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"))
    return _wrapped(backend, MISTRAL, "<s>", "</s>")


def deepseek():
    backend = byte_level()
    backend.add_tokens(_special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"))
    backend.add_tokens(_plain("<｜User｜>", "<｜Assistant｜>", "</think>", "<｜fim▁hole｜>"))
    return _wrapped(backend, DEEPSEEK, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")


def gemma():
    """White space is added tokens here, which are no control tokens."""
    backend = sentencepiece_like()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_tokens(_special("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"))
    backend.add_tokens(_plain("<unused0>", "[multimodal]", "\n\n", "▁▁▁"))
    return _wrapped(backend, GEMMA, "<bos>", "<eos>")


def phi_3():
    """The template makes the turn's token of the role. The tokens swallow what follows them."""
    backend = sentencepiece_like()
    backend.add_tokens(_special("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True))
    return _wrapped(backend, PHI, "<s>", "</s>")


def phi_2():
    """Runs of spaces are added tokens beyond the model's vocabulary, and normalized ones."""
    backend = byte_level()
    backend.add_tokens(_plain("    ", "  ", normalized=True))
    backend.add_tokens(_special("<|im_start|>", "<|im_end|>"))
    return _wrapped(backend, QWEN_3, None, "<|im_end|>")


def demo():
    backend = byte_level()
    backend.add_tokens(_special(*SPECIAL_TOKENS))
    return _wrapped(backend, CHAT_TEMPLATE, "<|begin|>", "<|end|>")


def unigram():
    """llm-jp's kind: the model's own vocabulary has the control tokens, as pieces of text."""
    pieces = ["<unk>", "<s>", "</s>", "<CLS>", "▁", *"abcdefghijklmnopqrstuvwxyz<>/|\n.,:", "the"]
    backend = tokenizers.Tokenizer(
        models.Unigram([(piece, -len(piece) / 4) for piece in pieces], unk_id=0)
    )
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<s>", "</s>", "<CLS>"])
    return _wrapped(backend, MISTRAL, "<s>", "</s>")


def lower_case():
    """Its control tokens are found in normalized text, where others look like them."""
    backend = byte_level()
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.add_tokens(
        [AddedToken(text, special=True, normalized=True) for text in ("<|user|>", "<|end|>")]
    )
    return _wrapped(backend, PHI, None, "<|end|>")


def bare():
    """The template puts the texts of users side by side."""
    backend = byte_level()
    backend.add_tokens(_special("<|im_start|>", "<|im_end|>"))
    return _wrapped(backend, BARE, None, "<|im_end|>")


FAMILIES = (
    *(llama_3, qwen_3, mistral, mistral_tekken, deepseek, gemma, phi_3, phi_2),
    *(demo, unigram, lower_case, bare),
)
