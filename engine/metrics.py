"""The metrics of prompts and of the prefix cache, in either pool."""

from __future__ import annotations

from engine.telemetry import Counter

PROMPT_TOKENS = Counter(
    "tandem_prefill_tokens_total",
    "Prompt tokens computed; in the pool `decode` also those of requests that lost their blocks.",
    ("pool",),
)
PREFIX_LOOKUP_TOKENS = Counter(
    "tandem_prefix_lookup_tokens_total", "Tokens looked up in the prefix cache.", ("pool",)
)
PREFIX_HIT_TOKENS = Counter(
    "tandem_prefix_hit_tokens_total", "Tokens whose KV was in the prefix cache.", ("pool",)
)
PREFIX_EVICTIONS = Counter(
    "tandem_prefix_evictions_total", "Cached blocks that were given out anew.", ("pool",)
)
