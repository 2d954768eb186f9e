"""The prefill pool: reads prompts, samples the first token, hands the KV over."""
