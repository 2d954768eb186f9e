"""OpenAI's Responses: a translation of the request and of the events of a chat."""
