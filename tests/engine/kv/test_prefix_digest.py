"""Digests of blocks: equal exactly for the same tenant, model and tokens up to the block's end."""

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.layout import KvLayout, LayerShape
from engine.kv.prefix_digest import DIGEST_BYTES, Chain, identity_of

BLOCK = 4
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
NAMES = st.text(min_size=1, max_size=4)


def digests(tokens, tenant="default", identity="model", count=None):
    chain = Chain(tenant, identity, BLOCK)
    chain.follow(tokens, len(tokens) if count is None else count)
    return chain.digests


@given(TOKENS, st.lists(st.integers(0, 40)))
def test_in_steps_or_at_once_a_chain_is_the_same(tokens, counts):
    chain = Chain("default", "model", BLOCK)
    for count in sorted(min(count, len(tokens)) for count in counts):
        chain.follow(tokens[:count], count)
        assert len(chain.digests) == count // BLOCK
    chain.follow(tokens, len(tokens))
    assert chain.digests == digests(tokens)
    assert all(len(digest) == DIGEST_BYTES for digest in chain.digests)


@given(TOKENS, TOKENS)
def test_digests_are_shared_up_to_the_first_difference_and_never_behind(some, other):
    pairs = zip(some, other, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(some), len(other)))
    one, two = digests(some), digests(other)
    assert one[: same // BLOCK] == two[: same // BLOCK]
    assert not set(one[same // BLOCK :]) & set(two[same // BLOCK :])


@given(TOKENS, NAMES, NAMES, NAMES, NAMES)
def test_another_tenant_or_another_model_shares_nothing(tokens, tenant, model, other, variant):
    mine = set(digests(tokens, tenant, model))
    if (tenant, model) != (other, variant):
        assert not mine & set(digests(tokens, other, variant))


def test_no_digest_is_used_twice_in_a_chain_of_equal_blocks():
    assert len(set(digests([7] * 40))) == 10


def test_everything_in_the_layout_is_in_the_identity():
    layout = KvLayout((LayerShape(2, 16),), 16, "float32", "weights")
    others = [
        KvLayout((LayerShape(2, 32),), 16, "float32", "weights"),
        KvLayout((LayerShape(2, 16),) * 2, 16, "float32", "weights"),
        KvLayout((LayerShape(2, 16),), 32, "float32", "weights"),
        KvLayout((LayerShape(2, 16),), 16, "bfloat16", "weights"),
        KvLayout((LayerShape(2, 16),), 16, "float32", "other"),
    ]
    assert len({identity_of(one) for one in (layout, *others)}) == len(others) + 1
    assert identity_of(layout) == identity_of(
        KvLayout((LayerShape(2, 16),), 16, "float32", "weights")
    )


@given(TOKENS, TOKENS, TOKENS)
def test_an_extension_needs_the_uncovered_tokens_and_leaves_its_chain(tokens, some, other):
    chain = Chain("default", "model", BLOCK)
    chain.follow(tokens, len(tokens))
    assert chain.covered == len(tokens) // BLOCK * BLOCK
    assert chain.extended(tokens[chain.covered :] + other) == digests(tokens + other)
    chain.follow(tokens + some, len(tokens + some))
    assert chain.digests == digests(tokens + some)
