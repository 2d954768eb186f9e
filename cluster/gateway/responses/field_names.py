"""The names that fields of a chat have in a response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cluster.gateway.responses.note import no_response
from engine.errors import InvalidRequest, NotFound

_NAMES = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "resumable": "background",
}


@contextmanager
def response_fields() -> Iterator[None]:
    """Have the errors of the block name the fields of a response."""
    try:
        yield
    except InvalidRequest as error:
        name = _NAMES.get(error.field or "")
        if name is not None:
            if error.message.startswith(str(error.field)):
                error.message = error.message.replace(str(error.field), name, 1)
            error.field = name
        raise
    except NotFound as error:
        if error.field == "stream_id":
            raise no_response() from None
        raise
