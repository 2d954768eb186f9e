"""The tokenizer wrapper on tiny tokenizers made here; other tests borrow them."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.errors import InvalidRequest, UnsupportedModel
from engine.text.tokenizer import Tokenizer

CORPUS = ["the quick brown fox 漢字 かな é ö jumps over the lazy dog 😀 the end, the end."] * 5
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
SPECIAL = ["</s>", "<s>"]


def byte_level():
    """GPT-2's kind: every token is bytes; 0 is </s>, 1 is <s>."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def sentencepiece_like():
    """Llama's kind: a leading mark for spaces, unknown characters as raw byte tokens."""
    alphabet = sorted({c for text in CORPUS for c in text if c.isascii()} - {" "})
    pieces = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *alphabet]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("e", "n"), ("en", "d")]
    pieces += ["".join(merge) for merge in merges]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens([*SPECIAL, "<unk>"])
    return tokenizer


def metaspace():
    """T5's kind: Metaspace before and after."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=[*SPECIAL, "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wrap(tokenizer, **options):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", **options
    )


BUILDERS = (byte_level, sentencepiece_like, metaspace)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    wrap(byte_level(), chat_template=CHAT).save_pretrained(tmp_path)
    return tmp_path


def test_loads_from_a_folder_without_network(folder):
    tokenizer = Tokenizer.load(str(folder))
    ids = tokenizer.encode("the fox 😀")
    assert all(type(token) is int for token in ids)
    assert tokenizer.decode(ids) == "the fox 😀"
    assert tokenizer.vocabulary == byte_level().get_vocab_size()
    assert tokenizer.eos_ids == {0}


def test_end_tokens_of_the_generation_config_count(folder):
    config = folder / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert Tokenizer.load(str(folder)).eos_ids == {0, 7}
    config.write_text(json.dumps({"eos_token_id": 9}))
    assert Tokenizer.load(str(folder)).eos_ids == {0, 9}
    config.write_text("{}")
    assert Tokenizer.load(str(folder)).eos_ids == {0}


def test_renders_a_chat_as_plain_ids(folder):
    tokenizer = Tokenizer.load(str(folder))
    ids = tokenizer.render_chat([{"role": "user", "content": "the end 漢"}]).ids
    assert all(type(token) is int for token in ids)
    assert ids[0] == 1 and ids.count(1) == 2 and ids.count(0) == 1
    assert tokenizer.decode(ids) == "user\nthe end 漢assistant\n"


def test_a_chat_that_cannot_be_rendered_is_refused(folder):
    tokenizer = Tokenizer.load(str(folder))
    with pytest.raises(InvalidRequest, match="no tools here") as caught:
        tokenizer.render_chat([{"role": "tool", "content": "x"}])
    assert caught.value.field == "messages"
    with pytest.raises(InvalidRequest):
        tokenizer.render_chat([])
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.render_chat([{"role": "user", "content": "\ud800"}])
    with pytest.raises(InvalidRequest, match="plain has no chat template"):
        Tokenizer(wrap(byte_level()), name="plain").render_chat([{"role": "user", "content": ""}])


def test_broken_templates_are_refused():
    for template in ("{{ messages[0]['content'] + 1 }}", "{% if %}", "{{ 1 / 0 }}"):
        tokenizer = Tokenizer(wrap(byte_level(), chat_template=template), name="m")
        with pytest.raises(InvalidRequest, match="the chat template of m"):
            tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_lone_surrogates_are_refused():
    tokenizer = Tokenizer(wrap(byte_level()))
    with pytest.raises(InvalidRequest, match="character 2") as caught:
        tokenizer.encode("ab\udfff")
    assert caught.value.field == "prompt"


@pytest.mark.parametrize("config", [None, {"model_type": "llama"}, {"model_type": "qwen3"}])
def test_a_folder_without_a_tokenizer_is_unsupported(tmp_path, config):
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="no tokenizer") as caught:
        Tokenizer.load(str(tmp_path))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["{", "null", "[]"])
def test_a_damaged_tokenizer_is_unsupported(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UnsupportedModel, match="no tokenizer") as caught:
        Tokenizer.load(str(folder))
    assert "\n" not in caught.value.message


def test_an_empty_vocabulary_is_unsupported(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="vocabulary is empty"):
        Tokenizer.load(str(tmp_path))


def test_a_tokenizer_written_in_python_is_unsupported(tmp_path):
    config = {"tokenizer_class": "ByT5Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="ByT5Tokenizer is not a fast tokenizer"):
        Tokenizer.load(str(tmp_path))


def test_a_path_that_is_not_there_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedModel, match="no such folder"):
        Tokenizer.load(str(tmp_path / "missing"))


def test_stored_truncation_and_padding_do_not_apply():
    stored = byte_level()
    stored.enable_truncation(4)
    stored.enable_padding(length=64)
    assert len(Tokenizer(wrap(stored)).encode("漢字 " * 200)) > 64
    assert len(Tokenizer(wrap(stored)).encode("fox")) < 4


def test_threads_may_encode_and_decode_at_once(folder):
    tokenizer = Tokenizer.load(str(folder))
    texts = [f"the quick {n} fox 漢字 " * (n % 50 + 1) for n in range(400)]

    def there_and_back(text):
        tokenizer.render_chat([{"role": "user", "content": text}])
        return tokenizer.decode(tokenizer.encode(text))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, texts)) == texts


def test_token_text_keeps_spaces_and_names_special_tokens():
    llama = Tokenizer(wrap(sentencepiece_like()))
    the = llama.encode("the")[-1]
    assert llama.token_text(the) == " the"
    assert llama.decode([the]) == "the"
    assert llama.token_text(0) == "</s>"
    gpt = Tokenizer(wrap(byte_level()))
    assert gpt.token_text(gpt.encode("fox the")[-1]) == " the"
    assert gpt.token_text(gpt.encode("ф")[0]) == "bytes:\\xd1"
    assert gpt.token_text(10**6) == ""


def test_knows_silent_and_byte_tokens():
    llama = Tokenizer(wrap(sentencepiece_like()))
    assert llama.is_silent(0) and llama.is_silent(10**6) and not llama.is_silent(3)
    assert [token for token in range(300) if llama.is_byte(token)] == list(range(3, 259))
    gpt = Tokenizer(wrap(byte_level()))
    assert not any(gpt.is_byte(token) for token in range(gpt.vocabulary))
