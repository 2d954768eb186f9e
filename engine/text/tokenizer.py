"""Text to token ids and back, by a model's own tokenizer.

Only fast tokenizers (of the `tokenizers` library) are served. Several threads may call them at once
while no call changes the tokenizer. A call that sets truncation or padding while another encodes
fails with "Already borrowed". So loading clears both once. Calls go to the library directly, as the
methods of `transformers` would set them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidRequest, UnsupportedModel, first_line
from engine.text.control_tokens import ControlTokens, check_unicode
from engine.text.token_names import bytes_of_piece, name_of_bytes
from engine.text.token_pieces import TokenPieces, decoder_of, goes_by_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
# Jinja and the expressions inside a template raise these.
_TEMPLATE_ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation in the model's chat template: its token ids, and its text.

    In the text, stand-ins are in the place of control tokens that users wrote.
    """

    ids: list[int]
    text: str


class Tokenizer:
    """A model's tokenizer.

    `vocabulary` counts its tokens, added tokens too; the model's logits may be wider.
    `longest_token` is in characters (in bytes for a byte-level tokenizer). `eos_ids` are the ids
    that end a text, from the tokenizer and from the model's generation config.
    """

    def __init__(
        self, fast: PreTrainedTokenizerFast, *, name: str = "", eos_ids: Iterable[int] = ()
    ) -> None:
        self.name = name or str(fast.name_or_path)
        self._fast = fast
        self._backend = fast.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.longest_token = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        self.vocabulary: int = self._backend.get_vocab_size(with_added_tokens=True)
        own = () if fast.eos_token_id is None else (fast.eos_token_id,)
        self.eos_ids = frozenset((*own, *eos_ids))
        added = self._backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes = self._fallback_bytes()
        self._controls = ControlTokens(self._backend, _template_source(fast))
        by_token = goes_by_token(decoder_of(self._backend))
        self._pieces = TokenPieces(self.decode, range(self.vocabulary) if by_token else ())

    @classmethod
    def load(cls, path: str) -> Tokenizer:
        """Read the tokenizer in a model's folder, without network, or of a name on the hub.

        Raises UnsupportedModel where the model has no tokenizer of the `tokenizers` library.
        """
        from transformers import AutoTokenizer

        local = Path(path).is_dir()
        if not local and path.startswith(("/", ".", "~")):
            raise UnsupportedModel(f"{path}: no such folder")
        if local and not any(found for name in _FILES for found in Path(path).glob(name)):
            raise UnsupportedModel(f"{path}: no tokenizer in this folder")
        try:
            fast = AutoTokenizer.from_pretrained(
                path, local_files_only=local, trust_remote_code=False
            )
        except Exception as error:  # a file may have anything in it
            raise UnsupportedModel(f"{path}: no tokenizer ({first_line(error)})") from error
        if not getattr(fast, "is_fast", False):
            raise UnsupportedModel(f"{path}: {type(fast).__name__} is not a fast tokenizer")
        tokenizer = cls(fast, name=path, eos_ids=_generation_eos(path, local))
        # For some models a folder without the files gives an empty tokenizer, not an error.
        if tokenizer.vocabulary <= len(tokenizer._special):
            raise UnsupportedModel(f"{path}: no tokenizer (its vocabulary is empty)")
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer adds by itself.

        Raises InvalidRequest for text that is not Unicode (a lone surrogate).
        """
        return self._encode(text, field="prompt", add_special_tokens=True)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> RenderedChat:
        """A conversation in the model's chat template, up to the answer's start.

        Each message has `role` and `content`, and what else transformers has in messages. The
        template gets `tools` and `fields`, too. The text of a control token in any of them is text.
        Raises InvalidRequest where the model has no chat template, or the template refuses the
        messages.
        """
        hidden: list[str] = []
        text = self._rendered(
            self._controls.hide(messages, hidden),
            self._controls.hide_all(tools, hidden),
            {name: self._controls.hide_all(value, hidden) for name, value in fields.items()},
        )
        if self._controls.must_separate(hidden):
            return RenderedChat(self._controls.encode(text, hidden), text)
        return RenderedChat(self._encode(text, field="messages", add_special_tokens=False), text)

    def _rendered(
        self, messages: list[dict[str, Any]], tools: list[Any], fields: dict[str, Any]
    ) -> str:
        from jinja2 import TemplateError

        if not self._fast.chat_template:
            raise InvalidRequest(f"{self.name} has no chat template", field="messages")
        try:
            text = self._fast.apply_chat_template(
                messages,
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                **fields,
            )
        except (TemplateError, *_TEMPLATE_ERRORS) as error:
            raise InvalidRequest(
                f"the chat template of {self.name}: {first_line(error)}", field="messages"
            ) from error
        return str(text)

    @property
    def chat_templates(self) -> str:
        """The text of the model's chat templates; empty where it has none."""
        return _template_source(self._fast)

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """The model's own description of its answers, if it has one."""
        found: Mapping[str, Any] | None = getattr(self._fast, "response_template", None)
        return found

    def special_within(self, text: str) -> tuple[int, ...]:
        """The special tokens that stand in a text."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(
            sorted(token for token in self._special if added[token].content.strip() in text)
        )

    def special_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        """The special token of each text that is one by itself."""
        found = {text: self._backend.token_to_id(text) for text in texts}
        return {text: token for text, token in found.items() if token in self._special}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens and ids outside the vocabulary give no text."""
        return str(self._backend.decode(ids, skip_special_tokens=True))

    def serialized(self) -> str:
        """The JSON of the `tokenizers` library; megabytes."""
        return str(self._backend.to_str())

    def token_text(self, token: int) -> str:
        """The text of a single token, for listings, with its leading space; special tokens by name.

        A token that is part of a character is named by its bytes (`engine/text/token_names.py`).
        """
        piece = self._backend.id_to_token(token)
        text = str(self._backend.decode([token], skip_special_tokens=False))
        raw = self._part_of_character(token, text)
        if raw:
            return name_of_bytes(raw)
        # A decoder may leave out the first space of a text.
        spaced = (piece or "").startswith("▁") and text == (piece or "").replace("▁", " ")[1:]
        return " " + text if spaced else text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that is made of bytes; nothing for another."""
        piece = self._backend.id_to_token(token) or ""
        return bytes_of_piece(piece, single=self.is_byte(token)) or b""

    def piece(self, token: int) -> str | None:
        """What this token adds to a text that ends with a whole token, whatever that text is.

        None where this is not known: `decode` has to see the tokens before it, too.
        """
        return None if token in self._bytes else self._pieces.of(token)

    def is_silent(self, token: int) -> bool:
        """Whether `decode` ignores this token: special, or unknown to the tokenizer."""
        return token in self._special or self._backend.id_to_token(token) is None

    def is_byte(self, token: int) -> bool:
        """Whether this token is a raw byte that decodes to text together with its neighbours."""
        return token in self._bytes

    def _part_of_character(self, token: int, text: str) -> bytes:
        """The bytes of a token that has no text of its own, or has that of another token."""
        raw = self.token_bytes(token) if "\ufffd" in text or self.is_byte(token) else b""
        try:
            character = raw.decode()
        except UnicodeDecodeError:
            return raw
        others = (character, character.replace(" ", "▁"))
        same = any(self._backend.token_to_id(one) is not None for one in others)
        return raw if same and self.is_byte(token) else b""

    def _encode(self, text: str, *, field: str, add_special_tokens: bool) -> list[int]:
        check_unicode(text, field)
        # A batch of one: unlike `encode`, it lets other threads run meanwhile.
        encoded = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoded[0].ids)

    def _fallback_bytes(self) -> frozenset[int]:
        """The ids of `<0x00>` to `<0xFF>`, if the decoder joins these bytes into characters."""
        found = [self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        ids = [token for token in found if token is not None]
        if not ids or "<" in self.decode(ids[-1:]):
            return frozenset()
        return frozenset(ids)


def _template_source(fast: PreTrainedTokenizerFast) -> str:
    """The chat template, all of them where there are several, or nothing."""
    source = fast.chat_template or ""
    return source if isinstance(source, str) else "\n".join(source.values())


def _generation_eos(path: str, local: bool) -> tuple[int, ...]:
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError):
        return ()
    eos = config.eos_token_id
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)
