"""The bounds of a request, all in one place. `docs/reference/limits.md` is written from `LIMITS`.

The front ends compare lengths with these bounds before they look at any item. So the cost of a
refusal does not grow with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import NamedTuple

from engine.errors import InvalidRequest
from engine.types.grammar import (
    COMPILE_S,
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_CHOICES,
    MAX_GRAMMAR_DEPTH,
    MAX_REGEX_BYTES,
)
from engine.types.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_CHOICES = 128
MAX_MESSAGES = 2048
MAX_CONTENT_PARTS = 2048
MAX_PROMPT_TOKENS = 2**20
MAX_CHOICE_TOKENS = 2**21
MAX_NAME_CHARACTERS = 512
MAX_TOOLS = 128
MAX_TOOL_BYTES = 512 * 1024
MAX_TOOL_CALLS = 128
MAX_METADATA = 16
MAX_TEMPLATE_FIELDS = 32
MAX_TEMPLATE_CHARACTERS = 16 * 1024
MAX_JSON_VALUES = 32_768
MAX_MESSAGE_FIELDS = 32_768
# Log-probabilities in one answer, with the likeliest tokens: some 30 MB of JSON.
MAX_NUMBERS = 1_000_000
# Rows of the request log in one answer, where no number is asked for and at most.
LISTED_ROWS = 20
MAX_LISTED_ROWS = 1000


class Limit(NamedTuple):
    """A bound of one or several fields, and its reason."""

    fields: str
    most: int
    unit: str
    reason: str


LIMITS = (
    Limit("body, message", MAX_REQUEST_BYTES, "bytes", "gRPC's default"),
    Limit("a JSON body", MAX_JSON_VALUES, "values besides token ids", "time to parse"),
    Limit("a gRPC message", MAX_MESSAGE_FIELDS, "fields", "memory of what is parsed"),
    Limit("token ids of a body or message", MAX_PROMPT_TOKENS, "", "as `prompt`"),
    Limit("`n` times prompts; texts of `Score`", MAX_CHOICES, "", "OpenAI's `n`"),
    Limit("`n` times prompt", MAX_CHOICE_TOKENS, "tokens", "each choice lists the prompt"),
    Limit("`prompt`, `token_ids`", MAX_PROMPT_TOKENS, "tokens", "and the model's context"),
    Limit("`messages`", MAX_MESSAGES, "", "OpenAI's"),
    Limit("text parts or blocks of all messages", MAX_CONTENT_PARTS, "", "as `messages`"),
    Limit("`tools`", MAX_TOOLS, "", "OpenAI's"),
    Limit("`tools` together", MAX_TOOL_BYTES, "characters", "the template writes them"),
    Limit("`tool_calls` of a message", MAX_TOOL_CALLS, "", "as `tools`"),
    Limit("names of tools, ids of calls", 128, "characters", "OpenAI's is 64"),
    Limit("`chat_template_kwargs`", MAX_TEMPLATE_FIELDS, "fields", "the template gets them"),
    Limit("`chat_template_kwargs` as JSON", MAX_TEMPLATE_CHARACTERS, "characters", "as its fields"),
    Limit("`input`", MAX_MESSAGES, "items, and parts", "as `messages`"),
    Limit("`metadata`", MAX_METADATA, "pairs", "the answer repeats them"),
    Limit(
        "`stop`, `stop_sequences`",
        MAX_STOP_STRINGS,
        "strings",
        "each is searched for at each token",
    ),
    Limit("`stop[i]`", MAX_STOP_CHARACTERS, "characters", "as `stop`"),
    Limit("`stop_token_ids`", MAX_STOP_TOKEN_IDS, "", "each replica gets them"),
    Limit("`logit_bias`", MAX_LOGIT_BIAS, "entries", "each replica gets them"),
    Limit("a schema or grammar", MAX_GRAMMAR_BYTES, "bytes", "time to compile"),
    Limit("a schema, `chat_template_kwargs`", MAX_GRAMMAR_DEPTH, "levels", "time to compile"),
    Limit("a regular expression", MAX_REGEX_BYTES, "bytes", "as a grammar"),
    Limit("choices of a grammar", MAX_GRAMMAR_CHOICES, "texts", "as a grammar"),
    Limit("compiling a grammar", int(COMPILE_S), "s", "of a core of the router"),
    Limit("`logprobs`, `top_logprobs`, `top`", MAX_LOGPROBS, "", "OpenAI's"),
    Limit("log-probabilities of an answer", MAX_NUMBERS, "", "30 MB of JSON"),
    Limit(
        "`model`, `endpoint`, `metadata.user_id`",
        MAX_NAME_CHARACTERS,
        "characters",
        "the log has them",
    ),
    Limit("`request_id`, `id`", 128, "characters", "the log has it"),
    Limit("`stream_id`", 128, "characters", "a path has it"),
    Limit("`have`", MAX_CHOICES, "choices", "as `n`"),
    Limit("`tenant`", 64, "characters", "the log has it"),
)


def check_length(values: Sized, most: int, field: str, unit: str) -> None:
    """Raise InvalidRequest, naming `field`, where there are more than `most` values."""
    if len(values) > most:
        message = f"{field} must have at most {most} {unit}, not {len(values)}"
        raise InvalidRequest(message, field=field)


def check_conversation(
    entries: Sequence[object], parts_of: Callable[[object], int], field: str, unit: str, part: str
) -> None:
    """Raise InvalidRequest, naming `field`, where a conversation is empty or has too many parts.

    `parts_of` counts the parts of an entry. `unit` and `part` are the API's words for several.
    """
    if not entries:
        raise InvalidRequest(f"{field} must not be empty", field=field)
    check_length(entries, MAX_MESSAGES, field, unit)
    parts = sum(map(parts_of, entries))
    if parts > MAX_CONTENT_PARTS:
        message = f"{field} must have at most {MAX_CONTENT_PARTS} {part} together, not {parts}"
        raise InvalidRequest(message, field=field)


def check_choice_tokens(choices: int, prompt_tokens: int) -> None:
    """Raise InvalidRequest where the choices together list too many tokens at their replicas.

    A replica gets a prompt once. Its list of the tokens of each choice has 8 bytes a token.
    """
    if choices > 1 and choices * prompt_tokens > MAX_CHOICE_TOKENS:
        most = MAX_CHOICE_TOKENS // prompt_tokens
        raise InvalidRequest(
            f"n: a prompt of {prompt_tokens} tokens can have at most {most} choices", field="n"
        )


def within_numbers(choices: int, logprobs: int, max_tokens: int | None) -> int:
    """The most `max_tokens` whose log-probabilities one answer may have.

    Raises InvalidRequest where the client asked for more.
    """
    most = max(1, MAX_NUMBERS // (choices * (1 + logprobs)))
    if max_tokens is not None and max_tokens > most:
        raise InvalidRequest(
            f"the answer would have more than {MAX_NUMBERS} log-probabilities: "
            f"with this n and logprobs, max_tokens can be at most {most}",
            field="logprobs",
        )
    return most
