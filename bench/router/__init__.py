"""One router without a model: messages, tokens and first tokens per second."""
