"""The sampling parameters of a request, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.errors import InvalidRequest, shown
from engine.types.grammar import Grammar

# Promises: the public limits of a request.
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_SHOWN_TOKEN_IDS = 1024
_MOST = {
    "stop": (MAX_STOP_STRINGS, "strings"),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, "token ids"),
    "shown_token_ids": (MAX_SHOWN_TOKEN_IDS, "token ids"),
    "logit_bias": (MAX_LOGIT_BIAS, "entries"),
}
_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters by which the tokens of a request are chosen, and end.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 are off.
    `top_p` 0 keeps the best token alone. A client's `top_k` -1 is off, too; the router makes it 0.
    `seed` None lets the router draw one. `logprobs` k requests the chosen token's log-probability
    and the k best, both of the model's own distribution, before penalties and temperature. The
    answer follows the `grammar`, if there is one. `shown_token_ids` are special tokens that give
    text, as other special tokens do not.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    shown_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """Whether the request has penalties, which depend on its tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def edits_logits(self) -> bool:
        """Whether the request has penalties or biases."""
        return self.penalises or bool(self.logit_bias)

    @property
    def filters_tokens(self) -> bool:
        """Whether top-k, top-p or min-p are in use."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def check(self, vocabulary: int) -> None:
        """Raise InvalidRequest, naming the field, unless every value is in its range."""
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_p", self.top_p, 0.0, 1.0)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _between("top_k", self.top_k, -1, 2**31 - 1)
        if self.max_tokens is not None:
            _between("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            _between("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            _between("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_stops(vocabulary)
        self._check_bias(vocabulary)
        if self.grammar is not None:
            self.grammar.check_size()
            if self.ignore_eos:
                message = f"ignore_eos is not allowed with {self.grammar.field}: its grammar ends"
                raise InvalidRequest(message, field="ignore_eos")

    def _check_stops(self, vocabulary: int) -> None:
        check_count("stop", self.stop)
        check_count("stop_token_ids", self.stop_token_ids)
        check_count("shown_token_ids", self.shown_token_ids)
        for text in self.stop:
            check_stop(text)
        for token in self.stop_token_ids:
            check_token("stop_token_ids", token, vocabulary)
        for token in self.shown_token_ids:
            check_token("shown_token_ids", token, vocabulary)

    def _check_bias(self, vocabulary: int) -> None:
        check_count("logit_bias", self.logit_bias)
        for token, bias in self.logit_bias.items():
            check_token("logit_bias", token, vocabulary)
            _between("logit_bias", bias, -100.0, 100.0)


def check_count(name: str, values: Sized, field: str = "") -> None:
    """Raise InvalidRequest where the list or map of that name has too many values.

    `field` is the client's name of it, if it has another one.
    """
    (most, unit), field = _MOST[name], field or name
    if len(values) > most:
        raise InvalidRequest(f"{field}: at most {most} {unit}, not {len(values)}", field=field)


def check_stop(text: str, field: str = "stop") -> None:
    """Raise InvalidRequest, naming `field`, where a stop string is empty or too long."""
    if not 0 < len(text) <= MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"{field}: each string must have 1 to {MAX_STOP_CHARACTERS} characters", field=field
        )


def check_token(name: str, token: int, vocabulary: int) -> None:
    """Raise InvalidRequest unless `token` is in a vocabulary of that size."""
    if not 0 <= token < vocabulary:
        raise InvalidRequest(
            f"{name}: token id {shown(token)} is outside the vocabulary (0 to {vocabulary - 1})",
            field=name,
        )


def _between(name: str, value: float, low: float, high: float) -> None:
    # Comparing holds for NaN, infinities, and integers that no float can hold.
    if not low <= value <= high:
        bounds = f"at least {_plain(low)} and at most {_plain(high)}"
        raise InvalidRequest(f"{name} must be {bounds}, not {shown(value)}", field=name)


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
