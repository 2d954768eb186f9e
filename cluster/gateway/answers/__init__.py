"""Streamed answers in OpenAI's form, and the way to their rest on another connection or router."""
